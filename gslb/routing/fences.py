"""Fences: hard rules. They bind first choices, retries and last resorts alike and are never relaxed.

`RULES` is a table of named, plain functions; each returns None (may pass) or one plain sentence (why not).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gslb.policy.residency import tenant_deny_reason
from gslb.routing.snapshot import EndpointView, Snapshot
from gslb.types import Dropped, Facts, ForcedState, Place, Region

ResidencyRule = Callable[[Place, Region], str | None]
"""`policy.residency.ResidencyFence.deny_reason`, handed in: routing does not know its laws."""

NO_MODELS_YET: Final = "its model list has not been learnt yet"


@dataclass(frozen=True, slots=True)
class FenceContext:
    """What the rules look at beside facts and endpoint."""

    residency: ResidencyRule
    assumes_models: bool


Rule = Callable[[Facts, EndpointView, FenceContext], str | None]


def _model(facts: Facts, view: EndpointView, context: FenceContext) -> str | None:
    if view.models is None:
        return None if context.assumes_models else NO_MODELS_YET
    return None if facts.model in view.models else f"does not serve model {facts.model!r}"


def _forced(_facts: Facts, view: EndpointView, _context: FenceContext) -> str | None:
    return None if view.forced is ForcedState.NONE else f"{view.forced.value} by the operator"


def _pinned(facts: Facts, view: EndpointView, _context: FenceContext) -> str | None:
    name = view.endpoint.region.name
    if facts.pinned_region is None or facts.pinned_region == name:
        return None
    return f"the request is pinned to {facts.pinned_region}"


def _tenant(facts: Facts, view: EndpointView, _context: FenceContext) -> str | None:
    return tenant_deny_reason(facts.tenant_jurisdictions, view.endpoint.region)


def _residency(facts: Facts, view: EndpointView, context: FenceContext) -> str | None:
    return context.residency(facts.place, view.endpoint.region)


RULES: tuple[tuple[str, Rule], ...] = (
    ("model", _model),
    ("residency", _residency),
    ("tenant", _tenant),
    ("pinned", _pinned),
    ("forced", _forced),
)
"""In this order; the first that objects names the drop. `tried` is applied per attempt by the router."""


def fence(facts: Facts, snapshot: Snapshot, residency: ResidencyRule) -> tuple[list[EndpointView], list[Dropped]]:
    """Split the fleet into endpoints this request may use and those dropped, with rule and reason."""
    context = FenceContext(residency, snapshot.assumes_models)
    allowed: list[EndpointView] = []
    dropped: list[Dropped] = []
    for view in snapshot.endpoints:
        for name, rule in RULES:
            why = rule(facts, view, context)
            if why is not None:
                dropped.append(Dropped(view.endpoint.region.name, view.endpoint.key, name, why))
                break
        else:
            allowed.append(view)
    return allowed, dropped
