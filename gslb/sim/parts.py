"""What a simulated edge can be without: parts of gslb taken away, to see what each of them earns, and to let other
policies run as they were published.

Most parts are rules that can be set so that they do nothing; the others are wiring: what the edge counts, is told,
or remembers. The router itself knows nothing of any of this.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import inf

from gslb.routing.hold import HoldQueue
from gslb.routing.load import InFlight, OwnLoad
from gslb.routing.rules import Damping, RoutingRules
from gslb.routing.view import FleetView
from gslb.sim.first_come import FirstCome
from gslb.sim.setting import Setting

PARTS: Mapping[str, str] = {
    "in_flight": "own requests are not counted: an endpoint's load is what was scraped, all of it others'",
    "pending_tokens": "own prompt tokens that wait for their prefill are in no predicted queue",
    "affinity": "nothing is known of sessions and prefixes: no cached tokens expected, nothing kept together",
    "damping": "the least predicted milliseconds win: no choice among near-equals, no gates, no spill cap, no tax",
    "cache_wait": "whose cache's endpoint is full goes where there is room, whatever that costs",
    "hold": "nothing is held at the edge: who finds no room goes to an engine's own queue, however long it is",
    "hold_order": "held requests go first come first served: no classes, no tenants in turn, the late not last",
    "refusal": "nobody is refused early: the late are served late",
    "learning": "prefill, step and slot times stay as declared",
    "progress": "engines that make no token are not looked for",
    "slow_start": "who comes back gets its whole share at once",
    "ejection": "failed requests and probes say nothing: no endpoint is suspected or ejected for them",
}
"""Part -> what becomes of requests without it."""

OWN_WAYS = ("skywalker", "oracle")
"""Policies that only the simulator has: they use no part of gslb, so none can be taken away."""


def labelled(policy: str, without: Collection[str]) -> str:
    """What results of `policy` without these parts are called: `ttft -affinity -hold`."""
    return " ".join([policy, *(f"-{part}" for part in PARTS if part in without)])


def reduced(setting: Setting, policy: str) -> Setting:
    """`setting` with the rules of the parts it is `without` set so that they do nothing.

    The marks of `ordered` are the policy's own and stay. Raises ValueError for a part that does not exist, and for
    a policy that has none.
    """
    without = setting.without
    if unknown := [part for part in sorted(without) if part not in PARTS]:
        raise ValueError(f"unknown part {unknown[0]!r}; known: {', '.join(PARTS)}")
    if without and policy in OWN_WAYS:
        raise ValueError(f"{policy} uses no part of gslb that could be taken away")
    rules, hold, marks = setting.rules, setting.hold, setting.marks
    if "damping" in without:
        rules = _undamped(rules, keeps_marks=policy == "ordered")
    if "hold" in without:
        rules = replace(rules, holds=False)
    if "cache_wait" in without:
        rules = replace(rules, waits_for_caches=False)
    if "refusal" in without:
        rules = replace(rules, refuses_over_budget=False)
        hold = replace(hold, refuses_late=False)
    if "progress" in without:
        marks = replace(marks, stall_s=0.0)
    if "slow_start" in without:
        marks = replace(marks, slow_start_s=0.0)
    return replace(setting, rules=rules, hold=hold, marks=marks)


def _undamped(rules: RoutingRules, *, keeps_marks: bool) -> RoutingRules:
    rules = replace(rules, damping=Damping(near_equal_ms=0.0, foreign_tax_ms=0.0, crowd_tax=0.0), spill_cap=inf)
    return rules if keeps_marks else replace(rules, gate_shut=inf, gate_open=inf)


def fleet_of(setting: Setting) -> FleetView:
    """One edge's view of the fleet, which counts what `setting` lets it count."""
    request, token = int("in_flight" not in setting.without), int("pending_tokens" not in setting.without)
    endpoints = setting.endpoints
    keys = frozenset(endpoint.key for endpoint in endpoints)

    def own_load_of(key: str) -> InFlight:
        # What is foreign in a region is the spill cap's to know.
        return OwnLoad() if (request and token) or key not in keys else PartLoad(request, token)

    if "hold" in setting.without:
        # A cap would refuse what shall queue at the engine.
        endpoints = tuple(replace(one, capacity=None, slots=one.capacity or one.slots) for one in endpoints)
    fleet = FleetView(setting.marks, assumes_models=True, own_load_of=own_load_of)
    fleet.configure(endpoints, setting.marks)
    return fleet


def queue_of(setting: Setting) -> HoldQueue:
    """Where one edge holds requests."""
    return FirstCome(setting.hold) if "hold_order" in setting.without else HoldQueue(setting.hold)


class PartLoad(OwnLoad):
    """Own load of which a request counts for `request` and a pending prompt token for `token`. Requests that are
    not counted fill no capacity."""

    __slots__ = ("_request", "_token")

    def __init__(self, request: int, token: int) -> None:
        super().__init__()
        self._request = request
        self._token = token

    def add(self, requests: int, pending_tokens: int) -> None:
        """Change both counts, as far as they are kept."""
        self.requests += requests * self._request
        self.pending_tokens += pending_tokens * self._token
