"""WebSocket on `/v1/realtime` behind the 101: bytes both ways until one side ends."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gslb.mock.faults import Fault
from tests.support.authority import Authority
from tests.support.edge import RunningEdge, config_of
from tests.support.raw_client import until
from tests.system.conftest import MakeEdge, MakeMock, MakeUpstream
from tests.system.handshakes import SWITCH, handshake, opened
from tests.system.test_disconnect import LEAVE_S
from tests.system.test_reload_and_stop import stopped

MIB = 1 << 20


# --- behind the 101 ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_fc12_a_client_that_leaves(how: str, edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-12: the endpoint learns of it at once, even one that does not close by itself; nobody is blamed."""
    never = asyncio.Event()
    one = await upstream([SWITCH, never])
    running = await edge({"eu": [one]})
    client, _ = await opened(running)
    client.write(b"last words")
    if how == "fin":
        client.close()
    else:
        await until(lambda: one.asked[0].tunnelled)
        client.reset()
    (link,) = one.asked
    await until(lambda: link.ended or link.is_closed, "the upstream connection to end", LEAVE_S)
    assert link.tunnelled == b"last words"
    await until(lambda: running.open_exchanges == 0, "the tunnel to end")
    record = await running.record()
    assert (record["status"], record["outcome"], record["attempts"]) == (101, "client_gone", 1)
    assert running.attempts() == {("eu", "aborted"): 1}
    assert running.failures(one) == running.in_flight == 0
    assert running.pool(one)._idle == []


async def test_an_upstream_that_dies(edge: MakeEdge, upstream: MakeUpstream) -> None:
    gate = asyncio.Event()
    one = await upstream([SWITCH + b"half a fra", gate, "rst"])
    running = await edge({"eu": [one]})
    client, found = await opened(running)
    await until(lambda: bytes(found.body) == b"half a fra")
    gate.set()
    assert await client.end() == "rst"
    record = await running.record()
    assert (record["status"], record["outcome"]) == (101, "upstream_truncated")
    assert running.attempts() == {("eu", "reset"): 1}
    assert running.failures(one) == 1


async def test_a_half_closed_client_still_gets_what_is_under_way(edge: MakeEdge, upstream: MakeUpstream) -> None:
    gate = asyncio.Event()
    one = await upstream([SWITCH, gate, b"the rest", "fin"])
    running = await edge({"eu": [one]})
    client, found = await opened(running)
    client.write(b"bye")
    client.half_close()
    await until(lambda: one.asked[0].ended == "fin", "the end to pass")
    assert one.asked[0].tunnelled == b"bye"
    gate.set()
    assert await client.end() == "fin"
    assert found.body == b"the rest"
    assert (await running.record())["outcome"] == "client_gone", "with WebSocket the server closes first"


async def test_a_half_closed_upstream_still_gets_what_is_under_way(edge: MakeEdge, upstream: MakeUpstream) -> None:
    never = asyncio.Event()
    one = await upstream([SWITCH + b"bye", never])
    running = await edge({"eu": [one]})
    client, found = await opened(running)
    one.asked[0].half_close()
    assert await client.end() == "fin"
    client.write(b"the rest")
    client.close()
    await until(lambda: one.asked[0].is_closed or one.asked[0].ended)
    assert (found.body, one.asked[0].tunnelled) == (b"bye", b"the rest")
    record = await running.record()
    assert record["outcome"] == "ok"


async def test_idle_for_too_long(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream([SWITCH, "echo"])
    running = await edge({"eu": [one]}, timeouts={"tunnel_idle": "1500ms", "between_bytes": "50ms"})
    client, found = await opened(running)
    for count in range(1, 8):  # longer in all than the limit, which each byte starts anew
        await asyncio.sleep(0.25)
        client.write(b".")
        await until(lambda count=count: len(found.body) == count or client.ended)
    assert found.body == b"......."
    assert await client.end() == "fin"
    record = await running.record()
    assert (record["status"], record["outcome"]) == (101, "timeout")
    assert running.attempts() == {("eu", "timeout"): 1}
    assert running.failures(one) == 0
    await until(lambda: one.asked[0].is_closed or one.asked[0].ended)


async def test_the_total_limit_holds_here_too(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream([SWITCH, *[b".", 0.05] * 200])
    running = await edge({"eu": [one]}, timeouts={"total": "500ms"})
    client, _ = await opened(running)
    await client.end()
    assert (await running.record())["outcome"] == "timeout"


async def test_fc39_a_tunnel_has_the_grace_and_no_more(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-39: a tunnel runs on while the edge stops, until the grace is over."""
    one, other = await upstream([SWITCH, "echo"], [SWITCH, "echo"]), await upstream()
    running = await edge({"eu": [one], "us": [other]})
    client, found = await opened(running)
    short, _ = await opened(running)
    stopping = await stopped(running, 2)
    client.write(b"still here")
    await until(lambda: bytes(found.body) == b"still here")
    one.asked[1].close()
    assert await short.end() == "fin"
    assert await client.end() in ("fin", "rst")
    await asyncio.wait_for(stopping, 8)
    outcomes = sorted((record["status"], record["outcome"]) for record in running.records())
    assert outcomes == [(101, "ok"), (101, "upstream_truncated")]
    assert running.failures(one) == 0


async def test_a_reload_leaves_tunnels_alone(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one, other = await upstream([SWITCH, "echo"]), await upstream()
    running = await edge({"eu": [one]})
    client, found = await opened(running)
    assert running.reload(config_of({"eu": [other]})) == []
    client.write(b"on")
    await until(lambda: bytes(found.body) == b"on")


# --- back-pressure ---------------------------------------------------------------------------------------


def waiting_bytes(running: RunningEdge) -> int:
    """What the edge holds of its tunnels."""
    (connection,) = running.edge._listener.connections
    tunnel: Any = connection._exchange._tunnel  # type: ignore[union-attr]
    return sum(end.transport.get_write_buffer_size() for end in (tunnel._client, tunnel._upstream))


async def test_fc13_a_slow_client_holds_the_upstream_back(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-13: memory stays bounded, and every byte arrives once it is read."""
    piece = bytes(range(256)) * 1024
    one = await upstream([SWITCH, *[piece] * 128, "fin"])  # 32 MiB
    running = await edge({"eu": [one]})
    client, _ = await running.connect_narrow()
    found = client.expect()
    client.write(handshake())
    await until(lambda: one.requests and one.asked[0].sent_bytes > MIB)
    sent = -1
    while sent != one.asked[0].sent_bytes:  # until nothing moves any more
        sent = one.asked[0].sent_bytes
        await asyncio.sleep(0.2)
        assert waiting_bytes(running) < MIB
    assert sent < 24 * MIB, "it was not held back"
    assert client.transport is not None
    client.transport.resume_reading()
    assert await client.end() == "fin"
    assert len(found.body) == 128 * len(piece)
    assert found.body == piece * 128
    assert (await running.record())["outcome"] == "ok"


async def test_fc13_a_slow_upstream_holds_the_client_back(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-13, the other way."""
    never = asyncio.Event()
    one = await upstream([SWITCH, never])
    running = await edge({"eu": [one]})
    client, _ = await opened(running)
    (link,) = one.asked
    assert link.transport is not None
    assert client.transport is not None
    link.transport.pause_reading()
    whole = bytes(range(256)) * 4096 * 24  # 24 MiB
    client.write(whole)
    left = -1
    while left != client.transport.get_write_buffer_size():
        left = client.transport.get_write_buffer_size()
        await asyncio.sleep(0.2)
        assert waiting_bytes(running) < MIB
    assert left, "it was not held back"
    link.transport.resume_reading()
    await until(lambda: len(link.tunnelled or b"") == len(whole))
    assert link.tunnelled == whole


async def test_early_bytes_are_bounded(edge: MakeEdge, upstream: MakeUpstream) -> None:
    gate = asyncio.Event()
    one = await upstream([gate, SWITCH, "hang"])
    running = await edge({"eu": [one]})
    client = await running.connect()
    whole = bytes(range(256)) * 4096 * 24
    client.send(handshake() + whole)
    await until(lambda: one.requests)
    (connection,) = running.edge._listener.connections
    await until(lambda: connection._reader.behind)
    await asyncio.sleep(0.3)
    assert len(connection._reader.behind or b"") < MIB
    gate.set()
    (link,) = one.asked
    await until(lambda: len(link.tunnelled or b"") == len(whole))
    assert link.tunnelled == whole


async def test_upgrades_through_tls(secure_edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream([SWITCH, "echo"], [SWITCH, asyncio.Event()])
    running = await secure_edge({"eu": [one]})
    client, found = await opened(running)
    client.write(b"x" * 300_000)
    await until(lambda: len(found.body) == 300_000)
    assert one.requests[0].one("x-forwarded-proto") == "https"
    one.asked[0].close()
    assert await client.end() == "fin"
    client, found = await opened(running)
    client.write(b"bye")
    client.close()
    await until(lambda: one.asked[1].ended or one.asked[1].is_closed, "the upstream to be closed", LEAVE_S)
    await until(lambda: len(running.records()) == 2)
    assert [record["outcome"] for record in running.records()] == ["ok", "client_gone"]
    assert one.asked[1].tunnelled == b"bye"


async def test_an_endpoint_behind_tls(edge: MakeEdge, upstream: MakeUpstream, authority: Authority) -> None:
    serving = authority.serving(authority.issue("IP:127.0.0.1"))
    gate = asyncio.Event()
    one = await upstream([SWITCH, "echo"], [SWITCH + b"half", gate, "rst"], tls=serving)
    running = await edge({"eu": [{"url": one.url, "tls_ca_file": str(authority.ca_file)}]})
    client, found = await opened(running)
    client.write(b"x" * 300_000)
    await until(lambda: len(found.body) == 300_000)
    one.asked[0].close()
    assert await client.end() == "fin"
    client, found = await opened(running)
    await until(lambda: bytes(found.body) == b"half")
    gate.set()
    assert await client.end() == "rst", "an end without close_notify is none"
    await until(lambda: len(running.records()) == 2)
    assert [record["outcome"] for record in running.records()] == ["ok", "upstream_truncated"]


# --- a client and a server that others wrote --------------------------------------------------------------


async def test_a_real_client_talks_to_a_real_server(edge: MakeEdge) -> None:
    async def speak(asked: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=("realtime",))
        await socket.prepare(asked)
        async for message in socket:
            await socket.send_str(message.data.upper())
        return socket

    async def well(asked: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    app.router.add_get("/v1/realtime", speak)
    app.router.add_get("/health", well)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{server.port}"
        running = await edge({"eu": [{"url": url, "models": ["m"]}]})
        where = f"ws://127.0.0.1:{running.port}/v1/realtime?model=m"
        async with session.ws_connect(where, protocols=("realtime",), compress=15) as talk:
            assert (talk.protocol, talk.compress) == ("realtime", 15)
            for text in ("hello", "x" * 500_000):
                await talk.send_str(text)
                assert await talk.receive_str(timeout=8) == text.upper()
        assert talk.close_code == 1000
        record = await running.record()
        assert (record["status"], record["outcome"]) == (101, "ok")


async def test_a_mock_behind_the_edge(edge: MakeEdge, mock: MakeMock) -> None:
    eu, us = await mock(has_realtime=True), await mock(has_realtime=True)
    running = await edge({"eu": [eu], "us": [us]})
    eu.set_faults(Fault(status=503))
    async with aiohttp.ClientSession() as session:
        where = f"ws://127.0.0.1:{running.port}/v1/realtime?model=m"
        async with session.ws_connect(where) as talk:
            await talk.send_str("hello")
            assert await talk.receive_str(timeout=8) == "hello"
    record = await running.record()
    assert (record["outcome"], record["region"], record["attempts"]) == ("ok", "us", 2)
