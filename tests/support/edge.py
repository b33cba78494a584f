"""A real edge in this process, in front of mocks or scripted upstreams, and what must hold when it ends."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, Protocol
from unittest.mock import patch

import yaml

from gslb.app import Edge
from gslb.config.load import load_config
from gslb.native import is_native
from gslb.proxy.exchange import Exchange
from gslb.proxy.pool import EndpointPool
from gslb.routing.load import OwnLoad
from gslb.routing.making import Making
from tests.support.raw_client import Answer, RawClient, request, until

PLACES = {"eu": "aws:eu-central-1", "us": "aws:us-east-1", "ap": "aws:ap-northeast-1"}
"""Seen from Frankfurt, where every client of these tests is: the nearest, the next, the farthest."""

ADMIN_TOKEN = "admin-token-of-the-tests"


class HasUrl(Protocol):
    """An upstream of any kind."""

    @property
    def url(self) -> str: ...


def config_of(fleet: Mapping[str, Sequence[HasUrl | Mapping[str, Any]]], **sections: Any) -> dict[str, Any]:
    """A configuration: region name -> endpoints (a mapping with `url` to say more of one).

    Probes go out once at the start and then only on suspicion, and files are not watched, unless `sections` say
    otherwise.
    """
    endpoints = {
        region: [dict(member) if isinstance(member, Mapping) else {"url": member.url} for member in members]
        for region, members in fleet.items()
    }
    hour = "1h"
    health = {"interval": hour, "scrape_interval": hour, "models_interval": hour, "timeout": "2s"}
    return {
        "listen": "127.0.0.1:0",
        "admin": {"listen": "127.0.0.1:0", "token_env": "ADMIN_TOKEN"},
        "geo": {"overrides": {"127.0.0.0/8": "aws:eu-central-1"}},
        "regions": {name: {"location": PLACES[name], "endpoints": found} for name, found in endpoints.items()},
        "watch": False,
        **sections,
        "health": health | sections.get("health", {}),
    }


class RunningEdge:
    """An edge under test. `begun` counts the exchanges that were opened, `tls` is what clients connect with."""

    def __init__(self, edge: Edge, config_path: Path, log_path: Path, environ: dict[str, str]) -> None:
        self.edge = edge
        self.environ = environ
        self.begun = 0
        self.tls: ssl.SSLContext | None = None
        self._config_path = config_path
        self._log_path = log_path
        self._clients: list[RawClient] = []
        self._own_loads: set[OwnLoad] = set()
        self.note_own_loads()

    @property
    def port(self) -> int:
        """The data port."""
        return self.edge.port

    @property
    def admin_port(self) -> int:
        """The admin port."""
        return self.edge.admin_port

    @property
    def open_exchanges(self) -> int:
        """Exchanges that run now."""
        return self.edge.counters.open_exchanges

    async def connect(self) -> RawClient:
        """A client connection, closed with the edge at the latest."""
        client = await RawClient.connect(self.port, tls=self.tls)
        self._clients.append(client)
        return client

    async def connect_narrow(self) -> tuple[RawClient, asyncio.Transport]:
        """A client that does not read, on the only connection there is, with next to no room in its sockets; and
        the edge's transport to it."""
        client = await RawClient.connect(self.port, 4096, self.tls)
        self._clients.append(client)
        assert client.transport is not None
        await until(lambda: self.edge.counters.open_connections == 1, "a single connection")
        client.transport.pause_reading()
        (connection,) = self.edge._listener.connections
        transport = connection._transport
        assert transport is not None
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return client, transport

    async def ask(self, raw: bytes, *, is_head: bool = False) -> Answer:
        """One request on a connection of its own."""
        client = await self.connect()
        answer = await client.ask(raw, is_head=is_head)
        client.close()
        return answer

    async def admin(self, path: str, *, method: str = "GET", body: bytes = b"", token: str = "") -> Answer:
        """One request to the admin listener."""
        client = await RawClient.connect(self.admin_port)
        fields = (("Authorization", f"Bearer {token}"),) if token else ()
        answer = await client.ask(request(body, method=method, path=path, fields=fields))
        client.close()
        return answer

    def write_config(self, config: Mapping[str, Any] | str) -> None:
        """Put another configuration in the file, without telling the edge."""
        if not isinstance(config, str):
            config = yaml.safe_dump(_with_log(config, self._log_path))
        self._config_path.write_text(config)

    def reload(self, config: Mapping[str, Any] | str) -> list[str]:
        """Write the configuration and have it read; returns the problems."""
        self.write_config(config)
        problems = self.edge.reload()
        self.note_own_loads()
        return problems

    def note_own_loads(self) -> None:
        """Remember the in-flight counters there are: they must be 0 in the end, also of removed endpoints."""
        self._own_loads.update(view.own for view in self.edge.fleet.snapshot.endpoints)

    @property
    def in_flight(self) -> int:
        """Requests outstanding at all endpoints that ever were."""
        return sum(own.requests for own in self._own_loads)

    def pool(self, upstream: HasUrl) -> EndpointPool:
        """The connection pool of an upstream."""
        pools = self.edge._listener.generation.pools
        return next(pool for key, pool in pools.items() if upstream.url.endswith(key.partition("/")[2]))

    def failures(self, upstream: HasUrl) -> int:
        """The failed requests in a row that health has counted against an upstream."""
        return int(self._health(upstream).failed_requests)

    def state(self, upstream: HasUrl) -> str:
        """The health state of an upstream."""
        return str(self._health(upstream).state.value)

    def serves(self, upstream: HasUrl, model: str) -> bool:
        """True once an upstream is in use and known to have `model`."""
        views = self.edge.fleet.snapshot.endpoints
        view = next(view for view in views if view.endpoint.url == upstream.url)
        return view.suspicion == 0 and model in (view.models or ())

    def _health(self, upstream: HasUrl) -> Any:
        records = self.edge.fleet._records
        return next(r.health for key, r in records.items() if upstream.url.endswith(key.partition("/")[2]))

    def log_text(self) -> str:
        """The access log so far."""
        if self.edge._door.access_log._descriptor >= 0:
            self.edge._door.access_log.flush()
        return self._log_path.read_text()

    def records(self) -> list[dict[str, Any]]:
        """The access log's lines so far."""
        return [json.loads(line) for line in self.log_text().split("\n") if line]

    async def record(self) -> dict[str, Any]:
        """The one line of the one exchange there was."""
        await until(lambda: self.records(), "a record")
        (record,) = self.records()
        return record

    def attempts(self) -> dict[tuple[str, str], int]:
        """(region, result) -> attempts."""
        return dict(self.edge.counters.attempts)

    async def check_all_ended(self) -> None:
        """What must hold once every client has gone (FC-23): nothing in flight, one record per exchange."""
        for client in self._clients:
            client.close()
        await until(lambda: self.open_exchanges == 0, f"{self.open_exchanges} exchanges to end")
        assert self.in_flight == 0
        assert all(own.pending_tokens == 0 for own in self._own_loads)
        records = self.records()
        if not is_native():  # compiled rooms call each other past what is patched
            assert len(records) == self.begun, f"{self.begun} exchanges, {len(records)} records"
        assert sum(self.edge.counters.requests.values()) == len(records)
        assert all(record["duration_ms"] >= 0 for record in records)


def _with_log(config: Mapping[str, Any], log_path: Path) -> dict[str, Any]:
    return {"observability": {"access_log": str(log_path)}, **config}


@asynccontextmanager
async def running_edge(
    config: Mapping[str, Any],
    directory: Path,
    environ: Mapping[str, str] | None = None,
    making: Making | None = None,
) -> AsyncIterator[RunningEdge]:
    """Start an edge with `config`; check at the end that nothing leaked. `directory` takes its files, `making`
    makes the parts that decide."""
    config_path, log_path = directory / "gslb.yaml", directory / "access.log"
    config_path.write_text(yaml.safe_dump(_with_log(config, log_path)))
    names = {"ADMIN_TOKEN": ADMIN_TOKEN, **(environ or {})}
    edge = Edge(load_config(config_path, names), names, Random(7), making)
    running = RunningEdge(edge, config_path, log_path, names)

    def counted(*args: Any) -> Exchange:
        running.begun += 1
        return Exchange(*args)

    with patch("gslb.proxy.client.Exchange", counted):
        await edge.start()
        try:
            yield running
            await running.check_all_ended()
        finally:
            await edge.stop(0)
            os.unlink(config_path)
