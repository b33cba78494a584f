"""Kept connections to endpoints, and the ones that close under a request: FC-15."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.raw_client import chat, request, until
from tests.support.raw_upstream import DONE, GOOD, LAST, SSE_HEAD, Step, answer, chunk, event, stream
from tests.system.conftest import MakeEdge, MakeMock, MakeUpstream

ASK = request(chat())
STREAM = request(chat(stream=True))


async def test_fc15_connections_are_reused_also_after_streams(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-15: pooled connections that the endpoint closes."""
    one = await upstream([GOOD], stream(event("A"), DONE), [answer(404, b"{}")], [GOOD])
    running = await edge({"eu": [one]})
    client = await running.connect()
    for raw in (ASK, STREAM, ASK, ASK):
        await client.ask(raw)
    assert len(one.requests) == 4
    assert len(one.asked) == 1


async def test_fc15_a_a_connection_closed_while_idle_is_not_used(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-15 a: pooled connections that the endpoint closes."""
    one = await upstream([GOOD, 0.05, "fin"])
    running = await edge({"eu": [one]})
    client = await running.connect()
    assert (await client.ask(ASK)).status == 200
    await until(lambda: one.asked[0].is_closed)
    found = await client.ask(ASK)
    assert (found.status, found.one("x-gslb-attempts")) == (200, "1")
    assert len(one.asked) == 2
    assert running.attempts() == {("eu", "ok"): 2}


async def test_fc15_a_with_a_real_keep_alive_limit(edge: MakeEdge, mock: MakeMock) -> None:
    """FC-15 a: pooled connections that the endpoint closes."""
    one = await mock(keep_alive_s=0.15)
    running = await edge({"eu": [one]})
    client = await running.connect()
    assert (await client.ask(ASK)).status == 200
    closed = len(one.closings)
    await until(lambda: len(one.closings) > closed)
    found = await client.ask(ASK)
    assert (found.status, found.one("x-gslb-attempts")) == (200, "1")


@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_fc15_b_closed_under_the_request_it_is_sent_again_to_the_same(
    how: str, edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-15 b: pooled connections that the endpoint closes."""
    one, other = await upstream([GOOD], [how], [GOOD]), await upstream()
    running = await edge(
        {"eu": [one], "us": [other]}, routing={"failover": {"retry_budget": {"floor": 0, "share": 0}}}
    )
    client = await running.connect()
    assert (await client.ask(ASK)).status == 200
    found = await client.ask(ASK)
    assert (found.status, found.one("x-gslb-attempts")) == (200, "1")
    assert [request.link for request in one.requests] == [one.asked[0], one.asked[0], one.asked[1]]
    assert len({request.body for request in one.requests}) == 1
    assert other.requests == []
    assert running.failures(one) == 0
    assert running.state(one) == "admitting"


async def test_fc15_b_only_once(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-15 b: pooled connections that the endpoint closes."""
    one, other = await upstream([GOOD], ["rst"], ["rst"]), await upstream()
    running = await edge({"eu": [one], "us": [other]})
    client = await running.connect()
    assert (await client.ask(ASK)).status == 200
    found = await client.ask(ASK)
    assert (found.status, found.one("x-gslb-region"), found.one("x-gslb-attempts")) == (200, "us", "2")
    assert len(one.requests) == 3
    assert running.failures(one) == 1


async def test_fc15_c_fifty_stale_connections_and_fifty_requests(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-15 c: pooled connections that the endpoint closes."""
    gate = asyncio.Event()
    one = await upstream(*[[gate, GOOD]] * 50)
    running = await edge({"eu": [one]})
    clients = [await running.connect() for _ in range(50)]
    answers = [client.send(ASK) for client in clients]
    await until(lambda: len(one.requests) == 50)
    gate.set()
    for client, found in zip(clients, answers, strict=True):
        assert (await client.whole(found)).status == 200
    assert len(one.asked) == 50
    assert len(running.pool(one)._idle) == 50
    for link in one.asked:
        link.close()
    for client, found in [(client, client.send(ASK)) for client in clients]:
        assert (await client.whole(found)).one("x-gslb-attempts") == "1"
    assert running.attempts() == {("eu", "ok"): 100}
    assert running.failures(one) == 0


NOT_KEPT: dict[str, list[Step]] = {
    "connection: close": [answer(200, b"{}", ("Connection", "close"))],
    "http 1.0": [GOOD.replace(b"HTTP/1.1", b"HTTP/1.0")],
    "bytes behind the answer": [GOOD + b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nstolen"],
    "junk behind the answer": [GOOD + b"\x00\x01\x02"],
    "junk behind a stream": [SSE_HEAD + chunk(event("A")) + LAST + b"junk"],
    "a body behind 204": [b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello"],
    "keep-alive: timeout=0": [answer(200, b"{}", ("Keep-Alive", "timeout=0"))],
}


@pytest.mark.parametrize("name", NOT_KEPT)
async def test_fc15_d_connections_that_are_not_kept(name: str, edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-15 d: pooled connections that the endpoint closes."""
    one = await upstream(NOT_KEPT[name], [GOOD])
    running = await edge({"eu": [one]})
    client = await running.connect()
    found = await client.ask(STREAM if "stream" in name else ASK)
    assert found.status in (200, 204)
    assert b"stolen" not in found.body
    assert (await client.ask(ASK)).body == GOOD.partition(b"\r\n\r\n")[2]
    assert len(one.asked) == 2
    assert {record["outcome"] for record in running.records()} == {"ok"}


@pytest.mark.parametrize("junk", [b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nstolen", b"x", b"\r\n"])
async def test_fc15_stray_bytes_on_an_idle_connection_kill_it(
    junk: bytes, edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-15: pooled connections that the endpoint closes."""
    gate = asyncio.Event()
    one = await upstream([GOOD, gate, junk, "hang"])
    running = await edge({"eu": [one]})
    client = await running.connect()
    assert (await client.ask(ASK)).status == 200
    gate.set()
    await until(lambda: one.asked[0].ended or one.asked[0].is_closed)
    found = await client.ask(ASK)
    assert found.body == GOOD.partition(b"\r\n\r\n")[2]
    assert len(one.asked) == 2


async def test_fc15_e_an_announced_limit_is_kept(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-15 e: pooled connections that the endpoint closes."""
    one = await upstream(default=[answer(200, b"{}", ("Keep-Alive", "timeout=1"))])
    running = await edge({"eu": [one]})
    client = await running.connect()
    await client.ask(ASK)
    (link,) = one.asked
    begun_s = asyncio.get_running_loop().time()
    await until(lambda: link.ended or link.is_closed, "the edge to retire the connection")
    assert link.ended_at_s - begun_s < 3.8, "sooner than connections are retired without being told"
    await client.ask(ASK)
    assert len(one.asked) == 2


async def test_idle_connections_are_retired_before_vllm_closes_them(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    one = await upstream()
    running = await edge({"eu": [one]}, timeouts={"upstream_idle": "100ms"})
    client = await running.connect()
    await client.ask(ASK)
    await until(lambda: one.asked[0].ended or one.asked[0].is_closed)
    await client.ask(ASK)
    assert len(one.asked) == 2


async def test_trailers_end_here_and_do_not_reach_the_next_answer(edge: MakeEdge, upstream: MakeUpstream) -> None:
    trailers = b"0\r\nX-Trailer: 1\r\nSet-Cookie: a=b\r\n\r\n"
    one = await upstream([SSE_HEAD + chunk(event("A")) + trailers], [GOOD])
    running = await edge({"eu": [one]})
    client = await running.connect()
    found = await client.ask(STREAM)
    assert found.body == event("A")
    assert found.all("x-trailer") == found.all("set-cookie") == found.all("content-length") == []
    found = await client.ask(ASK)
    assert found.body == GOOD.partition(b"\r\n\r\n")[2]
    assert found.all("x-trailer") == found.all("set-cookie") == []
    assert len(one.asked) == 1


async def test_an_early_answer_passes_and_its_connection_is_not_kept(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    one = await upstream([answer(413, b'{"error":{"message":"no"}}')], [GOOD])
    one.answers_early = True
    running = await edge({"eu": [one]})
    client = await running.connect()
    found = await client.ask(request(chat(prompt="x" * 8_000_000)))
    assert found.status == 413
    assert (await client.ask(ASK)).status == 200
    assert len(one.asked) == 2


async def test_interim_answers_of_an_upstream_are_dropped(edge: MakeEdge, upstream: MakeUpstream) -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"
    one = await upstream([early + GOOD], [early, 0.02, GOOD], [GOOD])
    running = await edge({"eu": [one]})
    client = await running.connect()
    for _ in range(3):
        found = await client.ask(ASK)
        assert (found.status, found.interim, found.all("link")) == (200, [], [])
    assert len(one.asked) == 1


async def test_an_answer_head_without_end_is_given_up(edge: MakeEdge, upstream: MakeUpstream) -> None:
    flood: list[Step] = [b"HTTP/1.1 200 OK\r\n", *[b"X-Flood: " + b"x" * 16_000 + b"\r\n"] * 200, "hang"]
    one_line: list[Step] = [b"HTTP/1.1 200 OK\r\nX-Flood: ", *[b"x" * 16_000] * 200, "hang"]
    interim: list[Step] = [*[b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\n" * 1000] * 20, "hang"]
    eu, us = await upstream(flood, one_line, interim), await upstream()
    running = await edge({"eu": [eu], "us": [us]}, health={"passive_fall": 100})
    for _ in range(3):
        found = await running.ask(ASK)
        assert (found.status, found.one("x-gslb-region")) == (200, "us")
    assert running.attempts()[("eu", "protocol_error")] == 3


async def test_a_big_but_honest_head_passes(edge: MakeEdge, upstream: MakeUpstream) -> None:
    fields = tuple((f"X-Field-{i}", "v" * 500) for i in range(60))
    one = await upstream([answer(200, b"{}", *fields)])
    running = await edge({"eu": [one]})
    found = await running.ask(ASK)
    assert found.status == 200
    assert all(found.one(name) == value for name, value in fields)
