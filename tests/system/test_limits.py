"""Bounds on what a client may send, however it sends it: FC-36 (the clocks are in test_timers)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.raw_client import RawClient, chat, request, until
from tests.system.conftest import MakeEdge, MakeUpstream

MIB = 1024 * 1024
LIMITS: dict[str, Any] = {"body_bytes": "1MiB", "head_bytes": "32KiB"}
CHUNKED = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


def body_of(size: int) -> bytes:
    """A good chat body of exactly `size` bytes."""
    start, end = b'{"model":"m","messages":[{"role":"user","content":"', b'"}]}'
    return start + b"x" * (size - len(start) - len(end)) + end


async def test_fc36_a_a_large_length_is_refused_before_the_body(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-36 a: bounds on what is sent, however it is sent."""
    one = await upstream()
    running = await edge({"eu": [one]}, limits=LIMITS)
    client = await running.connect()
    found = client.send(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (MIB + 1))
    await client.whole(found)
    assert (found.status, found.error["code"], found.one("connection")) == (413, "payload_too_large", "close")
    assert await client.end() == "fin"
    assert one.requests == []


async def test_fc36_a_an_expected_continue_is_not_given_for_it(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-36 a: bounds on what is sent, however it is sent."""
    running = await edge({"eu": [await upstream()]}, limits=LIMITS)
    client = await running.connect()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % (
        MIB + 1
    )
    found = await client.ask(head)
    assert (found.status, found.interim) == (413, [])


async def test_continue_is_given_once(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream()
    running = await edge({"eu": [one]}, limits=LIMITS)
    raw = request(chat(), fields=(("Expect", "100-continue"),))
    cut = raw.index(b"\r\n\r\n") + 4
    client = await running.connect()
    for _ in range(2):
        found = client.send(raw[:cut])
        await until(lambda: found.interim == [100])  # noqa: B023
        client.write(raw[cut:])
        await client.whole(found)
        assert (found.status, found.interim) == (200, [100])
    found = await client.ask(raw)
    assert (found.status, found.interim) == (200, []), "the body was there already"
    assert all(got.one("expect") is None for got in one.requests)


async def test_fc36_b_chunks_are_counted(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-36 b: bounds on what is sent, however it is sent."""
    one = await upstream()
    running = await edge({"eu": [one]}, limits=LIMITS)
    found = await running.ask(request(body_of(MIB + 1), chunks=10_000))
    assert (found.status, found.error["code"]) == (413, "payload_too_large")
    assert one.requests == []


async def test_fc36_c_exactly_the_limit_passes(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-36 c: bounds on what is sent, however it is sent."""
    one = await upstream()
    running = await edge({"eu": [one]}, limits=LIMITS)
    body = body_of(MIB)
    assert (await running.ask(request(body, chunks=10_000))).status == 200
    assert (await running.ask(request(body))).status == 200
    assert [got.body for got in one.requests] == [body, body]
    assert [got.one("content-length") for got in one.requests] == [str(MIB)] * 2


async def pour(client: RawClient, piece: bytes, most_bytes: int) -> int:
    """Write `piece` over and over until the edge answers; returns how much went out."""
    transport = client.transport
    assert transport is not None
    sent = 0

    def is_over() -> bool:
        return bool(client.received or client.ended)

    while not is_over() and sent < most_bytes:
        client.write(piece)
        sent += len(piece)
        await until(lambda: is_over() or transport.get_write_buffer_size() <= len(piece))
    return sent


FLOODS = {
    "d endless chunks": (CHUNKED, b"1000\r\n" + b"x" * 4096 + b"\r\n", (413,), 8 * MIB),
    "e endless chunk extension": (CHUNKED + b"3;", b"x" * 4096, (400, 413), 4 * MIB),
    "endless trailer": (CHUNKED + b"0\r\nX: ", b"x" * 4096, (400, 413, 431), 4 * MIB),
    "endless trailers": (CHUNKED + b"0\r\n", b"X-T: y\r\n" * 500, (400, 413, 431), 4 * MIB),
    "f one endless field": (b"GET /v1/models HTTP/1.1\r\nHost: a\r\nX: ", b"x" * 4096, (431,), 4 * MIB),
    "f one endless name": (b"GET /v1/models HTTP/1.1\r\nHost: a\r\n", b"x" * 4096, (431, 400), 4 * MIB),
    "g endless fields": (b"GET /v1/models HTTP/1.1\r\nHost: a\r\n", b"X: y\r\n" * 500, (431,), 4 * MIB),
    "an endless target": (b"GET /v1/models?", b"x" * 4096, (431,), 4 * MIB),
}


@pytest.mark.parametrize("name", FLOODS)
async def test_fc36_floods_are_refused_early(name: str, edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-36: bounds on what is sent, however it is sent."""
    start, piece, statuses, most_bytes = FLOODS[name]
    one = await upstream()
    running = await edge({"eu": [one]}, limits=LIMITS)
    client = await running.connect()
    found = client.send(start)
    sent = await pour(client, piece, 64 * MIB)
    await client.whole(found)
    assert found.status in statuses
    assert found.error["message"]
    assert sent <= most_bytes
    await client.end()
    assert one.requests == []


async def test_fc36_e_g_in_one_write(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-36 e and g: bounds on what is sent, however it is sent."""
    running = await edge({"eu": [await upstream()]}, limits=LIMITS)
    head = b"GET /v1/models HTTP/1.1\r\nHost: a\r\n"
    assert (await running.ask(head + b"X: y\r\n" * 10_000 + b"\r\n")).status == 431
    assert (await running.ask(head + b"X: " + b"y" * MIB + b"\r\n\r\n")).status == 431


@pytest.mark.parametrize("limit", ["connections", "connections_per_address"])
async def test_connections_are_bounded(limit: str, edge: MakeEdge, upstream: MakeUpstream) -> None:
    running = await edge({"eu": [await upstream()]}, limits={limit: 3})
    kept = [await running.connect() for _ in range(3)]
    extra = await running.connect()
    await extra.end()
    assert extra.received == b""
    for client in kept:
        assert (await client.ask(request(chat()))).status == 200
    kept[0].close()
    await until(lambda: running.edge.counters.open_connections == 2)
    assert (await running.ask(request(chat()))).status == 200
    page = bytes((await running.admin("/metrics")).body).decode()
    assert f'gslb_refused_connections_total{{limit="{limit}"}} 1.0' in page
    assert len(running.edge._door.addresses) <= 1
    for client in kept:
        client.close()
    await until(lambda: len(running.edge._door.addresses) == 0, "nothing to be remembered")
