"""The router: facts and a snapshot in, a decision or a refusal out. No I/O, no clock, dice passed in.

The order of the decision (DESIGN section 2): fences, then the least suspicion, then the priority tier, then
the policy. What depends only on who asks (fences, network, home) is kept per roster; what moves with load is
predicted per request.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from gslb.geo.rtt_prior import rtt_prior_ms
from gslb.routing.fences import NO_MODELS_YET, ResidencyRule, fence
from gslb.routing.load import Gate
from gslb.routing.policies import POLICIES, Damping, Entry, Slate
from gslb.routing.predict import Option, in_system, predict
from gslb.routing.view import EndpointView, Snapshot
from gslb.types import Dropped, Explanation, Facts, Place, Ranked

_KEPT_CANDIDATES = 4096
_LAST_RESORT = 3
"""Suspicion of an ejected endpoint: used only when nothing better passes the fences."""
_REGION_STRIKES = 2
"""After this many failures in one exchange a region is tried last: its next endpoint would likely fail too."""


@dataclass(frozen=True, slots=True)
class RoutingRules:
    """The operator's settings the router obeys. Times in ms unless named otherwise."""

    policy: str = "ttft"
    objective: str = "latency"
    order: tuple[str, ...] = ()
    damping: Damping = field(default_factory=Damping)
    gate_shut: float = 0.85
    gate_open: float = 0.75
    stale_after_s: float = 10.0
    refuses_over_budget: bool = False
    edge_place: Place | None = None


class Decision:
    """Where to send one attempt, and the numbers behind it."""

    __slots__ = ("_to_edge_ms", "home", "option", "reason", "region")

    def __init__(self, option: Option, home: str, reason: str, to_edge_ms: float) -> None:
        self.option = option
        self._to_edge_ms = to_edge_ms
        self.region = option.view.endpoint.region.name
        self.home = home
        self.reason = reason

    @property
    def predicted_ms(self) -> float:
        """Predicted time to first token, without the tax (which nobody waits for)."""
        return self.option.total_ms - self.option.tax_ms

    @property
    def edge_ttft_ms(self) -> float:
        """The part of it that the edge itself can see: without the client's way to a placed edge."""
        return self.predicted_ms - self._to_edge_ms


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why nobody may serve this now. `code` is the contract's error code, `fence` the rule when one did it."""

    code: str
    message: str
    fence: str | None = None
    retry_after_s: float | None = None
    home: str | None = None


class Candidates:
    """What one kind of client may use: kept while the roster stands. `groups` are tried in this order."""

    __slots__ = ("dropped", "groups", "home", "live_groups", "place", "to_edge_ms")

    def __init__(self, place: Place, groups: list[list[Entry]], live_groups: int, home: str,
                 dropped: tuple[Dropped, ...], to_edge_ms: float = 0.0) -> None:  # fmt: skip
        self.place = place
        self.to_edge_ms = to_edge_ms
        self.groups = groups
        self.live_groups = live_groups
        self.home = home
        self.dropped = dropped


class Router:
    """Decides. One per edge; keeps nothing but gates, a turn counter and candidate lists."""

    def __init__(self, rules: RoutingRules, residency: ResidencyRule, dice: Random) -> None:
        self.rules = rules
        self._residency = residency
        self._dice = dice
        self._policy = POLICIES[rules.policy]
        self._gates: dict[str, Gate] = {}
        self._kept: dict[tuple[object, ...], Candidates] = {}
        self._kept_roster: tuple[int, int] = (-1, -1)
        self._turn = 0

    # --- decisions ---------------------------------------------------------------------------------

    def route(self, facts: Facts, snapshot: Snapshot, now_s: float) -> Decision | Refusal:
        """Choose where the first attempt of a request goes."""
        candidates = self._candidates(facts, snapshot)
        if not candidates.groups:
            return self._refuse_fenced(facts, snapshot, candidates)
        return self._choose(candidates, facts, snapshot, now_s, (), frozenset())

    def next_attempt(
        self,
        facts: Facts,
        snapshot: Snapshot,
        now_s: float,
        tried: Collection[str],
        failures_by_region: Mapping[str, int],
    ) -> Decision | None:
        """Choose the next endpoint after a failure before the first content byte; None when none is left.

        `tried` holds endpoint keys (never used twice), `failures_by_region` this exchange's failures.
        """
        candidates = self._candidates(facts, snapshot)
        struck = frozenset(name for name, count in failures_by_region.items() if count >= _REGION_STRIKES)
        for avoided in (struck, frozenset()) if struck else (struck,):
            choice = self._choose(candidates, facts, snapshot, now_s, tried, avoided)
            if isinstance(choice, Decision):
                return choice
        return None

    def last_resorts(self, facts: Facts, snapshot: Snapshot) -> int:
        """How many endpoints may be tried, once each, when none of those allowed is well; else 0."""
        candidates = self._candidates(facts, snapshot)
        return 0 if candidates.live_groups else sum(len(group) for group in candidates.groups)

    def _choose(
        self,
        candidates: Candidates,
        facts: Facts,
        snapshot: Snapshot,
        now_s: float,
        tried: Collection[str],
        avoided: frozenset[str],
    ) -> Decision | Refusal:
        self._turn += 1
        slate = self._slate(candidates, facts, snapshot, now_s, tried, avoided)
        for number, entries in enumerate(candidates.groups):
            if number == candidates.live_groups and slate.seen:
                break  # well endpoints exist, only full: the ejected are not the answer to that
            slate.entries = entries
            choice = self._policy(slate)
            if choice is not None:
                return self._decided(choice, candidates, facts, slate, bool(tried))
        waiting = [option for option in slate.seen if not option.is_capped]
        if waiting:
            best = min(waiting, key=lambda option: option.total_ms)
            return self._decided(best, candidates, facts, slate, bool(tried))
        if slate.seen:
            return _saturated(slate.seen, candidates.home)
        return Refusal("no_healthy_region", "no endpoint is left to try", home=candidates.home)

    def _slate(
        self,
        candidates: Candidates,
        facts: Facts,
        snapshot: Snapshot,
        now_s: float,
        tried: Collection[str],
        avoided: frozenset[str],
    ) -> Slate:
        views = snapshot.endpoints
        stale_after_s = self.rules.stale_after_s
        tokens = facts.prompt_tokens

        def option(entry: Entry) -> Option | None:
            view = views[entry.index]
            if (tried and view.endpoint.key in tried) or entry.region in avoided:
                return None
            return predict(view, entry.network_ms, entry.tax_ms, tokens, now_s, stale_after_s)

        def gate_is_shut(region: str) -> bool:
            return self._gate_is_shut(region, snapshot, now_s)

        return Slate(
            (), facts, candidates.home, self._dice, self.rules.damping, option, gate_is_shut,
            self.rules.order, self.rules.objective, self._turn,
        )  # fmt: skip

    def _decided(
        self, option: Option, candidates: Candidates, facts: Facts, slate: Slate, is_retry: bool
    ) -> Decision | Refusal:
        home = candidates.home
        if (
            self.rules.refuses_over_budget
            and facts.budget_ms is not None
            and option.total_ms - option.tax_ms > facts.budget_ms
        ):
            needed_ms = option.total_ms - option.tax_ms
            return Refusal(
                "latency_budget_unreachable",
                f"the first token would take about {needed_ms:.0f} ms, the budget is {facts.budget_ms:.0f} ms",
                retry_after_s=max(1.0, (needed_ms - facts.budget_ms) / 1000),
                home=home,
            )
        if option.view.endpoint.region.name == home:
            return Decision(option, home, "home", candidates.to_edge_ms)
        reason = "failover" if is_retry else _why_foreign(candidates, slate, self.rules.objective)
        return Decision(option, home, reason, candidates.to_edge_ms)

    # --- explanations ------------------------------------------------------------------------------

    def explain(self, facts: Facts, snapshot: Snapshot, now_s: float) -> tuple[Decision | Refusal, Explanation]:
        """The decision `route` makes, with every candidate ranked by its milliseconds and every drop named."""
        candidates = self._candidates(facts, snapshot)
        choice = self.route(facts, snapshot, now_s)
        slate = self._slate(candidates, facts, snapshot, now_s, (), frozenset())
        entries = [entry for group in candidates.groups for entry in group]
        options = [option for entry in entries if (option := slate.option(entry)) is not None]
        dropped = list(candidates.dropped)
        if candidates.live_groups:
            ill = [option for option in options if option.view.suspicion >= _LAST_RESORT]
            options = [option for option in options if option.view.suspicion < _LAST_RESORT]
            dropped += [_drop_ill(option.view) for option in ill]
        options.sort(key=lambda option: option.total_ms)
        chosen = _ranked(choice.option) if isinstance(choice, Decision) else None
        reason = choice.reason if isinstance(choice, Decision) else choice.code
        home = candidates.home or None
        return choice, Explanation(
            chosen, home, reason, tuple(_ranked(option) for option in options), tuple(dropped)
        )

    # --- what is kept per roster ------------------------------------------------------------------

    def _candidates(self, facts: Facts, snapshot: Snapshot) -> Candidates:
        roster = (snapshot.generation, snapshot.roster)
        if roster != self._kept_roster or len(self._kept) >= _KEPT_CANDIDATES:
            self._kept.clear()
            self._kept_roster = roster
        # Places are interned by the locator, so identity stands for equality; the list keeps its place alive.
        key = (facts.model, id(facts.place), facts.pinned_region, facts.tenant)
        kept = self._kept.get(key)
        if kept is None or kept.place is not facts.place:
            kept = self._kept[key] = self._list_candidates(facts, snapshot)
        return kept

    def _list_candidates(self, facts: Facts, snapshot: Snapshot) -> Candidates:
        allowed, dropped = fence(facts, snapshot, self._residency)
        if not allowed:
            return Candidates(facts.place, [], 0, "", tuple(dropped))
        index = {id(view): i for i, view in enumerate(snapshot.endpoints)}
        near = sorted(
            (self._network_ms(facts.place, view), index[id(view)], view) for view in allowed
        )  # ties: config order
        tiers = {view.endpoint.region.priority for view in allowed}
        home = next(v.endpoint.region.name for _, _, v in near if v.endpoint.region.priority == min(tiers))
        by_group: dict[tuple[int, int], list[Entry]] = {}
        for network_ms, i, view in near:
            region = view.endpoint.region
            tax_ms = 0.0 if region.name == home else self.rules.damping.foreign_tax_ms
            entry = Entry(i, region.name, network_ms, tax_ms, region.priority)
            by_group.setdefault((view.suspicion, region.priority), []).append(entry)
        order = sorted(by_group)
        live = sum(1 for suspicion, _ in order if suspicion < _LAST_RESORT)
        groups = [by_group[key] for key in order]
        return Candidates(facts.place, groups, live, home, tuple(dropped), self._to_edge_ms(facts.place))

    def _network_ms(self, place: Place, view: EndpointView) -> float:
        """Client to region. With a placed edge by way of it, the second leg measured where possible."""
        region_place = view.endpoint.region.place
        edge = self.rules.edge_place
        if edge is None:
            return rtt_prior_ms(place, region_place)
        beyond_ms = view.rtt_ms if view.rtt_ms is not None else rtt_prior_ms(edge, region_place)
        return self._to_edge_ms(place) + beyond_ms

    def _to_edge_ms(self, place: Place) -> float:
        edge = self.rules.edge_place
        return rtt_prior_ms(place, edge) if edge is not None and place.is_located else 0.0

    def _gate_is_shut(self, region: str, snapshot: Snapshot, now_s: float) -> bool:
        used = slots = 0.0
        for view in snapshot.endpoints:
            if view.endpoint.region.name == region and view.slots and view.suspicion < _LAST_RESORT:
                slots += view.slots
                used += in_system(view, now_s, self.rules.stale_after_s)
        if not slots:
            return False
        gate = self._gates.get(region)
        if gate is None:
            gate = self._gates[region] = Gate(self.rules.gate_shut, self.rules.gate_open)
        return gate.update(used / slots)

    def _refuse_fenced(self, facts: Facts, snapshot: Snapshot, candidates: Candidates) -> Refusal:
        """No endpoint passed the fences: say which fence, without telling tenants what others may use."""
        rules = {drop.rule for drop in candidates.dropped}
        past_model = [drop for drop in candidates.dropped if drop.rule != "model"]
        if not snapshot.endpoints:
            return Refusal("no_healthy_region", "no endpoint is configured")
        if facts.pinned_region is not None and all(
            view.endpoint.region.name != facts.pinned_region for view in snapshot.endpoints
        ):
            return Refusal("bad_request", f"x-gslb-region names no region of this edge: {facts.pinned_region!r}")
        if not past_model:
            if any(drop.why == NO_MODELS_YET for drop in candidates.dropped):
                return Refusal("no_healthy_region", "no endpoint has told its models yet", retry_after_s=1.0)
            return Refusal("model_not_found", f"the model {facts.model!r} does not exist", fence="model")
        for rule in ("residency", "tenant"):
            if rule in rules and all(drop.rule in (rule, "pinned", "residency") for drop in past_model):
                why = next(drop.why for drop in past_model if drop.rule == rule)
                return Refusal("residency_denied", f"no region may serve this request: {why}", fence=rule)
        fence_name = next(drop.rule for drop in past_model if drop.rule in ("forced", "pinned", "tenant"))
        return Refusal("no_healthy_region", "every region that may serve this request is closed", fence_name)


def _saturated(seen: Sequence[Option], home: str) -> Refusal:
    soonest_ms = min(
        option.view.endpoint.slot_hold_ms / max(option.view.endpoint.capacity or 1, 1) for option in seen
    )
    return Refusal(
        "saturated", "every endpoint that may serve this request is at its capacity",
        retry_after_s=max(1.0, soonest_ms / 1000), home=home,
    )  # fmt: skip


def _why_foreign(candidates: Candidates, slate: Slate, objective: str) -> str:
    live = candidates.groups[: candidates.live_groups]
    at_home = [
        option
        for group in live
        for entry in group
        if entry.region == candidates.home and (option := slate.option(entry)) is not None
    ]
    if not at_home:
        return "unhealthy"
    if not any(option.has_room and not option.is_capped for option in at_home):
        return "full"
    if all(option.view.suspicion for option in at_home):
        return "unhealthy"
    return "cost" if objective == "cost" else "faster"


def _drop_ill(view: EndpointView) -> Dropped:
    return Dropped(view.endpoint.region.name, view.endpoint.key, "health", f"{view.state.value}: {view.reason}")


def _ranked(option: Option) -> Ranked:
    view = option.view
    return Ranked(
        region=view.endpoint.region.name,
        endpoint=view.endpoint.key,
        total_ms=round(option.total_ms, 3),
        network_ms=round(option.network_ms, 3),
        queue_ms=round(option.queue_ms, 3),
        prefill_ms=round(option.prefill_ms, 3),
        tax_ms=option.tax_ms,
        has_room=option.has_room and not option.is_capped,
        note="" if view.suspicion == 0 else view.state.value,
    )


def one_line(explanation: Explanation) -> str:
    """The decision in one line of printable ASCII, for a header or a log."""
    parts = []
    if (choice := explanation.choice) is not None:
        parts.append(
            f"{choice.endpoint} {choice.total_ms:.0f}ms = network {choice.network_ms:.0f} + queue "
            f"{choice.queue_ms:.0f} + prefill {choice.prefill_ms:.0f} + tax {choice.tax_ms:.0f}"
        )
    parts.append(f"home {explanation.home or '-'} ({explanation.reason})")
    chosen = choice.endpoint if choice else None
    others = [f"{r.endpoint} {r.total_ms:.0f}ms" for r in explanation.ranked if r.endpoint != chosen]
    if others:
        parts.append("then " + ", ".join(others[:3]))
    if explanation.dropped:
        parts.append("dropped " + ", ".join(f"{d.endpoint} by {d.rule}" for d in explanation.dropped[:6]))
    return "; ".join(parts).encode("ascii", "replace").decode()
