"""Refusals: why nobody may, or can, serve a request now, in words a client may read.

Which fence closed the way is told; what other tenants or models there are is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from gslb.routing.decision import Decision
from gslb.routing.fences import ResidencyRule, fence
from gslb.routing.predict import Option
from gslb.routing.snapshot import Snapshot
from gslb.types import Facts

_LAWS = ("residency", "tenant")
"""Rules of the `fences` table that forbid for good; what the operator's hand closes may open again."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why nobody may serve this now. `code` is the contract's error code, `fence` the rule when one did it."""

    code: str
    message: str
    fence: str | None = None
    retry_after_s: float | None = None
    home: str | None = None


@dataclass(frozen=True, slots=True)
class NoRoom:
    """Who may serve this is well, but full: hold the request at the edge.

    `least_ms` is what its first token would take at the best of them once a slot is free there (network, decoding
    steps and prefill), `drain_per_s` how many slots come free in a second at all of them together.

    With `waits_for` it is one endpoint that it waits for, since that has its prompt cached. Where another has
    room, waiting longer than `worth_ms` costs more than going there `instead`.
    """

    home: str
    least_ms: float
    drain_per_s: float
    waits_for: str | None = None
    worth_ms: float = inf
    instead: Decision | None = None


def refuse_fenced(facts: Facts, snapshot: Snapshot, residency: ResidencyRule) -> Refusal:
    """No endpoint passed the fences: say which one it was.

    Of a pinned request only the region it names is judged: what closes the others is beside the point.
    """
    if not snapshot.endpoints:
        return Refusal("no_healthy_region", "no endpoint is configured")
    # An endpoint that has not told its models yet may be the right one: judge it by the other rules.
    hopeful, dropped = fence(facts, replace(snapshot, assumes_models=True), residency)
    if hopeful:
        message = "no endpoint that may serve this request has told its models yet"
        return Refusal("no_healthy_region", message, "model", retry_after_s=1.0)
    where = ""
    if facts.pinned_region is not None:
        where = f" in region {facts.pinned_region}"
        dropped = [drop for drop in dropped if drop.region == facts.pinned_region]
        if not dropped:
            return Refusal("bad_request", f"x-gslb-region names no region of this edge: {facts.pinned_region!r}")
    serving = [drop for drop in dropped if drop.rule != "model"]
    if not serving:
        return Refusal("model_not_found", f"the model {facts.model!r} does not exist{where}", "model")
    closed = next((drop for drop in serving if drop.rule not in _LAWS), None)
    if closed is not None:
        return Refusal("no_healthy_region", "every region that may serve this request is closed", closed.rule)
    first = serving[0]
    return Refusal("residency_denied", f"no region may serve this request: {first.why}", first.rule)


def refuse_saturated(seen: Sequence[Option], home: str) -> Refusal:
    """Every endpoint in `seen` runs as many requests of this edge as its capacity allows."""
    soonest_ms = min(option.view.slot_hold_ms / max(option.view.endpoint.capacity or 1, 1) for option in seen)
    return Refusal(
        "saturated", "every endpoint that may serve this request is at its capacity",
        retry_after_s=max(1.0, soonest_ms / 1000), home=home,
    )  # fmt: skip


def hold_for_room(seen: Sequence[Option], home: str) -> NoRoom:
    """Every endpoint in `seen` (each once or more often) is full for now."""
    by_key = {option.view.endpoint.key: option for option in seen}
    options = by_key.values()
    drain_per_s = sum(option.slots_per_s for option in options)
    return NoRoom(home, min(option.placed_ms for option in options), drain_per_s)


def refuse_waiting(wait_s: float, home: str) -> Refusal:
    """Nobody has room and the request may not wait here (any longer): in `wait_s` it would be its turn."""
    message = "every endpoint that may serve this request is full"
    return Refusal("saturated", message, retry_after_s=max(1.0, wait_s), home=home)


def refuse_hopeless(wait_s: float, needs_ms: float, budget_ms: float, longest_s: float, home: str) -> Refusal:
    """Held, it would be its turn in `wait_s`, and its first token then takes `needs_ms`: too late for its budget.

    It would have been in time behind a line that is shorter by the excess; or never, and then the best it can do
    is to come when there is room. After `longest_s` nobody waits any more who waits now.
    """
    needed_ms = wait_s * 1000 + needs_ms
    return Refusal(
        "latency_budget_unreachable",
        f"every endpoint that may serve this request is full: the first token would take about {needed_ms:.0f} "
        f"ms, the budget is {budget_ms:.0f} ms",
        retry_after_s=max(1.0, min(wait_s, (needed_ms - budget_ms) / 1000, longest_s)),
        home=home,
    )


def refuse_late(needed_ms: float, budget_ms: float, home: str) -> Refusal:
    """The quickest answer would need `needed_ms` to its first token, more than the budget."""
    return Refusal(
        "latency_budget_unreachable",
        f"the first token would take about {needed_ms:.0f} ms, the budget is {budget_ms:.0f} ms",
        retry_after_s=max(1.0, (needed_ms - budget_ms) / 1000),
        home=home,
    )
