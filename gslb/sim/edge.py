"""One gslb deployment: what the exchange and its attempts do in the live proxy, without the bytes.

    take -> sent -> (first token) -> finished
              '-> failed -> sent elsewhere | failed for good

Until the first token another endpoint may still answer, after it never. The timers are the live proxy's defaults,
on a grain of one second.
"""

from __future__ import annotations

from collections import deque
from heapq import heappush
from typing import Final, Protocol

from gslb.routing.health import Outcome
from gslb.routing.load import Ticket
from gslb.routing.retry_budget import RetryBudget
from gslb.routing.router import Decision
from gslb.sim.agenda import Agenda
from gslb.sim.journey import DOUBTED, TIMEOUT, Attempt, Fault, Journey
from gslb.sim.score import Score
from gslb.sim.setting import EdgeSpec
from gslb.sim.site import Site

COMMIT_AFTER_S: Final = 15.0
FIRST_BYTE_S: Final = 60.0
"""`timeouts.commit_after` and `timeouts.first_byte`."""
_RETRY_SHARE: Final = 0.2
_RETRY_FLOOR: Final = 10
"""`routing.failover.retry_budget`."""


class Chooser(Protocol):
    """Who decides where requests of one edge go. It answers by calling `send` or `refuse` of it, now or later."""

    @property
    def held(self) -> int:
        """Requests that wait at the edge now."""

    def take(self, journey: Journey, now_s: float) -> None:
        """A new request: send it, hold it or refuse it."""

    def again(self, journey: Journey, now_s: float, never_sent: bool) -> bool:
        """Its attempt failed before the first token: send it elsewhere; False when there is nowhere left or the
        retry budget is spent (which a request that was `never_sent` does not touch)."""

    def first_token(self, attempt: Attempt, now_s: float) -> None:
        """The first token has come back."""

    def ended(self, attempt: Attempt, outcome: Outcome, now_s: float, why: str) -> None:
        """The attempt is over."""

    def is_doubted(self, key: str) -> bool:
        """Whether the endpoint is suspect or worse."""

    def tick(self, now_s: float) -> None:
        """A second has passed."""


class Edge:
    """One edge. `home_region` is the region nearest to it, `legs_s` one way to each region."""

    def __init__(
        self, spec: EdgeSpec, legs_s: dict[str, float], sites: dict[str, Site], agenda: Agenda, score: Score
    ) -> None:
        self.spec = spec
        self.legs_s = legs_s
        self.home_region = min(legs_s, key=lambda name: legs_s[name])
        self.sites = sites
        self.score = score
        self._agenda = agenda
        self.retry_budget = RetryBudget(_RETRY_SHARE, _RETRY_FLOOR)
        self._silent: deque[Attempt] = deque()
        """In the order they were sent: without a first token, not committed."""
        self._late: list[Attempt] = []
        """Those that have been silent for COMMIT_AFTER_S."""

    chooser: Chooser
    """Set by the world."""

    # --- requests ----------------------------------------------------------------------------------

    def take(self, now_s: float, journey: Journey) -> None:
        """A request reaches the edge."""
        journey.arrived_s = now_s
        self.retry_budget.request(now_s)
        self.chooser.take(journey, now_s)

    def send(
        self,
        journey: Journey,
        key: str,
        now_s: float,
        reason: str,
        predicted_ms: float | None = None,
        decision: Decision | None = None,
        ticket: Ticket | None = None,
        way_out_s: float | None = None,
    ) -> Attempt:
        """Start an attempt at endpoint `key`, `way_out_s` from where the request is now (None: the edge)."""
        site = self.sites[key]
        leg_s = self.legs_s[site.region] * journey.wan_factor
        attempt = Attempt(journey, site, leg_s, now_s, reason, predicted_ms, decision, ticket)
        journey.attempts += 1
        journey.tried = (*journey.tried, key) if journey.tried else (key,)
        self._silent.append(attempt)
        agenda = self._agenda
        arrives_s = now_s + (leg_s if way_out_s is None else way_out_s)
        heappush(agenda.heap, (arrives_s, agenda.turn(), site.receive, attempt))
        return attempt

    def refuse(self, journey: Journey, reason: str) -> None:
        """Nobody will serve it."""
        self.score.shed(journey, reason)

    def first_token(self, now_s: float, attempt: Attempt) -> None:
        """The first token is here: from now on no other endpoint may answer."""
        if attempt.is_over:
            return
        attempt.first_s = attempt.journey.first_s = now_s
        if attempt.ticket is not None:
            attempt.ticket.first_token(now_s)
        self.chooser.first_token(attempt, now_s)

    def finished(self, now_s: float, attempt: Attempt) -> None:
        """The answer is whole."""
        if attempt.is_over:
            return
        self._close(attempt, Outcome.SUCCESS, now_s, "")
        self.score.completed(attempt, now_s)

    def failed(self, now_s: float, what: tuple[Attempt, Fault]) -> None:
        """An attempt has failed: go elsewhere while nothing has been answered."""
        attempt, fault = what
        if attempt.is_over:
            return
        has_moved = self._move_on(attempt, fault, now_s)
        self._close(attempt, fault.outcome, now_s, fault.why)
        if not has_moved:
            self.score.failed(attempt.journey, fault.why)

    def _move_on(self, attempt: Attempt, fault: Fault, now_s: float) -> bool:
        """Start the next attempt if there may be one: decided, as in the live proxy, before this one ends."""
        if attempt.first_s is not None or attempt.is_committed or fault.is_final:
            return False
        journey = attempt.journey
        failures = journey.failures_by_region
        if failures is None:
            failures = journey.failures_by_region = {}
        region = attempt.site.region
        failures[region] = failures.get(region, 0) + 1
        if self.chooser.again(journey, now_s, fault.never_sent):
            return True
        failures[region] -= 1
        return False

    def _give_up(self, attempt: Attempt, now_s: float) -> None:
        """Close the connection of an attempt that has been silent for too long."""
        self._agenda.at(now_s + attempt.leg_s, attempt.site.abandon, attempt)

    def _close(self, attempt: Attempt, outcome: Outcome, now_s: float, why: str) -> None:
        attempt.is_over = True
        if attempt.ticket is not None:
            attempt.ticket.close()
        self.chooser.ended(attempt, outcome, now_s, why)

    # --- time --------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """A second has passed: look after those that are silent."""
        silent = self._silent
        while silent:
            attempt = silent[0]
            if attempt.first_s is None and not attempt.is_over:
                if now_s - attempt.sent_s < COMMIT_AFTER_S:
                    break
                attempt.is_committed = not self.chooser.is_doubted(attempt.site.key)
                self._late.append(attempt)
            silent.popleft()
        if self._late:
            self._late = [one for one in self._late if self._stays_late(one, now_s)]
        self.chooser.tick(now_s)

    def _stays_late(self, attempt: Attempt, now_s: float) -> bool:
        """Whether it is still waited for. One that was doubted when its head was due goes elsewhere as soon as
        somebody else may be asked; the others are committed to their endpoint."""
        if attempt.is_over or attempt.first_s is not None:
            return False
        if now_s - attempt.sent_s >= FIRST_BYTE_S:
            self._give_up(attempt, now_s)
            self.failed(now_s, (attempt, TIMEOUT))
            return False
        if attempt.is_committed:
            return True
        if not self.chooser.is_doubted(attempt.site.key):
            attempt.is_committed = True
            return True
        if not self._move_on(attempt, DOUBTED, now_s):
            return True
        self._give_up(attempt, now_s)
        self._close(attempt, DOUBTED.outcome, now_s, DOUBTED.why)
        return False
