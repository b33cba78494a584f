"""The router: facts and a snapshot in, a decision or a refusal out. No I/O, no clock, dice passed in.

The order of the decision (DESIGN section 2): fences, then the least suspicion, then the priority tier, then
the policy. What depends only on who asks (fences, network, home) is listed once (`routing.candidates`) and kept
per roster; what moves with load is predicted per request.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Final

from gslb.routing.affinity import Affinity
from gslb.routing.cache_wait import held_for_cache
from gslb.routing.candidates import Candidates, list_candidates
from gslb.routing.decision import Decision
from gslb.routing.explanation import explanation_of
from gslb.routing.fences import ResidencyRule
from gslb.routing.health import LAST_RESORT, State
from gslb.routing.load import Gate
from gslb.routing.panic import without_slow_start
from gslb.routing.policies import POLICIES
from gslb.routing.predict import Option, in_system
from gslb.routing.priorities import throw
from gslb.routing.refusal import NoRoom, Refusal, hold_for_room, refuse_late, refuse_saturated
from gslb.routing.rules import RoutingRules
from gslb.routing.slate import Slate
from gslb.routing.snapshot import Snapshot
from gslb.types import Explanation, Facts, ForcedState

__all__ = ["Decision", "NoRoom", "Refusal", "Router", "RoutingRules"]

_KEPT_ENTRIES: Final = 200_000
"""Bound on what candidate lists hold together (some 25 MB): every client's wish of a model makes one."""
_REGION_STRIKES: Final = 2
"""After this many failures in one exchange a region is tried last: its next endpoint would likely fail too."""


class Router:
    """Decides. One per fleet view (whose roster number tells which lists still hold); keeps nothing but gates,
    a turn counter and candidate lists."""

    def __init__(
        self, rules: RoutingRules, residency: ResidencyRule, dice: Random, affinity: Affinity | None = None
    ) -> None:
        """`affinity` tells what of a prompt is cached where; None: nothing is."""
        self.rules = rules
        self._affinity = affinity
        self._residency = residency
        self._dice = dice
        self._policy = POLICIES[rules.policy]
        self._waits_for_caches = (
            affinity is not None
            and rules.holds
            and rules.waits_for_caches
            and (rules.policy, rules.objective) == ("ttft", "latency")
        )
        self._gates: dict[str, Gate] = {}
        self._kept: dict[tuple[object, ...], Candidates] = {}
        self._kept_entries = 0
        self._kept_roster: tuple[int, int] = (-1, -1)
        self._live_by_region: dict[str, list[int]] = {}
        self._turn = 0

    # --- decisions ---------------------------------------------------------------------------------

    def route(
        self, facts: Facts, snapshot: Snapshot, now_s: float, strangers: Collection[str] = ()
    ) -> Decision | NoRoom | Refusal:
        """Choose where the first attempt of a request goes. `NoRoom` only when the rules hold requests.

        `strangers` are keys of endpoints that this request knows nothing of: added since by a reload.
        """
        candidates = self._candidates(facts, snapshot)
        if candidates.refusal is not None:
            return candidates.refusal
        return self._choose(candidates, facts, snapshot, now_s, strangers, frozenset(), is_retry=False)

    def next_attempt(
        self,
        facts: Facts,
        snapshot: Snapshot,
        now_s: float,
        tried: Collection[str],
        failures_by_region: Mapping[str, int],
    ) -> Decision | None:
        """Choose the next endpoint after a failure before the first content byte; None when none is left.

        It may be a full one: a request that has lost an attempt is not held, it has waited once already. `tried`
        holds endpoint keys (never used twice), `failures_by_region` this exchange's failures.
        """
        candidates = self._candidates(facts, snapshot)
        struck = frozenset(name for name, count in failures_by_region.items() if count >= _REGION_STRIKES)
        for avoided in (struck, frozenset()) if struck else (struck,):
            choice = self._choose(candidates, facts, snapshot, now_s, tried, avoided, is_retry=True)
            if isinstance(choice, Decision):
                return choice
        return None

    def group_of(self, facts: Facts, snapshot: Snapshot) -> Hashable:
        """What stands for all requests that find room, or none, together: while one of them finds none, no other
        of them would.

        Whether an endpoint has room is its own affair, so it comes down to who may use which endpoints. The fences
        look at the model, the pinned region, the tenant's jurisdictions, and the law where the client is, which
        here is the regions it allows; so two clients of one group pass the same fences whatever happens to the
        fleet. The home region belongs to it because a region's door is for foreign traffic only; for `nearest`,
        which looks no further, all regions in their order.
        """
        candidates = self._candidates(facts, snapshot)
        group = candidates.group
        if group is None:
            regions = {view.endpoint.region.name: view.endpoint.region for view in snapshot.endpoints}
            residency = self._residency
            lawful = frozenset(name for name, one in regions.items() if residency(facts.place, one) is None)
            near: Hashable = candidates.home
            if self.rules.policy == "nearest":
                near = tuple(dict.fromkeys(entry.region for tier in candidates.tiers for entry in tier.entries))
            group = (facts.model, facts.pinned_region, facts.tenant_jurisdictions, lawful, near)
            candidates.group = group
        return group

    def no_room(self, facts: Facts, snapshot: Snapshot, now_s: float) -> NoRoom:
        """What a request waits for that must let others go first, whether or not there is room now. Only for one
        that `route` did not refuse."""
        candidates = self._candidates(facts, snapshot)
        slate = self._slate(candidates, facts, snapshot, now_s, (), frozenset())
        tiers = candidates.tiers[: candidates.live_tiers] or candidates.tiers
        options = (slate.option(entry) for tier in tiers for entry in tier.entries)
        return self._held([option for option in options if option is not None], candidates.home)

    def last_resorts(self, facts: Facts, snapshot: Snapshot) -> int:
        """How many endpoints may be tried, once each, when none of those allowed is well; else 0."""
        candidates = self._candidates(facts, snapshot)
        return 0 if candidates.live_tiers else sum(len(tier.entries) for tier in candidates.tiers)

    def _choose(
        self,
        candidates: Candidates,
        facts: Facts,
        snapshot: Snapshot,
        now_s: float,
        tried: Collection[str],
        avoided: frozenset[str],
        *,
        is_retry: bool,
    ) -> Decision | NoRoom | Refusal:
        self._turn += 1
        slate = self._slate(candidates, facts, snapshot, now_s, tried, avoided)
        tiers = candidates.tiers if not candidates.orders else throw(candidates.orders, self._dice)
        for number, tier in enumerate(tiers):
            if number == candidates.live_tiers and (avoided or (slate.seen and not candidates.is_panic)):
                break  # well endpoints exist, only full or avoided: the ejected are not the answer to that
            slate.tier = tier
            choice = self._policy(slate)
            if choice is not None:
                decided = self._decided(choice, candidates, facts, slate, is_retry)
                return decided if is_retry else self._cache_wait(slate, choice, decided) or decided
        ramping = without_slow_start(slate.seen, now_s, self.rules.stale_after_s)
        if ramping is not None:
            return self._decided(ramping, candidates, facts, slate, is_retry)
        if slate.seen and self.rules.holds and not is_retry:
            return self._held(slate.seen, candidates.home)
        waiting = [option for option in slate.seen if not option.is_capped]
        if waiting:
            best = min(waiting, key=_by_wait)
            return self._decided(best, candidates, facts, slate, is_retry)
        if slate.seen:
            return refuse_saturated(slate.seen, candidates.home)
        return Refusal("no_healthy_region", "no endpoint is left to try", home=candidates.home)

    def _cache_wait(self, slate: Slate, choice: Option, decided: Decision | Refusal) -> NoRoom | None:
        """What the request waits for rather than go to `choice`, where there is room."""
        if not self._waits_for_caches or not slate.has_cached:
            return None
        wait = held_for_cache(slate.seen, slate.home, self.rules.damping.near_equal_ms, choice)
        return replace(wait, instead=decided) if wait is not None and isinstance(decided, Decision) else wait

    def _held(self, options: Sequence[Option], home: str) -> NoRoom:
        """What a request waits for that finds all of `options` full, or must let others go first."""
        wait = held_for_cache(options, home, self.rules.damping.near_equal_ms) if self._waits_for_caches else None
        return hold_for_room(options, home) if wait is None else wait

    def _slate(
        self,
        candidates: Candidates,
        facts: Facts,
        snapshot: Snapshot,
        now_s: float,
        tried: Collection[str],
        avoided: frozenset[str],
    ) -> Slate:
        affinity = self._affinity
        cached = None if affinity is None else affinity.expected(facts, now_s)
        return Slate(
            facts, snapshot, now_s, self.rules, candidates.home, self._dice, self._turn, self._ask_gate, tried,
            avoided, cached,
        )  # fmt: skip

    def _decided(
        self, option: Option, candidates: Candidates, facts: Facts, slate: Slate, is_retry: bool
    ) -> Decision | Refusal:
        home = candidates.home
        budget_ms = facts.budget_ms
        if self.rules.refuses_over_budget and budget_ms is not None and option.predicted_ms > budget_ms:
            return refuse_late(option.predicted_ms, budget_ms, home)
        unseen_ms = candidates.to_edge_ms
        if self.rules.edge_place is None and option.view.rtt_ms is not None:
            # Such an edge need not stand beside the client, as the decision takes it to: it knows its own way.
            unseen_ms = option.network_ms - option.view.rtt_ms
        if option.view.endpoint.region.name == home:
            return Decision(option, home, "home", unseen_ms)
        reason = "failover" if is_retry else _why_foreign(slate)
        return Decision(option, home, reason, unseen_ms)

    # --- explanations ------------------------------------------------------------------------------

    def explain(
        self, facts: Facts, snapshot: Snapshot, now_s: float, strangers: Collection[str] = ()
    ) -> tuple[Decision | NoRoom | Refusal, Explanation]:
        """The decision `route` makes, with every candidate ranked by its milliseconds and every drop named."""
        candidates = self._candidates(facts, snapshot)
        choice = self.route(facts, snapshot, now_s, strangers)
        slate = self._slate(candidates, facts, snapshot, now_s, strangers, frozenset())
        chosen = None
        if isinstance(choice, Decision):
            chosen, reason = choice.option, choice.reason
        else:
            reason = choice.code if isinstance(choice, Refusal) else _why_held(choice)
        return choice, explanation_of(chosen, reason, candidates, slate)

    # --- what is kept per roster ------------------------------------------------------------------

    def _candidates(self, facts: Facts, snapshot: Snapshot) -> Candidates:
        roster = (snapshot.generation, snapshot.roster)
        if roster != self._kept_roster or self._kept_entries > _KEPT_ENTRIES:
            self._kept.clear()
            self._kept_entries = 0
            self._kept_roster = roster
            self._live_by_region = _live_by_region(snapshot)
        # Places are interned by the locator, so identity stands for equality; the list keeps its place alive,
        # and while it lives no other object has that id.
        key = (facts.model, id(facts.place), facts.pinned_region, facts.tenant, facts.tenant_jurisdictions)
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = list_candidates(facts, snapshot, self.rules, self._residency)
            self._kept_entries += len(snapshot.endpoints) + 1
        return kept

    def _ask_gate(self, region: str, snapshot: Snapshot, now_s: float) -> tuple[bool, float]:
        """Whether a region's door for foreign traffic is shut, and the used share of its slots."""
        stale_after_s = self.rules.stale_after_s
        used = slots = 0.0
        guests = 0
        for i in self._live_by_region.get(region, ()):
            view = snapshot.endpoints[i]
            if view.slots:
                slots += view.slots
                used += in_system(view, now_s, stale_after_s)
                guests = view.guests.requests
        if not slots:
            return False, 0.0
        share = used / slots
        if guests >= self.rules.spill_cap * slots:
            return True, share
        gate = self._gates.get(region)
        if gate is None:
            gate = self._gates[region] = Gate(self.rules.gate_shut, self.rules.gate_open)
        return gate.update(share), share


def _live_by_region(snapshot: Snapshot) -> dict[str, list[int]]:
    """Indices of the endpoints that make up each region's capacity now: neither ill nor closed by hand."""
    live: dict[str, list[int]] = {}
    for i, view in enumerate(snapshot.endpoints):
        if view.suspicion < LAST_RESORT and view.forced is ForcedState.NONE:
            live.setdefault(view.endpoint.region.name, []).append(i)
    return live


def _by_wait(option: Option) -> tuple[bool, bool, float]:
    """One trial at a time: a busy probing endpoint waits behind the full ones, however short its queue. So do the
    ejected that a panic let in."""
    view = option.view
    return view.state is State.PROBING, view.suspicion >= LAST_RESORT, option.predicted_ms


def _why_held(no_room: NoRoom) -> str:
    return "no room" if no_room.waits_for is None else f"waits for its cache at {no_room.waits_for}"


def _why_foreign(slate: Slate) -> str:
    """What the policy saw at home before it went elsewhere."""
    at_home = [option for option in slate.seen if option.view.endpoint.region.name == slate.home]
    if not at_home:
        return "unhealthy"
    if not any(option.has_room for option in at_home):
        return "full"
    return "cost" if slate.rules.objective == "cost" else "faster"
