"""The status page as JSON: what is known of every endpoint, and how old that knowledge is."""

from __future__ import annotations

from math import isfinite
from typing import Any

from gslb.admin.edge import AdminEdge
from gslb.geo.rtt_prior import rtt_prior_ms
from gslb.routing.snapshot import EndpointView
from gslb.types import LoadSample, Place, Region

_PLACE_MEMBERS = ("country", "subdivision", "city", "continent", "lat", "lon", "source")
_LOAD_MEMBERS = (
    "running",
    "waiting",
    "kv_usage",
    "prompt_tokens_total",
    "generation_tokens_total",
    "prefix_hits_total",
    "prefix_queries_total",
    "own_running_then",
)


def edge_status(edge: AdminEdge) -> dict[str, Any]:
    """The whole status: times in seconds (`_s`) or milliseconds (`_ms`), absent knowledge as null."""
    settings = edge.settings()
    is_ready, detail = edge.is_ready()
    by_region: dict[str, list[EndpointView]] = {}
    for view in edge.fleet.snapshot.endpoints:
        by_region.setdefault(view.endpoint.region.name, []).append(view)
    return {
        "generation": edge.counters.config_generation,
        "reload_failures": edge.counters.config_reload_failures,
        "ready": is_ready,
        "ready_detail": dict(detail),
        "edge": {
            "name": settings.config.edge.name,
            "place": _place(settings.edge_place),
            "open_connections": edge.counters.open_connections,
            "open_exchanges": edge.counters.open_exchanges,
            "queue_depth": edge.counters.queue_depth,
            **edge.status(),
        },
        "regions": [_region(edge, region, by_region.get(region.name, [])) for region in settings.regions],
    }


def upstream_states(edge: AdminEdge) -> dict[str, str]:
    """Endpoint key -> health state; the operator's hand, where there is one, behind a comma."""
    return {
        view.endpoint.key: view.state.value + ("" if view.forced.value == "none" else f", {view.forced.value}")
        for view in edge.fleet.snapshot.endpoints
    }


def _region(edge: AdminEdge, region: Region, views: list[EndpointView]) -> dict[str, Any]:
    place = edge.settings().edge_place
    return {
        "name": region.name,
        "provider": region.provider,
        "priority": region.priority,
        "jurisdictions": sorted(region.jurisdictions),
        "certifications": sorted(region.certifications),
        "place": _place(region.place),
        "rtt_prior_ms": None if place is None else round(rtt_prior_ms(place, region.place), 1),
        "endpoints": [_endpoint(edge, view) for view in views],
    }


def _endpoint(edge: AdminEdge, view: EndpointView) -> dict[str, Any]:
    key = view.endpoint.key
    problems = edge.observer.problems(key)
    return {
        "key": key,
        "url": view.endpoint.url,
        "state": view.state.value,
        "reason": view.reason,
        "forced": view.forced.value,
        "models": None if view.models is None else sorted(view.models),
        "in_flight": view.own.requests,
        "pending_tokens": view.own.pending_tokens,
        "others": view.others,
        "slots": view.slots,
        "share": round(view.share, 3),
        "capacity": view.endpoint.capacity,
        "load": None if view.load is None else _load(view.load, edge.now_s()),
        "scrape_error": edge.fleet.load_error(key),
        "rtt_measured_ms": _rounded(edge.observer.rtt_ms(key)),
        "rtt_used_ms": _rounded(view.rtt_ms),
        "notes": [f"{topic}: {text}" for topic, text in sorted(problems.items())],
    }


def _load(load: LoadSample, now_s: float) -> dict[str, Any]:
    age_s = now_s - load.at_s
    return {
        "age_s": round(max(0.0, age_s), 3) if isfinite(age_s) else None,
        **{member: getattr(load, member) for member in _LOAD_MEMBERS},
    }


def _place(place: Place | None) -> dict[str, Any] | None:
    return None if place is None else {member: getattr(place, member) for member in _PLACE_MEMBERS}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
