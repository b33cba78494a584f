"""A small pretend vLLM whose answers a test can change, and what a test needs to observe it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from gslb.config.schema import Config
from gslb.config.schema_fleet import EndpointConfig
from gslb.routing.health import HealthMarks
from gslb.routing.snapshot import EndpointView
from gslb.routing.view import FleetView
from gslb.tls.contexts import ClientTls
from gslb.types import Endpoint, Place, Region

METRICS = "vllm:num_requests_running 2\nvllm:num_requests_waiting 1\nvllm:kv_cache_usage_perc 0.5\n"
FRANKFURT = Place(country="DE", lat=50.11, lon=8.68)
SYDNEY = Place(country="AU", lat=-33.87, lon=151.21)

Respond = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Upstream:
    """Serves /health, /metrics and /v1/models; a handler in `handlers` replaces a path's answer.

    `hits` counts requests by path, `most_at_once` the most probes that were ever open together, `keys` the
    Authorization line last seen by path."""

    def __init__(self) -> None:
        self.hits: Counter[str] = Counter()
        self.keys: dict[str, str | None] = {}
        self.open_probes = 0
        self.most_at_once = 0
        self.metrics = METRICS
        self.models: Any = {"object": "list", "data": [{"id": "m1", "max_model_len": 4096}]}
        self.handlers: dict[str, Respond] = {}
        self._runner = web.AppRunner(self._app(), shutdown_timeout=0.1)

    def _app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._serve)
        return app

    async def start(self) -> None:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()

    async def stop(self) -> None:
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        self.hits[path] += 1
        self.keys[path] = request.headers.get("Authorization")
        is_probe = path == "/health"
        self.open_probes += is_probe
        self.most_at_once = max(self.most_at_once, self.open_probes)
        try:
            if handler := self.handlers.get(path):
                return await handler(request)
            return self._usual(path)
        finally:
            self.open_probes -= is_probe

    def _usual(self, path: str) -> web.Response:
        match path:
            case "/health":
                return web.Response()
            case "/metrics":
                return web.Response(text=self.metrics)
            case "/v1/models":
                return web.json_response(self.models)
            case _:
                return web.Response(status=404)


def answers(status: int, text: str = "", **headers: str) -> Respond:
    """A handler that always answers the same."""

    async def respond(_request: web.Request) -> web.Response:
        return web.Response(status=status, text=text, headers=headers)

    return respond


async def hangs(_request: web.Request) -> web.Response:
    """A handler that never answers."""
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


@dataclass
class Settings:
    """One generation, as the observer needs it."""

    endpoints: tuple[Endpoint, ...]
    config: Config
    endpoint_configs: Mapping[str, EndpointConfig] = field(default_factory=dict)
    endpoint_tls: Mapping[str, ClientTls] = field(default_factory=dict)
    api_keys: Mapping[str, str] = field(default_factory=dict)
    edge_place: Place | None = None


def settings(*endpoints: Endpoint, **health: Any) -> Settings:
    """Settings with quick rhythms, unless `health` says otherwise. A probe has no longer than its interval, so the
    interval is what a busy machine may take to answer one."""
    quick = {"interval": "100ms", "scrape_interval": "20ms", "models_interval": "60ms", "scrape_timeout": "2s"}
    config = Config.model_validate(
        {
            "regions": {"eu": {"location": "Frankfurt", "endpoints": [{"url": "http://127.0.0.1:1"}]}},
            "health": quick | health,
        }
    )
    return Settings(tuple(endpoints), config)


def endpoint(key: str, url: str, place: Place = FRANKFURT, models: frozenset[str] | None = None) -> Endpoint:
    return Endpoint(key=key, url=url, region=Region(key.partition("/")[0], place), models=models)


def fleet_of(*endpoints: Endpoint) -> FleetView:
    fleet = FleetView(HealthMarks())
    fleet.configure(endpoints, HealthMarks())
    return fleet


def view_of(fleet: FleetView, key: str) -> EndpointView:
    return next(view for view in fleet.snapshot.endpoints if view.endpoint.key == key)


async def until(condition: Callable[[], bool], deadline_s: float = 10.0) -> None:
    """Wait for a condition. Raises TimeoutError when it does not come true in time."""
    async with asyncio.timeout(deadline_s):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event to offer
            await asyncio.sleep(0.002)
