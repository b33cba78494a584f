"""Bound: a greedy oracle. It sees every engine as it is at this moment, without delay, and knows how long each
answer will be; it sends each request where its first token comes soonest, and refuses at once what would miss its
budget.

It is greedy: it never holds a request back for another's sake, nor does it know who will ask next. But it takes
all that are on their way somewhere as being there before the request it places, whoever arrives first: without
that, a far request's slot is given away under it, and goodput falls by 8 points at 1.2 of capacity. A scenario's
bound is the best of it and all policies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

from gslb.routing.health import Outcome
from gslb.sim.edge import Edge
from gslb.sim.forecast import Forecast
from gslb.sim.journey import Attempt, Journey
from gslb.sim.sequence import Sequence
from gslb.sim.site import Site


class Traffic:
    """What all edges see: every engine's forecast, and who is on the way to it."""

    __slots__ = ("_on_way", "forecasts")

    def __init__(self, sites: Iterable[Site]) -> None:
        self.forecasts: dict[str, Forecast] = {}
        self._on_way: dict[str, list[Attempt]] = {}
        for site in sites:
            self.forecasts[site.key] = Forecast(site.engine)
            self._on_way[site.key] = []

    def add(self, attempt: Attempt) -> None:
        """It has left its edge."""
        self._on_way[attempt.site.key].append(attempt)

    def on_way(self, key: str) -> list[Attempt]:
        """Those on the way to `key`, in order of arrival."""
        on_way = self._on_way[key]
        if on_way:
            on_way[:] = [one for one in on_way if not (one.is_received or one.is_over)]
            on_way.sort(key=_arrival)
        return on_way


def _arrival(attempt: Attempt) -> float:
    return attempt.sent_s + attempt.leg_s


class Oracle:
    """Decides for one edge (a `Chooser`)."""

    def __init__(self, edge: Edge, traffic: Traffic) -> None:
        self._edge = edge
        self._traffic = traffic
        self._near = sorted(edge.sites.values(), key=lambda site: edge.legs_s[site.region])

    @property
    def held(self) -> int:
        """It holds nothing."""
        return 0

    def take(self, journey: Journey, now_s: float) -> None:
        """Send it where its first token comes soonest, if that is in time."""
        site, first_s = self._soonest(journey, now_s)
        if site is None:
            self._edge.refuse(journey, "no_healthy_region")
        elif (first_s + journey.client_s - journey.ask.at_s) * 1000 > journey.ask.budget_ms:
            self._edge.refuse(journey, "latency_budget_unreachable")
        else:
            self._send(journey, site, first_s, now_s)

    def again(self, journey: Journey, now_s: float, never_sent: bool) -> bool:
        """The soonest of the others; late or not, it has lost an attempt already."""
        site, first_s = self._soonest(journey, now_s)
        if site is None or not (never_sent or self._edge.retry_budget.try_retry(now_s)):
            return False
        self._send(journey, site, first_s, now_s)
        return True

    def _soonest(self, journey: Journey, now_s: float) -> tuple[Site | None, float]:
        """The endpoint where the first token is made so that it is soonest back at the edge, and when that is."""
        best: Site | None = None
        best_s = inf
        ask = journey.ask
        request = Sequence(ask.prompt_tokens, ask.output_tokens, ask.blocks, ask.block_tokens)
        for site in self._near:
            leg_s = self._edge.legs_s[site.region] * journey.wan_factor
            if now_s + 2 * leg_s >= best_s:
                break
            engine = site.engine
            if site.is_gone or site.is_draining or site.key in journey.tried:
                continue
            if not engine.fits(ask.prompt_tokens, ask.output_tokens):
                continue
            arrives_s = now_s + leg_s
            before = self._traffic.on_way(site.key)
            forecast = self._traffic.forecasts[site.key]
            first_s = forecast.first_token_s(request, arrives_s, before, by_s=best_s - leg_s) + leg_s
            if first_s < best_s:
                best, best_s = site, first_s
        return best, best_s

    def _send(self, journey: Journey, site: Site, first_s: float, now_s: float) -> None:
        reason = "home" if site.region == self._edge.home_region else "faster"
        self._traffic.add(self._edge.send(journey, site.key, now_s, reason, (first_s - now_s) * 1000))

    def first_token(self, attempt: Attempt, now_s: float) -> None:
        """It has nothing to learn."""

    def ended(self, attempt: Attempt, outcome: Outcome, now_s: float, why: str) -> None:
        """It has nothing to learn."""

    def is_doubted(self, key: str) -> bool:
        """It sees who hangs."""
        return self._edge.sites[key].engine.is_frozen

    def tick(self, now_s: float) -> None:
        """Nothing is due."""


def oracles(edges: Mapping[str, Edge], sites: Mapping[str, Site]) -> None:
    """Let every edge see the truth."""
    traffic = Traffic(sites.values())
    for edge in edges.values():
        edge.chooser = Oracle(edge, traffic)
