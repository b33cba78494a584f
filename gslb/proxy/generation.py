"""What every exchange needs, bound together: one `Generation` per configuration, one `Door` per process.

An exchange keeps the generation it started under to its end, so one request sees one configuration (FC-30).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from math import ceil
from typing import Any

import orjson

from gslb.config.schema_fleet import Health, Routing
from gslb.config.settings import Settings
from gslb.counters import Counters
from gslb.errors import ApiError
from gslb.policy.quota import ConcurrencyLimit, ConnectionLimit
from gslb.policy.rate import RateLimit
from gslb.proxy.access_log import AccessLog
from gslb.proxy.deadlines import Deadlines
from gslb.proxy.hedge import Hedging
from gslb.proxy.holding import Holding
from gslb.proxy.pool import EndpointPool
from gslb.proxy.record import LogValues
from gslb.routing.affinity import Affinity
from gslb.routing.health import HealthMarks
from gslb.routing.load import InFlight
from gslb.routing.making import Making
from gslb.routing.retry_budget import RetryBudget
from gslb.routing.router import Router
from gslb.routing.rules import Damping, RoutingRules
from gslb.routing.snapshot import Snapshot
from gslb.routing.view import FleetView
from gslb.types import Place
from gslb.wire.body_budget import BodyBudget
from gslb.wire.openai import merge_models


@dataclass(slots=True)
class Door:
    """What outlives configurations: the fleet's view, counts, log, timers, and what is in use of limits."""

    loop: asyncio.AbstractEventLoop
    fleet: FleetView
    counters: Counters
    access_log: AccessLog[LogValues]
    deadlines: Deadlines
    wall_s: Callable[[], float]
    on_doubt: Callable[[str], None]
    """Called with an endpoint key when traffic changed its health: a reason to probe at once."""
    concurrency: ConcurrencyLimit
    rates: RateLimit
    addresses: ConnectionLimit
    body_budget: BodyBudget
    connections: InFlight
    """Client connections, counted as requests; with several workers, those of all of them."""
    holding: Holding
    affinity: Affinity
    """What is cached where, as far as this process's requests tell."""
    processes: int = 1
    """How many serve clients, this one included: they divide what is bounded for the edge as a whole."""
    is_stopping: bool = False
    """Answers are the last ones of their connections, and new requests are refused unless `hands_over`."""
    hands_over: bool = False
    """Another process takes over: no client may notice, so requests that still come are served."""


def routing_rules(settings: Settings) -> RoutingRules:
    """The router's settings from the configuration."""
    return rules_of(settings.config.routing, settings.config.health, settings.edge_place)


def rules_of(routing: Routing, health: Health, edge_place: Place | None) -> RoutingRules:
    """The router's settings from the sections about it (seconds there, milliseconds here)."""
    marks = (0.7, 0.5) if routing.policy == "ordered" else (routing.gate.shut, routing.gate.open)
    return RoutingRules(
        policy=routing.policy,
        objective=routing.objective,
        order=tuple(routing.order),
        damping=Damping(routing.near_equal * 1000, routing.foreign_tax * 1000),
        gate_shut=marks[0],
        gate_open=marks[1],
        spill_cap=routing.spill_cap,
        overprovisioning=routing.overprovisioning,
        stale_after_s=health.stale_after,
        panic_below=health.panic,
        refuses_over_budget=routing.over_budget == "refuse",
        holds=routing.hold.max_requests > 0,
        edge_place=edge_place,
    )


def health_marks(settings: Settings) -> HealthMarks:
    """The health machine's thresholds from the configuration."""
    return marks_of(settings.config.health)


def marks_of(health: Health) -> HealthMarks:
    """The health machine's thresholds from the section about it."""
    return HealthMarks(
        fall=health.fall, rise=health.rise, passive_fall=health.passive_fall, ejection_s=health.ejection,
        window_s=health.fall * health.interval,
        min_success=health.min_success, ratio_samples=health.ratio_samples, ratio_window_s=health.ratio_window,
        stall_s=max(health.stall_after, 2 * health.scrape_interval) if health.stall_after else 0.0,
        kept_capacity=health.kept_capacity, slow_start_s=health.slow_start,
    )  # fmt: skip


class Generation:
    """One configuration made ready for the data path. Nothing in it changes but caches."""

    def __init__(self, door: Door, settings: Settings, pools: Mapping[str, EndpointPool], making: Making) -> None:
        config = settings.config
        self.door = door
        self.settings = settings
        self.timeouts = config.timeouts
        self.limits = config.limits
        self.failover = config.routing.failover
        self.affinity = config.routing.affinity
        self.router = making.make(
            Router, routing_rules(settings), settings.residency.deny_reason, making.dice, door.affinity
        )
        self.pools = pools
        budget = config.routing.failover.retry_budget
        self.retry_budget = RetryBudget(budget.share, ceil(budget.floor / door.processes))
        hedge = config.routing.failover.hedge
        self.hedging = None if hedge.after is None else Hedging(hedge.after, hedge.share)
        self.budget_ms = None if config.routing.latency_budget is None else config.routing.latency_budget * 1000
        self._models: dict[tuple[int, frozenset[str] | None], list[dict[str, Any]]] = {}
        self._strangers: tuple[int, frozenset[str]] = (-1, frozenset())

    def strangers(self, snapshot: Snapshot) -> frozenset[str]:
        """Keys of endpoints that a later configuration has added: not for exchanges that began under this one."""
        number, strangers = self._strangers
        if number != snapshot.generation:
            strangers = frozenset(view.endpoint.key for view in snapshot.endpoints).difference(self.pools)
            self._strangers = (snapshot.generation, strangers)
        return strangers

    def models(self, only: frozenset[str] | None) -> list[dict[str, Any]]:
        """The merged model list, from memory; `only` limits it to a tenant's models."""
        key = (self.door.fleet.snapshot.roster, only)
        merged = self._models.get(key)
        if merged is None:
            if len(self._models) > 256:
                self._models.clear()
            merged = merge_models(self.door.fleet.model_cards(), self.settings.aliases, only)
            self._models[key] = merged
        return merged

    def models_answer(self, model_id: str | None, only: frozenset[str] | None) -> bytes:
        """The body of `/v1/models` or `/v1/models/{id}`. Raises ApiError `model_not_found`."""
        models = self.models(only)
        if model_id is None:
            return orjson.dumps({"object": "list", "data": models})
        for model in models:
            if model["id"] == model_id:
                return orjson.dumps(model)
        raise ApiError("model_not_found", f"the model {model_id!r} does not exist", param="model")


def build_pools(
    loop: asyncio.AbstractEventLoop,
    settings: Settings,
    kept: Mapping[str, EndpointPool],
    previous: Settings | None,
) -> dict[str, EndpointPool]:
    """A pool per endpoint. Pools whose endpoint, key, TLS files and timeouts are unchanged are kept with their
    connections."""
    timeouts = settings.config.timeouts
    pools: dict[str, EndpointPool] = {}
    for endpoint in settings.endpoints:
        key = endpoint.key
        config = settings.endpoint_configs[key]
        tls = settings.endpoint_tls.get(key)
        if (
            previous is not None
            and key in kept
            and previous.endpoint_configs.get(key) == config
            and previous.api_keys.get(key) == settings.api_keys.get(key)
            and previous.endpoint_tls.get(key) == tls
            and previous.config.timeouts == timeouts
        ):
            pools[key] = kept[key]
            continue
        pools[key] = EndpointPool(
            loop, config.url,
            api_key=settings.api_keys.get(key),
            tls=None if tls is None else tls.context, tls_server_name=config.tls_server_name,
            connect_s=timeouts.connect, idle_s=timeouts.upstream_idle, dns_s=timeouts.dns,
        )  # fmt: skip
    return pools


class RequestIds:
    """Request ids for requests that bring no good one: a random prefix per process and a counter."""

    def __init__(self) -> None:
        self._prefix = os.urandom(6).hex()
        self._count = 0

    def next_id(self) -> bytes:
        """A new id of `[A-Za-z0-9-]`."""
        self._count += 1
        return b"%b-%x" % (self._prefix.encode(), self._count)


class HttpDate:
    """The Date field, made once a second."""

    def __init__(self, wall_s: Callable[[], float]) -> None:
        self._wall_s = wall_s
        self._second = -1
        self._text = b""

    def __call__(self) -> bytes:
        second = int(self._wall_s())
        if second != self._second:
            self._second = second
            self._text = formatdate(second, usegmt=True).encode()
        return self._text
