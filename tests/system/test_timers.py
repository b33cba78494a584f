"""Separate clocks: FC-10, and the receiving half of FC-36. Times are lower bounds; upper ones are generous."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack
from typing import Any

from gslb.routing.health import Outcome
from tests.support.raw_client import RawClient, chat, request, until
from tests.support.raw_upstream import DONE, LAST, SSE_HEAD, Step, answer, chunk, event, stream
from tests.system.conftest import MakeEdge, MakeUpstream

STREAM = request(chat(stream=True))
QUICK = {"connect": "200ms", "first_byte": "600ms", "between_bytes": "300ms"}


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def test_fc10_a_a_long_stream_with_short_gaps_is_never_cut(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-10 a: separate clocks."""
    steps: list[Step] = [SSE_HEAD]
    for i in range(10):
        steps += [0.1, chunk(event(str(i)))]
    timeouts = {"first_byte": "700ms", "between_bytes": "700ms"}
    running = await edge({"eu": [await upstream([*steps, LAST])]}, timeouts=timeouts)
    found = await running.ask(STREAM)
    assert found.body == b"".join(event(str(i)) for i in range(10))


async def test_fc10_b_the_first_event_has_the_first_bytes_limit(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-10 b: separate clocks."""
    # Longer than between two bytes, after the head: that is prefill, not silence.
    timeouts = {"first_byte": "8s", "between_bytes": "300ms"}
    running = await edge({"eu": [await upstream([SSE_HEAD, 0.5, chunk(event("A")), LAST])]}, timeouts=timeouts)
    found = await running.ask(STREAM)
    assert found.body == event("A")


async def test_fc10_c_silence_within_a_stream_cuts_it(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-10 c: separate clocks."""
    one = await upstream([SSE_HEAD + chunk(event("A") + event("B")), "hang"])
    running = await edge({"eu": [one]}, timeouts=QUICK)
    client = await running.connect()
    begun_s = now_s()
    found = client.send(STREAM)
    await client.end()
    assert now_s() - begun_s >= 0.27, "a tick of the ring's clock early at most"
    assert not found.is_complete
    assert found.body.count(b'"error"') == 1
    assert b"[DONE]" not in found.body
    record = await running.record()
    assert (record["outcome"], record["status"]) == ("timeout", 200)
    assert running.attempts() == {("eu", "timeout"): 1}
    assert running.failures(one) == 1


async def test_fc10_d_an_endpoint_that_never_answers_is_504(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-10 d: separate clocks."""
    one = await upstream(["hang"])
    running = await edge({"eu": [one]}, timeouts=QUICK)
    begun_s = now_s()
    found = await running.ask(STREAM)
    assert now_s() - begun_s >= 0.59
    assert (found.status, found.error["code"]) == (504, "upstream_timeout")
    assert found.one("x-should-retry") == "false"
    assert (await running.record())["outcome"] == "timeout"
    await until(lambda: one.asked[0].ended or one.asked[0].is_closed, "the connection to be dropped")


async def test_fc10_d_another_endpoint_answers_instead(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-10 d: separate clocks."""
    eu, us = await upstream([SSE_HEAD, "hang"]), await upstream()
    running = await edge({"eu": [eu], "us": [us]}, timeouts=QUICK)
    found = await running.ask(STREAM)
    assert (found.status, found.one("x-gslb-region"), found.one("x-gslb-attempts")) == (200, "us", "2")


async def test_fc10_answers_that_are_made_whole_have_a_limit_of_their_own(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-10: separate clocks."""
    running = await edge(
        {"eu": [await upstream([0.8, answer(200, b"{}")], ["hang"])]}, timeouts={**QUICK, "answer": "1500ms"}
    )
    assert (await running.ask(request(chat()))).status == 200
    assert (await running.ask(request(chat()))).status == 504


async def test_fc10_e_a_swallowed_connect_goes_to_the_next_endpoint(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-10 e and a: separate clocks."""
    eu, us = await upstream(), await upstream()
    running = await edge({"eu": [eu], "us": [us]}, timeouts=QUICK)
    eu.stop()
    with socket.socket() as full, ExitStack() as held:
        full.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        full.bind(("127.0.0.1", eu.port))
        full.listen(0)  # once its queue is full, what else arrives is dropped without an answer
        for _ in range(4):
            caller = held.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(("127.0.0.1", eu.port))
        begun_s = now_s()
        found = await running.ask(STREAM)
        assert now_s() - begun_s >= 0.19
    assert (found.status, found.one("x-gslb-region"), found.one("x-gslb-attempts")) == (200, "us", "2")
    assert running.attempts() == {("eu", "connect_error"): 1, ("us", "ok"): 1}


async def test_fc10_f_a_client_that_does_not_read_is_not_the_upstreams_fault(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-10 f and a: separate clocks."""
    big = chunk(b"x" * 1024 * 1024)
    one = await upstream([SSE_HEAD + chunk(event("A")), *[big] * 16, LAST])
    running = await edge({"eu": [one]}, timeouts={**QUICK, "client_write": "800ms"})
    client = await running.connect()
    found = client.send(STREAM)
    await until(lambda: found.body)
    assert client.transport is not None
    client.transport.pause_reading()
    begun_s = now_s()
    await until(lambda: running.open_exchanges == 0, "the client's own limit")
    assert now_s() - begun_s > 0.5, "later than the silence between bytes allows"
    record = await running.record()
    assert record["outcome"] == "client_gone"
    assert running.failures(one) == 0
    assert running.attempts() == {("eu", "aborted"): 1}


async def test_a_slow_reader_that_reads_in_the_end_gets_it_all(edge: MakeEdge, upstream: MakeUpstream) -> None:
    big = b"x" * 1024 * 1024
    one = await upstream([SSE_HEAD + chunk(event("A")), *[chunk(big)] * 16, LAST])
    patient = {"connect": "5s", "first_byte": "8s", "client_write": "5s"}
    running = await edge({"eu": [one]}, timeouts={**QUICK, **patient})
    client = await running.connect()
    found = client.send(STREAM)
    await until(lambda: found.body)
    assert client.transport is not None
    client.transport.pause_reading()
    await asyncio.sleep(0.5)  # the case: longer than the silence between bytes may be
    client.transport.resume_reading()
    await client.whole(found)
    assert len(found.body) == len(event("A")) + 16 * len(big)


async def test_a_total_limit_ends_a_healthy_stream_and_blames_nobody(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    steps: list[Step] = [SSE_HEAD]
    for i in range(20):
        steps += [chunk(event(str(i))), 0.1]
    one = await upstream(steps)
    running = await edge({"eu": [one]}, timeouts={"total": "500ms"})
    client = await running.connect()
    found = client.send(STREAM)
    await client.end()
    assert not found.is_complete
    assert found.body.startswith(event("0"))
    assert (await running.record())["outcome"] == "timeout"
    assert running.failures(one) == 0


async def test_a_total_limit_ends_a_search_for_an_endpoint(edge: MakeEdge, upstream: MakeUpstream) -> None:
    eu, us = await upstream(["hang"]), await upstream(["hang"])
    running = await edge({"eu": [eu], "us": [us]}, timeouts={"total": "1s", "first_byte": "600ms"})
    found = await running.ask(STREAM)
    assert (found.status, found.error["code"]) == (504, "upstream_timeout")
    assert len(eu.requests) == len(us.requests) == 1
    assert running.failures(eu) == 1
    assert running.failures(us) == 0, "it was not given its own time"


async def test_commit_after_sends_the_head_and_ends_the_choice(edge: MakeEdge, upstream: MakeUpstream) -> None:
    gate = asyncio.Event()
    eu, us = await upstream([SSE_HEAD, gate, "rst"]), await upstream()
    running = await edge({"eu": [eu], "us": [us]}, timeouts={"commit_after": "200ms"})
    client = await running.connect()
    begun_s = now_s()
    found = client.send(STREAM)
    await until(lambda: found.has_head)
    assert now_s() - begun_s >= 0.19
    assert found.body == b""
    gate.set()
    await client.end()
    assert not found.is_complete
    assert found.body.count(b'"error"') == 1
    assert us.requests == []


async def test_a_queued_stream_leaves_an_endpoint_that_others_found_ill(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    eu, us = await upstream([SSE_HEAD, "hang"]), await upstream(stream(event("A")))
    running = await edge({"eu": [eu], "us": [us]}, timeouts={"commit_after": "200ms"})
    client = await running.connect()
    found = client.send(STREAM)
    await until(lambda: bool(eu.requests))
    key = running.edge.fleet.snapshot.endpoints[0].endpoint.key
    running.edge.fleet.outcome(key, Outcome.BROKEN, now_s(), "reset under another request")
    await until(lambda: found.is_complete)
    assert found.one("x-gslb-region") == "us"
    assert running.attempts() == {("eu", "timeout"): 1, ("us", "ok"): 1}


async def test_with_nobody_else_to_ask_it_waits_uncommitted(edge: MakeEdge, upstream: MakeUpstream) -> None:
    gate = asyncio.Event()
    eu = await upstream([SSE_HEAD, gate, chunk(event("A")), LAST])
    running = await edge({"eu": [eu]}, timeouts={"commit_after": "100ms"})
    client = await running.connect()
    found = client.send(STREAM)
    await until(lambda: bool(eu.requests))
    key = running.edge.fleet.snapshot.endpoints[0].endpoint.key
    running.edge.fleet.outcome(key, Outcome.BROKEN, now_s(), "reset under another request")
    await asyncio.sleep(0.4)
    assert not found.has_head
    gate.set()
    await until(lambda: found.is_complete)
    assert found.body == event("A")


# --- receiving a request ------------------------------------------------------------------------------


async def trickle(client: RawClient, data: bytes, every_s: float) -> None:
    for i in range(len(data)):
        if client.ended:
            return
        client.write(data[i : i + 1])
        await asyncio.sleep(every_s)


async def refused_while_trickling(running: Any, start: bytes, rest: bytes) -> float:
    client = await running.connect()
    client.write(start)
    begun_s = now_s()
    found = client.expect()
    await trickle(client, rest, 0.05)
    took_s = now_s() - begun_s
    assert (found.status, found.error["code"]) == (408, "request_timeout")
    assert found.one("connection") == "close"
    return float(took_s)


async def test_fc36_h_a_trickled_head_has_one_clock(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-36 h and a: bounds on what is sent, however it is sent."""
    running = await edge({"eu": [await upstream()]}, timeouts={"request_head": "400ms"})
    took_s = await refused_while_trickling(running, b"", b"POST /v1/completions HTTP/1.1\r\n" + b"X-A: b\r\n" * 50)
    assert 0.35 < took_s < 8


async def test_fc36_i_a_trickled_body_has_a_clock_of_its_own(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-36 i and a: bounds on what is sent, however it is sent."""
    one = await upstream()
    running = await edge({"eu": [one]}, timeouts={"request_head": "5s", "request_body": "400ms"})
    raw = request(chat(prompt="x" * 200))
    cut = raw.index(b"\r\n\r\n") + 4
    took_s = await refused_while_trickling(running, raw[:cut], raw[cut:])
    assert 0.35 < took_s < 8
    assert one.requests == []


async def test_the_next_request_on_a_connection_has_a_fresh_clock(edge: MakeEdge, upstream: MakeUpstream) -> None:
    running = await edge({"eu": [await upstream([1.2, answer(200, b"{}")])]}, timeouts={"request_head": "1s"})
    client = await running.connect()
    raw = request(chat())
    assert (await client.ask(raw)).status == 200
    for piece in (raw[:10], raw[10:60]):
        client.write(piece)
        await asyncio.sleep(0.1)
    assert (await client.ask(raw[60:])).status == 200


async def test_idle_connections_are_closed_without_a_word(edge: MakeEdge, upstream: MakeUpstream) -> None:
    timeouts = {"client_idle": "200ms", "request_head": "300ms"}
    running = await edge({"eu": [await upstream()]}, timeouts=timeouts)
    client, silent = await running.connect(), await running.connect()
    assert (await client.ask(request(chat()))).status == 200
    assert await client.end() == "fin"
    assert client.unread == b""
    assert await silent.end() == "fin"
    assert silent.received == b""


async def test_response_streaming_is_not_subject_to_the_clocks_of_receiving(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    steps: list[Step] = [SSE_HEAD]
    for i in range(6):
        steps += [chunk(event(str(i))), 0.1]
    timeouts = {"client_idle": "200ms", "request_head": "200ms", "request_body": "200ms"}
    running = await edge({"eu": [await upstream([*steps, chunk(DONE) + LAST])]}, timeouts=timeouts)
    assert (await running.ask(STREAM)).body.endswith(DONE)
