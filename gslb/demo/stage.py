"""The stage: mock servers that play three regions, and the real edge in front of them, all on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from gslb.admin.edge import ExplainQuery
from gslb.config.load import check_text
from gslb.config.settings import Settings
from gslb.counters import Counters
from gslb.demo.world import COUNTRIES, MODEL, SITES, Site, rtt_ms
from gslb.mock.settings import MockSettings
from gslb.mock.vllm import MockVllm
from gslb.routing.health import State
from gslb.routing.view import FleetView

PREFILL_MS_PER_TOKEN = 0.1
_ITL_MS = 40.0
_PROBE_RTT_MS = 2.0
"""Round trip of whoever is no client: the edge's own probes and scrapes."""

_CONFIG = """\
listen: 127.0.0.1:0
admin: 127.0.0.1:0
workers: 1
geo:
  trusted_proxies: [127.0.0.1]
regions:
{regions}
routing:
  prefill_per_token: {prefill}ms
  slot_hold: 1s
health:
  interval: 400ms
  timeout: 400ms
  ejection: 3s
timeouts:
  first_byte: 8s
  grace: 1s
residency:
  rules:
    - countries: [EU]
      jurisdictions: [EU]
observability:
  access_log: "off"
"""
"""Probes are quick, so that a return is noticed within two of them. `ejection` outlasts `fall` failed ones: by
then probes see the outage too, and good ones may end it."""


class DemoEdge(Protocol):
    """The edge as the demo sees it (`app.Edge`)."""

    fleet: FleetView

    @property
    def counters(self) -> Counters: ...

    @property
    def port(self) -> int: ...

    async def start(self) -> None: ...

    async def stop(self, grace_s: float | None = None) -> None: ...

    def explain(self, query: ExplainQuery) -> Mapping[str, Any]: ...


MakeEdge = Callable[[Settings], DemoEdge]
"""Called inside the running event loop."""


class Stage:
    """Three regions of mocks and an edge. `start`, then `kill` and `revive` regions by name, then `stop`."""

    def __init__(self, make_edge: MakeEdge, seed: int) -> None:
        self._make_edge = make_edge
        self._mocks = {
            site.name: [MockVllm(mock_settings(site, seed)) for _ in range(site.endpoints)] for site in SITES
        }
        self._edge: DemoEdge | None = None

    @property
    def edge(self) -> DemoEdge:
        """The edge, once started."""
        assert self._edge is not None
        return self._edge

    async def start(self) -> None:
        """Raise the curtain. Raises OSError when this machine has no free loopback ports."""
        for mock in self._all_mocks():
            await mock.start()
        urls = {name: [mock.url for mock in mocks] for name, mocks in self._mocks.items()}
        self._edge = self._make_edge(check_text(config_text(urls), "demo.yaml", {}, Path()))
        await self._edge.start()

    async def stop(self) -> None:
        """End everything, whatever has been started."""
        if self._edge is not None:
            await self._edge.stop(0.0)
        for mock in self._all_mocks():
            mock.kill()
            await mock.stop()

    def kill(self, region: str) -> None:
        """All endpoints of `region` die at once: connections reset, ports refuse."""
        for mock in self._mocks[region]:
            mock.kill()

    async def revive(self, region: str) -> None:
        """All endpoints of `region` are back on their ports, empty."""
        await asyncio.gather(*(mock.restart() for mock in self._mocks[region]))

    def homes(self) -> dict[str, str]:
        """Country code -> the region that the router itself calls its home."""
        return {
            country.code: str(self.edge.explain(ExplainQuery(country.address(0), MODEL, None, 0, None))["home"])
            for country in COUNTRIES
        }

    def load_of(self, region: str) -> tuple[int, int, int]:
        """(requests there now, slots, endpoints that are well) of `region`, as the edge sees it."""
        views = [view for view in self.edge.fleet.snapshot.endpoints if view.endpoint.region.name == region]
        well = sum(view.state in (State.ADMITTING, State.SUSPECT) for view in views)
        return sum(view.own.requests for view in views), sum(view.slots or 0 for view in views), well

    def _all_mocks(self) -> list[MockVllm]:
        return [mock for mocks in self._mocks.values() for mock in mocks]


def config_text(urls: Mapping[str, list[str]]) -> str:
    """The YAML that the demo's edge runs with; `urls` are those of each site's endpoints."""
    lines = []
    for site in SITES:
        lines += [f"  {site.name}:", f'    location: "{site.location}"', "    endpoints:"]
        lines += [
            f'      - {{url: "{url}", models: [{MODEL}], capacity: {site.slots}}}' for url in urls[site.name]
        ]
    return _CONFIG.format(regions="\n".join(lines), prefill=PREFILL_MS_PER_TOKEN)


def mock_settings(site: Site, seed: int) -> MockSettings:
    """A mock server of `site`: each country's requests reach it after half their round trip, and so back."""
    return MockSettings(
        models=(MODEL,),
        slots=site.slots,
        prefill_ms_per_token=PREFILL_MS_PER_TOKEN,
        itl_ms=_ITL_MS,
        wan=[(country.network, rtt_ms(country.code, site)) for country in COUNTRIES],
        wan_default_ms=_PROBE_RTT_MS,
        identity=site.name,
        seed=seed,
    )
