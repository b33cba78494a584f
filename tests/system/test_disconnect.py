"""A client that leaves frees the GPU at once, and nobody is blamed: FC-12, and half-closed clients."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.edge import RunningEdge
from tests.support.raw_client import RawClient, chat, request, until
from tests.support.raw_upstream import DONE, GOOD, LAST, SSE_HEAD, RawUpstream, Step, chunk, event
from tests.system.conftest import MakeEdge, MakeUpstream

STREAM = request(chat(stream=True))
LEAVE_S = 2.0
"""The promise is 0.5 s; a loaded machine gets more. Nothing else would ever end these upstream connections."""


async def leave_and_check(running: RunningEdge, client: RawClient, one: RawUpstream, how: str) -> None:
    """Leave; the upstream must see it at once, and all counts must return."""
    if how == "fin":
        client.close()
    else:
        client.reset()
    (link,) = one.asked
    await until(lambda: link.ended or link.is_closed, "the upstream connection to be closed", LEAVE_S)
    await until(lambda: running.open_exchanges == 0)
    record = await running.record()
    assert (record["status"], record["outcome"], record["attempts"]) == (499, "client_gone", 1)
    assert record["duration_ms"] > 0
    assert running.attempts() == {("eu", "aborted"): 1}
    assert running.failures(one) == 0
    assert running.in_flight == 0
    assert running.pool(one)._idle == []
    assert len(one.requests) == 1


@pytest.mark.parametrize("how", ["fin", "rst"])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_fc12_a_before_the_head(how: str, is_stream: bool, edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-12 a: a client that leaves frees the GPU."""
    one, other = await upstream(["hang"]), await upstream()
    running = await edge({"eu": [one], "us": [other]})
    client = await running.connect()
    client.send(request(chat(stream=is_stream)))
    await until(lambda: one.requests)
    await leave_and_check(running, client, one, how)
    assert other.requests == [], "nobody else is asked for a client that left"


@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_fc12_b_after_the_head(how: str, edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-12 b: a client that leaves frees the GPU."""
    one = await upstream([SSE_HEAD, "hang"])
    running = await edge({"eu": [one]})
    client = await running.connect()
    client.send(STREAM)
    await until(lambda: one.requests)
    await until(lambda: one.asked[0].sent_bytes)
    await leave_and_check(running, client, one, how)


@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_fc12_c_between_events(how: str, edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-12 c: a client that leaves frees the GPU."""
    one = await upstream([SSE_HEAD + chunk(event("A")), "hang"])
    running = await edge({"eu": [one]})
    client = await running.connect()
    found = client.send(STREAM)
    await until(lambda: found.body)
    await leave_and_check(running, client, one, how)
    assert (await running.record())["bytes_out"] == len(event("A"))


async def test_fc12_d_while_uploading(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-12 d: a client that leaves frees the GPU."""
    one = await upstream()
    running = await edge({"eu": [one]})
    client = await running.connect()
    client.write(request(chat(prompt="x" * 5_000_000))[:2_000_000])
    await until(lambda: running.edge.counters.open_connections == 1)
    client.reset()
    await until(lambda: running.edge.counters.open_connections == 0)
    assert one.requests == []
    assert (await running.record())["status"] == 499


async def test_fc12_while_connecting(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-12: a client that leaves frees the GPU."""
    one = await upstream()
    running = await edge({"eu": [one]})
    links = len(one.links)
    client = await running.connect()
    client.write(request(chat()))
    client.close()
    await until(lambda: running.records())
    assert (await running.record())["outcome"] in ("client_gone", "ok")
    await until(lambda: all(link.is_closed for link in one.links[links:]) or running.pool(one)._idle)


async def test_fc12_e_while_another_endpoint_is_tried(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-12 e: a client that leaves frees the GPU."""
    gate = asyncio.Event()
    eu, us, ap = await upstream(["rst"]), await upstream([gate, "rst"]), await upstream()
    running = await edge({"eu": [eu], "us": [us], "ap": [ap]})
    client = await running.connect()
    client.send(STREAM)
    await until(lambda: us.requests)
    client.close()
    await until(lambda: running.records())
    gate.set()
    record = await running.record()
    assert (record["outcome"], record["attempts"], record["region"]) == ("client_gone", 2, "us")
    await until(lambda: us.asked[0].is_closed)
    assert ap.requests == []


async def test_a_half_closed_client_counts_as_gone(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream(["hang"])
    running = await edge({"eu": [one]})
    client = await running.connect()
    client.send(STREAM)
    await until(lambda: one.requests)
    client.half_close()
    assert await client.end() in ("fin", "rst")
    assert (await running.record())["status"] == 499


HALF_OPEN: dict[str, list[Step]] = {
    "json": [0.05, GOOD],
    "stream": [SSE_HEAD + chunk(event("A")), 0.05, chunk(DONE) + LAST],
}


@pytest.mark.parametrize("name", HALF_OPEN)
async def test_half_close_allowed_gets_the_whole_answer_and_then_a_close(
    name: str, edge: MakeEdge, upstream: MakeUpstream
) -> None:
    one = await upstream(HALF_OPEN[name])
    running = await edge({"eu": [one]}, limits={"allow_half_close": True})
    client = await running.connect()
    found = client.send(request(chat(stream=name == "stream")))
    client.half_close()
    await client.whole(found)
    assert found.status == 200
    assert await client.end() == "fin"
    await until(lambda: running.edge.counters.open_connections == 0, "the edge to forget the connection")
    assert (await running.record())["outcome"] == "ok"


async def test_half_close_allowed_and_then_gone_is_gone(edge: MakeEdge, upstream: MakeUpstream) -> None:
    gate = asyncio.Event()
    steps: list[Step] = [SSE_HEAD + chunk(event("A")), gate, *[chunk(event("B") * 1000)] * 50, "hang"]
    one = await upstream(steps)
    running = await edge({"eu": [one]}, limits={"allow_half_close": True})
    client = await running.connect()
    found = client.send(STREAM)
    client.half_close()
    await until(lambda: found.body)
    client.reset()
    gate.set()
    await until(lambda: running.records(), "the next writes to find out")
    assert (await running.record())["outcome"] == "client_gone"
    await until(lambda: one.asked[0].is_closed or one.asked[0].ended)


async def test_half_close_with_half_a_request_is_an_end(edge: MakeEdge, upstream: MakeUpstream) -> None:
    running = await edge({"eu": [await upstream()]}, limits={"allow_half_close": True})
    client = await running.connect()
    client.write(request(chat())[:-3])
    client.half_close()
    assert await client.end() == "fin"
    assert (await running.record())["status"] == 499
