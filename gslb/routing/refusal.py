"""Refusals: why nobody may, or can, serve a request now, in words a client may read.

Which fence closed the way is told; what other tenants or models there are is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gslb.routing.fences import ResidencyRule, fence
from gslb.routing.predict import Option
from gslb.routing.view import Snapshot
from gslb.types import Dropped, Facts

_LAWS = ("residency", "tenant")
"""Rules of the `fences` table that forbid for good; the others close for a while or at the client's wish."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why nobody may serve this now. `code` is the contract's error code, `fence` the rule when one did it."""

    code: str
    message: str
    fence: str | None = None
    retry_after_s: float | None = None
    home: str | None = None


def refuse_fenced(
    facts: Facts, snapshot: Snapshot, residency: ResidencyRule, dropped: Sequence[Dropped]
) -> Refusal:
    """No endpoint passed the fences: say which one it was. `dropped` is the whole fleet, each with its rule.

    Of a pinned request only the region it names is judged: what closes the others is beside the point.
    """
    if not snapshot.endpoints:
        return Refusal("no_healthy_region", "no endpoint is configured")
    if facts.pinned_region is not None:
        dropped = [drop for drop in dropped if drop.region == facts.pinned_region]
        if not dropped:
            return Refusal("bad_request", f"x-gslb-region names no region of this edge: {facts.pinned_region!r}")
    unlearnt, _ = fence(facts, replace(snapshot, assumes_models=True), residency)
    if unlearnt:
        return Refusal("no_healthy_region", "no endpoint has told its models yet", "model", retry_after_s=1.0)
    serving = [drop for drop in dropped if drop.rule != "model"]
    if not serving:
        where = "" if facts.pinned_region is None else f" in region {facts.pinned_region}"
        return Refusal("model_not_found", f"the model {facts.model!r} does not exist{where}", "model")
    forbidden = [drop for drop in serving if drop.rule in _LAWS]
    if len(forbidden) < len(serving):
        closed = next(drop for drop in serving if drop not in forbidden)
        return Refusal("no_healthy_region", "every region that may serve this request is closed", closed.rule)
    first = forbidden[0]
    return Refusal("residency_denied", f"no region may serve this request: {first.why}", first.rule)


def refuse_saturated(seen: Sequence[Option], home: str) -> Refusal:
    """Every endpoint in `seen` runs as many requests of this edge as its capacity allows."""
    soonest_ms = min(
        option.view.endpoint.slot_hold_ms / max(option.view.endpoint.capacity or 1, 1) for option in seen
    )
    return Refusal(
        "saturated", "every endpoint that may serve this request is at its capacity",
        retry_after_s=max(1.0, soonest_ms / 1000), home=home,
    )  # fmt: skip


def refuse_late(needed_ms: float, budget_ms: float, home: str) -> Refusal:
    """The quickest answer would need `needed_ms` to its first token, more than the budget."""
    return Refusal(
        "latency_budget_unreachable",
        f"the first token would take about {needed_ms:.0f} ms, the budget is {budget_ms:.0f} ms",
        retry_after_s=max(1.0, (needed_ms - budget_ms) / 1000),
        home=home,
    )
