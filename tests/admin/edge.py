"""An edge to administer that needs no proxy, no observer and no network."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from gslb.admin.api import AdminServer
from gslb.admin.edge import ExplainQuery
from gslb.config.schema import Config
from gslb.counters import Counters
from gslb.routing.health import HealthMarks
from gslb.routing.view import FleetView
from gslb.types import Endpoint, ForcedState, LoadSample, Place, Region

TOKEN = "operator-token"
EU = Region("eu", Place(country="DE", lat=50.11, lon=8.68), frozenset({"EU"}), provider="aws")
AP = Region("ap", Place(country="AU", lat=-33.87, lon=151.21))


@dataclass
class Settings:
    config: Config
    regions: tuple[Region, ...]
    edge_place: Place | None
    admin_token: str | None


class Observations:
    """What an observer would know."""

    def __init__(self) -> None:
        self.rtts: dict[str, float] = {}
        self.wrongs: dict[str, dict[str, str]] = {}

    def rtt_ms(self, key: str) -> float | None:
        return self.rtts.get(key)

    def problems(self, key: str) -> Mapping[str, str]:
        return self.wrongs.get(key, {})


class Edge:
    """A running edge, as the admin API sees it."""

    def __init__(self) -> None:
        marks = HealthMarks()
        self.fleet = FleetView(marks)
        self.counters = Counters()
        self.observer = Observations()
        self.current = Settings(_config(), (EU, AP), EU.place, TOKEN)
        self.ready: tuple[bool, Mapping[str, Any]] = (True, {})
        self.problems: list[str] = []
        self.queries: list[ExplainQuery] = []
        self.reloads = 0
        self.syncs = 0
        self.workers: list[dict[str, Any]] = []
        self.fleet.configure(
            [
                Endpoint("eu/a", "http://10.0.0.1:8000", EU, capacity=64),
                Endpoint("eu/b", "http://10.0.0.2:8000", EU),
                Endpoint("ap/a", "http://10.0.1.1:8000", AP),
            ],
            marks,
        )

    def settings(self) -> Settings:
        return self.current

    def now_s(self) -> float:
        return 1000.0

    def is_ready(self) -> tuple[bool, Mapping[str, Any]]:
        return self.ready

    def status(self) -> Mapping[str, Any]:
        return {"version": "0.1.0", "workers": self.workers} if self.workers else {"version": "0.1.0"}

    def explain(self, query: ExplainQuery) -> Mapping[str, Any]:
        self.queries.append(query)
        if query.model == "none":
            raise ValueError("no endpoint serves a model called none")
        if query.model == "bug":
            raise ZeroDivisionError
        return {"choice": "eu/a"}

    def reload(self) -> list[str]:
        self.reloads += 1
        return self.problems

    async def synced(self) -> None:
        self.syncs += 1

    def force(self, key: str, forced: ForcedState) -> bool:
        return self.fleet.force(key, forced)

    def learn(self) -> None:
        """Let the edge know something of its endpoints."""
        self.fleet.probe_passed("eu/a", 990.0)
        self.fleet.models_learnt("eu/a", [{"id": "m1"}])
        self.fleet.load_sampled("eu/a", LoadSample(998.5, running=10.0, waiting=2.0, kv_usage=0.5))
        own = self.fleet.own_load("eu/a")
        assert own is not None
        own.open_ticket(300)
        self.observer.rtts["eu/a"] = 12.5
        self.fleet.load_failed("eu/b", "no answer within 1 s")
        self.observer.wrongs["eu/b"] = {"scrape": "no answer within 1 s"}


def _config() -> Config:
    return Config.model_validate(
        {
            "edge": {"name": "fra-1", "location": "Frankfurt"},
            "regions": {
                "eu": {"location": "Frankfurt", "endpoints": [{"url": "http://10.0.0.1:8000"}]},
                "ap": {"location": "Sydney", "endpoints": [{"url": "http://10.0.1.1:8000"}]},
            },
        }
    )


@asynccontextmanager
async def serving(edge: Edge) -> AsyncIterator[str]:
    """The admin API of `edge` on a free port: its URL."""
    server = AdminServer(edge)
    await server.start("127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        await server.stop()
