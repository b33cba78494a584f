"""Several worker processes: shared counts, one knowledge, replacement, reload, hand-over."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.edge import config_of
from tests.support.process import GslbProcess, free_port, is_alive, worker_of
from tests.support.raw_client import Answer, RawClient, chat, request, until
from tests.support.raw_upstream import DONE, LAST, SSE_HEAD, RawUpstream, chunk, event
from tests.system.conftest import MakeUpstream

ASK = request(chat())
STREAM = request(chat(stream=True))
DEADLINE_S = 20.0

MakeGslb = Callable[..., Awaitable[GslbProcess]]


def config_for(fleet: dict[str, Any], workers: int = 2, **sections: Any) -> dict[str, Any]:
    """A configuration on two free ports."""
    return {
        **config_of(fleet, **sections),
        "listen": f"127.0.0.1:{free_port()}",
        "admin": {"listen": f"127.0.0.1:{free_port()}", "token_env": "ADMIN_TOKEN"},
        "workers": workers,
    }


@pytest.fixture
async def gslb(tmp_path: Path) -> AsyncIterator[MakeGslb]:
    """Call it with a configuration for a running `gslb serve`."""
    made: list[GslbProcess] = []

    async def make(config: dict[str, Any], name: str = "gslb", *, is_started: bool = True) -> GslbProcess:
        one = GslbProcess(config, tmp_path, name)
        made.append(one)
        if is_started:
            await one.start()
        return one

    yield make
    for one in made:
        await one.stop()


async def until_it(condition: Callable[[], Awaitable[object]], what: str) -> None:
    """`until` for a condition that has to ask."""
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + DEADLINE_S
    while not await condition():
        if loop.time() > ends_s:
            raise TimeoutError(f"not within {DEADLINE_S} s: {what}")
        await asyncio.sleep(0.05)


async def open_streams(running: GslbProcess, count: int) -> list[tuple[RawClient, Answer]]:
    """Clients whose streams have shown an event, on connections of their own."""
    clients = [await RawClient.connect(running.port) for _ in range(count)]
    streams = [(client, client.send(STREAM)) for client in clients]
    for _, found in streams:
        await until(lambda: found.body, "the first event", DEADLINE_S)  # noqa: B023
    return streams


def close_all(streams: list[tuple[RawClient, Answer]]) -> None:
    for client, _ in streams:
        client.close()


def endless(gate: asyncio.Event, count: int = 1) -> list[list[Any]]:
    """Scripts of streams that go on until the gate opens."""
    return [[SSE_HEAD + chunk(event("A")), gate, chunk(DONE) + LAST]] * count


async def test_requests_spread_and_everything_is_summed(gslb: MakeGslb, upstream: MakeUpstream) -> None:
    """FC-23 over two processes: the gauge is exactly what runs; counters are the sum; one record per request."""
    gate = asyncio.Event()
    one = await upstream(*endless(gate, 24))
    running = await gslb(config_for({"eu": [one]}))
    pids = await running.workers()
    assert len(set(pids)) == 2
    streams = await open_streams(running, 24)
    assert {await worker_of(client, pids) for client, _ in streams} == set(pids)
    assert await running.in_flight() == 24
    assert await running.metric("gslb_inflight") == 24
    assert await running.metric("gslb_open_connections") == 24
    gate.set()
    for client, found in streams:
        assert (await client.whole(found)).body == event("A") + DONE
    assert await running.in_flight() == 0
    assert await running.metric("gslb_requests_total") == 24
    assert await running.metric("gslb_open_exchanges") == 0
    close_all(streams)
    await until(lambda: len(running.records()) == 24, "a record each")
    assert {record["outcome"] for record in running.records()} == {"ok"}


async def test_a_capacity_holds_for_all_workers_together(gslb: MakeGslb, upstream: MakeUpstream) -> None:
    """A hard cap is never exceeded at the endpoint, however the workers race for the last places."""
    present = highest = 0

    async def hold(upstream_: RawUpstream, until_: Callable[[], bool]) -> None:
        nonlocal highest
        while not until_():
            highest = max(highest, sum(1 for link in upstream_.asked if not (link.ended or link.is_closed)))
            await asyncio.sleep(0.001)

    one = await upstream(*[[0.02, b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"]] * 3000)
    running = await gslb(config_for({"eu": [{"url": one.url, "capacity": 3, "models": ["m"]}]}))
    clients = [await RawClient.connect(running.port) for _ in range(16)]
    statuses: list[int] = []
    del present, hold

    async def ask(client: RawClient) -> None:
        for _ in range(25):
            statuses.append((await client.ask(ASK)).status)

    await asyncio.gather(*(ask(client) for client in clients))
    assert set(statuses) == {200, 503}
    assert highest <= 3
    for client in clients:
        client.close()
