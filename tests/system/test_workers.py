"""Several worker processes: shared counts, one knowledge, replacement, reload, hand-over."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.edge import config_of
from tests.support.process import GslbProcess, free_port, is_alive, worker_of
from tests.support.raw_client import Answer, RawClient, chat, request, until
from tests.support.raw_upstream import DONE, GOOD, LAST, SSE_HEAD, chunk, event
from tests.system.conftest import MakeUpstream

ASK = request(chat())
STREAM = request(chat(stream=True))
DEADLINE_S = 30.0

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


class BusyUpstream:
    """An endpoint that takes a moment for each answer and knows the most it ever had under way."""

    def __init__(self) -> None:
        self.present = self.highest = 0
        self.url = ""
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> BusyUpstream:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
                await reader.readexactly(length)
                if head.startswith(b"post "):
                    self.present += 1
                    self.highest = max(self.highest, self.present)
                    await asyncio.sleep(0.004)
                    self.present -= 1  # before the answer, after which the next may come
                writer.write(GOOD)
        writer.close()


async def test_a_capacity_holds_for_all_workers_together(gslb: MakeGslb) -> None:
    """A hard cap is never exceeded at the endpoint, however the workers race for the last places."""
    async with BusyUpstream() as one:
        running = await gslb(config_for({"eu": [{"url": one.url, "capacity": 3, "models": ["m"]}]}))
        clients = [await RawClient.connect(running.port) for _ in range(16)]
        statuses: list[int] = []

        async def ask(client: RawClient) -> None:
            for _ in range(40):
                statuses.append((await client.ask(ASK)).status)  # noqa: PERF401

        await asyncio.gather(*(ask(client) for client in clients))
        assert len({await worker_of(client, await running.workers()) for client in clients}) == 2
        assert set(statuses) == {200}, "who finds no place waits for one, and a worker leaves places to the other"
        assert one.highest == 3, "all places are used, and no more"
        assert await running.in_flight() == 0
        for client in clients:
            client.close()


async def test_limits_connections_holds_for_all_workers_together(gslb: MakeGslb, upstream: MakeUpstream) -> None:
    running = await gslb(config_for({"eu": [await upstream()]}, limits={"connections": 6}))
    clients = [await RawClient.connect(running.port) for _ in range(20)]
    await until(lambda: sum(bool(client.ended) for client in clients) == 14, "14 to be turned away")
    for client in clients:
        client.close()

    async def is_free() -> bool:
        return await running.metric("gslb_open_connections") == 0

    await until_it(is_free, "all places free again")
    again = await RawClient.connect(running.port)
    assert (await again.ask(ASK)).status == 200
    again.close()


async def ask_everywhere(running: GslbProcess, count: int = 24) -> list[Answer]:
    """Answers to requests on fresh connections, enough that no worker is left out."""
    answers = []
    for _ in range(count):
        client = await RawClient.connect(running.port)
        answers.append(await client.ask(ASK))
        client.close()
    return answers


async def test_the_operators_hand_is_everywhere_before_the_call_returns(
    gslb: MakeGslb, upstream: MakeUpstream
) -> None:
    eu, us = await upstream(), await upstream()
    running = await gslb(config_for({"eu": [eu], "us": [us]}))
    assert {found.one("x-gslb-region") for found in await ask_everywhere(running)} == {"eu"}
    assert (await running.admin("/api/v1/drain", b'{"target": "eu"}')).status == 200
    assert {found.one("x-gslb-region") for found in await ask_everywhere(running)} == {"us"}
    explained = await running.admin("/api/v1/explain?model=m&ip=127.0.0.1")
    assert explained.json["choice"]["region"] == "us", "the supervisor decides by the same knowledge"
    assert (await running.admin("/api/v1/undrain", b'{"target": "eu"}')).status == 200
    assert {found.one("x-gslb-region") for found in await ask_everywhere(running)} == {"eu"}


async def test_what_one_worker_suffers_all_learn(gslb: MakeGslb, upstream: MakeUpstream) -> None:
    """Failures that one worker sees eject the endpoint for all; a trial's success brings it back for all."""
    eu, us = await upstream(default=["rst"]), await upstream()
    health = {"passive_fall": 3, "ejection": "1s"}
    running = await gslb(config_for({"eu": [eu], "us": [us]}, health=health))
    one = await RawClient.connect(running.port)

    async def state() -> str:
        return str((await running.status())["regions"][0]["endpoints"][0]["state"])

    async def is_ejected() -> bool:
        assert (await one.ask(ASK)).status == 200
        return await state() == "ejected"

    await until_it(is_ejected, "ejected")
    seen = len(eu.requests)
    answers = await ask_everywhere(running, 12)
    assert {found.status for found in answers} == {200}
    eu.default = (GOOD,)
    assert len(eu.requests) <= seen + 6, "no worker goes on asking; a few trials may have come"

    async def is_back() -> bool:
        assert (await one.ask(ASK)).status == 200
        return await state() == "admitting"

    await until_it(is_back, "well again")
    await until_it(lambda: all_in(running, "eu"), "used again by all")
    one.close()


async def all_in(running: GslbProcess, region: str) -> bool:
    return {found.one("x-gslb-region") for found in await ask_everywhere(running, 12)} == {region}


async def test_a_killed_worker_takes_only_its_own_and_is_replaced(gslb: MakeGslb, upstream: MakeUpstream) -> None:
    """FC-23 when a process dies: its requests end upstream, counts return to the truth, counters never go back."""
    gate = asyncio.Event()
    one = await upstream(*endless(gate, 16))
    running = await gslb(config_for({"eu": [one]}))
    pids = await running.workers()
    streams = await open_streams(running, 16)
    owners = {client: await worker_of(client, pids) for client, _ in streams}
    victim = pids[0]
    mine = [client for client, pid in owners.items() if pid == victim]
    assert 0 < len(mine) < 16
    assert (await ask_everywhere(running, 10))[0].status == 200
    asked = await running.metric("gslb_requests_total")
    os.kill(victim, signal.SIGKILL)
    for client in mine:
        assert await client.end() in ("rst", "fin")

    async def is_true_again() -> bool:
        return await running.in_flight() == 16 - len(mine)

    await until_it(is_true_again, "the truth in the gauge")
    await until(lambda: sum(link.ended != "" for link in one.asked) >= len(mine), "the end upstream")

    async def is_replaced() -> bool:
        now = await running.workers()
        return len(now) == 2 and victim not in now

    await until_it(is_replaced, "a new worker")
    assert await running.metric("gslb_requests_total") == asked, "counts of the dead stay"
    assert await running.metric("gslb_open_exchanges") == 16 - len(mine)
    assert {found.status for found in await ask_everywhere(running)} == {200}
    gate.set()
    for client, found in streams:
        if client not in mine:
            assert (await client.whole(found)).body == event("A") + DONE
    assert await running.in_flight() == 0
    close_all(streams)


async def test_a_worker_that_dies_again_and_again_is_given_pauses(gslb: MakeGslb, upstream: MakeUpstream) -> None:
    running = await gslb(config_for({"eu": [await upstream()]}))

    async def has_restarted(times: int) -> bool:
        restarts = (await running.status())["edge"]["worker_restarts"]
        return restarts == times and len(await running.workers()) == 2

    before = await running.workers()
    os.kill(before[0], signal.SIGKILL)
    await until_it(lambda: has_restarted(1), "a replacement")
    (young,) = set(await running.workers()) - set(before)
    loop = asyncio.get_running_loop()
    killed_s = loop.time()
    os.kill(young, signal.SIGKILL)
    await until_it(lambda: has_restarted(2), "the second replacement")
    assert loop.time() - killed_s > 0.9, "after a pause"


async def test_fc_30_a_reload_is_for_all_workers_or_none(gslb: MakeGslb, upstream: MakeUpstream) -> None:
    gate = asyncio.Event()
    eu, us = await upstream(*endless(gate, 8)), await upstream()
    config = config_for({"eu": [eu]})
    running = await gslb(config)
    streams = await open_streams(running, 8)
    same = {name: config[name] for name in ("listen", "admin", "workers")}
    running.write_config({**config_of({"us": [us]}), **same, "max_retires": 3})
    refused = await running.admin("/api/v1/reload", b"{}")
    assert refused.status == 422
    assert "max_retries" in refused.json["error"]["message"] or "unknown key" in refused.json["error"]["message"]
    running.write_config({**config_of({"us": [us]}), **same, "workers": 3})
    refused = await running.admin("/api/v1/reload", b"{}")
    assert (refused.status, "workers" in refused.json["error"]["message"]) == (422, True)
    assert (await running.status())["generation"] == 1
    assert {found.one("x-gslb-region") for found in await ask_everywhere(running)} == {"eu"}

    running.write_config({**config_of({"us": [us]}), **same})
    assert (await running.admin("/api/v1/reload", b"{}")).json == {"generation": 2}
    await until_it(lambda: all_in(running, "us"), "the new endpoint in all workers")
    seen = len(eu.requests)
    await ask_everywhere(running)
    assert len(eu.requests) == seen
    running.write_config({**config_of({"eu": [eu], "us": [us]}), **same})
    running.signal(signal.SIGHUP)
    await running.until_said("generation 3")
    assert await running.in_flight() == 8, "a removed endpoint that returns has its count"
    gate.set()
    for client, found in streams:
        assert (await client.whole(found)).body == event("A") + DONE
    assert await running.in_flight() == 0
    close_all(streams)


async def test_fc_30_one_worker_that_cannot_is_enough_to_refuse(
    gslb: MakeGslb, upstream: MakeUpstream, tmp_path: Path
) -> None:
    """The supervisor and one worker can read the key; the other has no descriptor left to open it with."""
    eu, us = await upstream(), await upstream()
    config = config_for({"eu": [eu]})
    running = await gslb(config)
    victim = (await running.workers())[0]
    key = tmp_path / "key"
    key.write_text("sk-1")
    _, hard = resource.prlimit(victim, resource.RLIMIT_NOFILE)
    resource.prlimit(victim, resource.RLIMIT_NOFILE, (4, hard))
    same = {name: config[name] for name in ("listen", "admin", "workers")}
    running.write_config({**config_of({"us": [{"url": us.url, "api_key_file": str(key)}]}), **same})
    refused = await running.admin("/api/v1/reload", b"{}")
    assert refused.status == 422
    assert "Too many open files" in refused.json["error"]["message"]
    resource.prlimit(victim, resource.RLIMIT_NOFILE, (hard, hard))
    assert victim in await running.workers()
    assert {found.one("x-gslb-region") for found in await ask_everywhere(running)} == {"eu"}


async def test_workers_do_not_outlive_their_supervisor(gslb: MakeGslb, upstream: MakeUpstream) -> None:
    gate = asyncio.Event()
    one = await upstream(*endless(gate, 4))
    running = await gslb(config_for({"eu": [one]}, timeouts={"grace": "20s"}))
    pids = await running.workers()
    streams = await open_streams(running, 4)
    running.signal(signal.SIGKILL)
    assert await running.ended() == -signal.SIGKILL
    gate.set()
    for client, found in streams:
        assert (await client.whole(found)).body == event("A") + DONE, "what runs ends in peace"
    await until(lambda: not any(map(is_alive, pids)), "the workers to end", DEADLINE_S)


@pytest.mark.parametrize("workers", [1, 2])
async def test_fc_39_sigterm_lets_answers_end(workers: int, gslb: MakeGslb, upstream: MakeUpstream) -> None:
    gate = asyncio.Event()
    one = await upstream(*endless(gate, 6))
    running = await gslb(config_for({"eu": [one]}, workers))
    streams = await open_streams(running, 6)
    running.signal(signal.SIGTERM)
    await running.until_said("stopping")

    async def is_unready() -> bool:
        return (await running.admin("/readyz")).status == 503

    await until_it(is_unready, "readiness to say so")
    assert (await running.admin("/healthz")).status == 200
    gate.set()
    for client, found in streams:
        assert (await client.whole(found)).body == event("A") + DONE
    assert await running.ended() == 0
    assert len(running.records()) == 6


@pytest.mark.parametrize("workers", [1, 2])
async def test_fc_39_a_second_signal_ends_at_once(workers: int, gslb: MakeGslb, upstream: MakeUpstream) -> None:
    one = await upstream(*endless(asyncio.Event(), 4))
    running = await gslb(config_for({"eu": [one]}, workers))
    pids = await running.workers() if workers > 1 else []
    streams = await open_streams(running, 4)
    running.signal(signal.SIGTERM)
    await running.until_said("stopping")
    running.signal(signal.SIGINT)
    assert await running.ended() == 1
    await until(lambda: not any(map(is_alive, pids)), "the workers to end", DEADLINE_S)
    close_all(streams)


async def test_a_port_that_cannot_be_had_ends_the_start(gslb: MakeGslb, upstream: MakeUpstream) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config = {**config_for({"eu": [await upstream()]}), "listen": f"127.0.0.1:{taken.getsockname()[1]}"}
        running = await gslb(config, is_started=False)
        await running.spawn()
        assert await running.ended() == 1
    assert "cannot start" in running.said()
    assert config["listen"] in running.said()


@pytest.mark.parametrize("workers", [1, 2])
async def test_another_process_takes_over_without_a_failed_request(
    workers: int, gslb: MakeGslb, upstream: MakeUpstream
) -> None:
    """Requests on fresh connections all through: a new process starts beside the old one, which then gets SIGTERM.

    A stream that began before ends where it began.
    """
    gate = asyncio.Event()
    one = await upstream(*endless(gate, 2))
    config = config_for({"eu": [one]}, workers)
    old = await gslb(config, "old")
    streams = await open_streams(old, 2)
    is_over = False
    statuses: list[int] = []

    async def keep_asking() -> None:
        while not is_over:
            client = await RawClient.connect(old.port)
            statuses.append((await client.ask(ASK)).status)
            client.close()

    asking = [asyncio.create_task(keep_asking()) for _ in range(4)]
    new = await gslb(config, "new")
    await new.until_said("another process listens")
    before = len(statuses)
    await until(lambda: len(statuses) > before + 50, "requests while both run")
    old.signal(signal.SIGTERM)
    await old.until_said("takes over")
    await old.until_said("alone now")
    assert {(await new.admin("/readyz")).status for _ in range(10)} == {200}
    gate.set()
    for client, found in streams:
        assert (await client.whole(found)).body == event("A") + DONE
    assert await old.ended() == 0
    before = len(statuses)
    await until(lambda: len(statuses) > before + 50, "requests to the new one alone")
    is_over = True
    await asyncio.gather(*asking)
    assert set(statuses) == {200}


async def test_lines_of_several_workers_are_whole(gslb: MakeGslb, upstream: MakeUpstream) -> None:
    """The access log of two processes into one pipe: every line is one record, none is lost."""
    config = {**config_for({"eu": [await upstream()]}), "observability": {"access_log": "stdout"}}
    running = await gslb(config, is_started=False)
    reading, writing = os.pipe()
    await running.spawn(stdout=writing)
    os.close(writing)
    await running.until_said("listening on")
    pieces: list[bytes] = []
    read = asyncio.create_task(asyncio.to_thread(read_all, reading, pieces))
    clients = [await RawClient.connect(running.port) for _ in range(16)]
    body = request(chat("m" * 200))

    async def ask(client: RawClient) -> None:
        for _ in range(60):
            await client.ask(body)

    await asyncio.gather(*(ask(client) for client in clients))
    for client in clients:
        client.close()
    running.signal(signal.SIGTERM)
    assert await running.ended() == 0
    await read
    lines = b"".join(pieces).splitlines()
    assert len({json.loads(line)["request_id"] for line in lines}) == len(lines) == 16 * 60


def read_all(descriptor: int, pieces: list[bytes]) -> None:
    """Everything that comes, slowly enough that the pipe is full now and then."""
    while piece := os.read(descriptor, 65536):
        pieces.append(piece)
        time.sleep(0.001)
    os.close(descriptor)
