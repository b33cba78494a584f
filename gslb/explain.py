"""Explain a decision without making it: the same router over an imagined request, offline or live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from random import Random
from typing import Any

from gslb.config.settings import Settings
from gslb.geo.addresses import parse_address
from gslb.proxy.generation import routing_rules
from gslb.routing.explanation import one_line
from gslb.routing.health import HealthMarks
from gslb.routing.router import Router
from gslb.routing.snapshot import Snapshot
from gslb.routing.view import FleetView
from gslb.types import Endpoint, Facts, LoadSample

_IMAGINED_SLOTS = 100
"""Slots of an endpoint without `capacity` when --region-load imagines it loaded."""


def offline_fleet(settings: Settings, load_by_region: Mapping[str, float]) -> FleetView:
    """The fleet as if every endpoint were idle and well, but for regions given a load (share of slots)."""
    endpoints = [
        replace(endpoint, capacity=endpoint.capacity or _IMAGINED_SLOTS)
        if endpoint.region.name in load_by_region
        else endpoint
        for endpoint in settings.endpoints
    ]
    fleet = FleetView(HealthMarks(), assumes_models=True)
    fleet.configure(endpoints, HealthMarks())
    for endpoint in endpoints:
        fleet.probe_passed(endpoint.key, 0.0)
        share = load_by_region.get(endpoint.region.name)
        if share is not None:
            running = share * (endpoint.capacity or _IMAGINED_SLOTS)
            fleet.load_sampled(endpoint.key, LoadSample(at_s=0.0, running=running, waiting=0.0))
    return fleet


def imagine(
    settings: Settings, ip: str | None, model: str | None, tenant: str | None, prompt_tokens: int,
    region: str | None = None, models: frozenset[str] = frozenset(),
) -> Facts:  # fmt: skip
    """The facts of an imagined request. Without `model` it asks for one that the fleet is known to have.

    Raises ValueError for an unknown tenant or a text that is no address.
    """
    if ip is not None and parse_address(ip) is None:
        raise ValueError(f"{ip!r} is no IP address: give one such as 203.0.113.7 or 2001:db8::7")
    place = settings.locator.locate(ip or "")
    jurisdictions: frozenset[str] | None = None
    if tenant is not None:
        config = settings.config.tenants.get(tenant)
        if config is None:
            known = ", ".join(sorted(settings.config.tenants)) or "none is configured"
            raise ValueError(f"unknown tenant {tenant!r}; known: {known}")
        jurisdictions = frozenset(config.jurisdictions) if config.jurisdictions is not None else None
    name = settings.aliases.get(model, model) if model else min(models, default="")
    return Facts(
        model=name, place=place, tenant=tenant or "", prompt_tokens=prompt_tokens, is_stream=True,
        pinned_region=region, tenant_jurisdictions=jurisdictions,
    )  # fmt: skip


def declared_models(endpoints: tuple[Endpoint, ...]) -> frozenset[str]:
    """Models named in the configuration."""
    return frozenset().union(*(endpoint.models or () for endpoint in endpoints))


def explain(router: Router, facts: Facts, snapshot: Snapshot, now_s: float) -> dict[str, Any]:
    """The decision as JSON members: place, choice, home, reason, ranked, dropped, line."""
    _, explanation = router.explain(facts, snapshot, now_s)
    place = {name: value for name, value in asdict(facts.place).items() if value is not None}
    return {
        "place": place,
        "model": facts.model or None,
        "choice": asdict(explanation.choice) if explanation.choice else None,
        "home": explanation.home,
        "reason": explanation.reason,
        "ranked": [asdict(ranked) for ranked in explanation.ranked],
        "dropped": [asdict(dropped) for dropped in explanation.dropped],
        "line": one_line(explanation),
    }


def explain_offline(
    settings: Settings, *, ip: str | None, model: str | None = None, tenant: str | None = None,
    prompt_tokens: int = 0, load_by_region: Mapping[str, float] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """What `gslb explain` prints: contacts nobody. Raises ValueError for names that do not exist."""
    loads = load_by_region or {}
    regions = {region.name for region in settings.regions}
    for name in loads:
        if name not in regions:
            raise ValueError(f"unknown region {name!r}; known: {', '.join(sorted(regions))}")
    fleet = offline_fleet(settings, loads)
    facts = imagine(settings, ip, model, tenant, prompt_tokens, models=declared_models(settings.endpoints))
    router = Router(routing_rules(settings), settings.residency.deny_reason, Random(0))
    return explain(router, facts, fleet.snapshot, 0.0)
