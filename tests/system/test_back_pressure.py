"""Fast upstreams and slow clients: FC-13. What is kept in memory is bounded, and nothing is lost at the end."""

from __future__ import annotations

import asyncio
import hashlib

from tests.support.raw_client import RawClient, chat, request, until
from tests.support.raw_upstream import LAST, SSE_HEAD, chunk, event
from tests.system.conftest import MakeEdge, MakeUpstream

STREAM = request(chat(stream=True))
MIB = 1024 * 1024
BIG = bytes(range(256)) * 4096
CLIENTS = 20
MOST_HELD_BYTES = MIB
"""Of one connection, beside what the kernel takes."""


async def test_fc13_twenty_slow_clients_cost_little_and_hold_up_nobody(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-13: all pause; the edge holds a bounded piece of each, others are served, then each gets it all."""
    gate = asyncio.Event()
    one, other = (
        await upstream(default=[SSE_HEAD + chunk(event("A")), gate, *[chunk(BIG)] * 4, LAST]),
        await upstream(),
    )
    running = await edge({"eu": [one]})
    clients = [await RawClient.connect(running.port, 65536) for _ in range(CLIENTS)]
    streams = [client.send(STREAM) for client in clients]
    await until(lambda: all(found.body for found in streams))
    for client in clients:
        assert client.transport is not None
        client.transport.pause_reading()
    gate.set()
    sent = -1
    while sum(link.sent_bytes for link in one.links) != sent:  # until the sockets are full
        sent = sum(link.sent_bytes for link in one.links)
        await asyncio.sleep(0.1)
    held = [connection._transport.get_write_buffer_size() for connection in running.edge._listener.connections]  # type: ignore[union-attr]
    assert len(held) == CLIENTS
    assert max(held) <= MOST_HELD_BYTES
    one.default = other.default
    assert (await running.ask(request(chat()))).status == 200, "others are served meanwhile"
    whole = hashlib.sha256(event("A") + BIG * 4).digest()
    for client, found in zip(clients, streams, strict=True):
        assert client.transport is not None
        client.transport.resume_reading()
        await client.whole(found)
        assert hashlib.sha256(found.body).digest() == whole
        client.close()


async def test_fc13_the_tail_is_not_lost_when_the_upstream_ends_during_the_pause(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-13: all bytes and the end have left the upstream while the client sleeps; it gets them all."""
    gate = asyncio.Event()
    payload = BIG[:300_000]
    one = await upstream([SSE_HEAD + chunk(event("A")), gate, chunk(payload) + LAST, "fin"])
    running = await edge({"eu": [one]})
    client, transport = await running.connect_narrow()
    found = client.send(STREAM)
    await until(lambda: one.requests)
    gate.set()
    await until(lambda: one.asked[0].ended or one.asked[0].is_closed, "the upstream to have ended")
    assert transport.get_write_buffer_size() > 0
    assert client.transport is not None
    client.transport.resume_reading()
    await client.whole(found)
    assert found.is_chunked
    assert bytes(found.body) == event("A") + payload
    assert (await running.record())["outcome"] == "ok"


async def test_fc13_an_endpoint_that_does_not_read_is_given_up(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-13, the mirror image: an upload nobody takes ends with its own clock, and the next endpoint gets it."""
    eu, us = await upstream(), await upstream()
    running = await edge({"eu": [eu], "us": [us]}, timeouts={"answer": "1s"})
    eu.is_deaf = True
    found = await running.ask(request(chat(prompt="x" * 8_000_000)))
    assert (found.status, found.one("x-gslb-region")) == (200, "us")
    assert eu.requests == []
    assert running.attempts() == {("eu", "timeout"): 1, ("us", "ok"): 1}
