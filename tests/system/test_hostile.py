"""Clients that mean ill or are merely odd: wrong bytes, pipelining, leaving at every step."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.edge import RunningEdge
from tests.support.raw_client import RawClient, chat, request, until
from tests.support.raw_upstream import DONE, GOOD, LAST, SSE_HEAD, RawUpstream, answer, chunk, event, stream
from tests.system.conftest import MakeEdge, MakeUpstream

GET_MODELS = request(method="GET", path="/v1/models")
ASK = request(chat())
STREAM = request(chat(stream=True))
BIG = b"x" * 1024 * 1024


# --- pipelining ---------------------------------------------------------------------------------------


async def answers_to(client: RawClient, raw: bytes, count: int) -> list[int]:
    """Send `raw` and read `count` answers."""
    found = client.send(raw)
    statuses = []
    for i in range(count):
        await client.whole(found)
        statuses.append(found.status)
        if i < count - 1:
            found = client.expect()
    return statuses


async def test_two_requests_in_one_segment_are_answered_in_order(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream([0.02, GOOD], stream(event("A"), DONE), [GOOD])
    running = await edge({"eu": [one]})
    client = await running.connect()
    found = client.send(ASK + STREAM + GET_MODELS + ASK)
    await client.whole(found)
    assert bytes(found.body) == GOOD.partition(b"\r\n\r\n")[2]
    found = await client.whole(client.expect())
    assert found.body == event("A") + DONE
    assert (await client.whole(client.expect())).json["object"] == "list"
    assert (await client.whole(client.expect())).status == 200
    assert [got.body for got in one.requests] == [raw.partition(b"\r\n\r\n")[2] for raw in (ASK, STREAM, ASK)]


@pytest.mark.parametrize("delay_s", [0, 0.05])
async def test_an_error_behind_good_requests_is_answered_after_them(
    delay_s: float, edge: MakeEdge, upstream: MakeUpstream
) -> None:
    running = await edge({"eu": [await upstream(default=[delay_s, GOOD])]})
    client = await running.connect()
    bad = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"
    assert await answers_to(client, ASK + GET_MODELS + ASK + bad + ASK, 4) == [200, 200, 200, 400]
    assert await client.end() == "fin"
    assert client.unread == b""


async def test_a_wrong_request_between_good_ones_does_not_end_the_connection(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    running = await edge({"eu": [await upstream()]})
    client = await running.connect()
    raw = request("{") + ASK + request(chat("absent")) + request(chat(), path="/nowhere") + ASK
    assert await answers_to(client, raw, 5) == [400, 200, 404, 404, 200]


async def test_many_pipelined_requests_are_all_answered(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream()
    running = await edge({"eu": [one]})
    client = await running.connect()
    assert await answers_to(client, (ASK + GET_MODELS) * 100, 200) == [200] * 200
    assert len(one.requests) == 100


async def test_close_ends_a_pipeline(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream()
    running = await edge({"eu": [one]})
    client = await running.connect()
    last = request(chat(), fields=(("Connection", "close"),))
    found = client.send(last + ASK)
    await client.whole(found)
    assert found.one("connection") == "close"
    assert await client.end() in ("fin", "rst")
    assert client.unread == b""
    assert len(one.requests) == 1


MEDIUM = b"x" * 150_000
"""More than a connection's write buffer takes before it asks for a pause."""


async def widen(running: RunningEdge, one: RawUpstream) -> None:
    """Let the upstream connection's window grow, so that the edge reads MEDIUM in one piece."""
    one.scripts.appendleft([answer(200, BIG * 8)])
    assert (await running.ask(ASK)).status == 200
    await until(lambda: running.edge.counters.open_connections == 0)


@pytest.mark.parametrize("raw", [GET_MODELS, ASK, STREAM])
async def test_a_pipelining_client_that_does_not_read_is_bounded(
    raw: bytes, edge: MakeEdge, upstream: MakeUpstream
) -> None:
    # The first answer is whole but not out: the second must not be fetched into memory behind it.
    big = [SSE_HEAD + chunk(event("A")), *[chunk(BIG)] * 12, LAST]
    one = await upstream([answer(200, MEDIUM)], big, [GOOD])
    running = await edge({"eu": [one]})
    await widen(running, one)
    client, transport = await running.connect_narrow()
    found = client.send(ASK + STREAM + raw * 30)
    await until(lambda: transport.get_write_buffer_size() > 100_000)
    for _ in range(20):
        assert transport.get_write_buffer_size() < len(BIG)
        await asyncio.sleep(0.01)
    assert client.transport is not None
    client.transport.resume_reading()
    await client.whole(found)
    assert found.body == MEDIUM
    second = await client.whole(client.expect())
    assert len(second.body) == len(event("A")) + 12 * len(BIG)
    for _ in range(30):
        assert (await client.whole(client.expect())).status == 200


@pytest.mark.parametrize("fields", [(), (("Connection", "close"),)])
@pytest.mark.parametrize("fault", [b"", b"junk\r\n\r\n"])
async def test_an_answer_that_is_never_taken_ends_by_the_clients_own_clock(
    fields: tuple[tuple[str, str], ...], fault: bytes, edge: MakeEdge, upstream: MakeUpstream
) -> None:
    one = await upstream([answer(200, MEDIUM)])
    running = await edge({"eu": [one]}, timeouts={"client_write": "400ms"})
    await widen(running, one)
    client, _ = await running.connect_narrow()
    client.send(request(chat(), fields=fields) + fault)
    await until(lambda: len(running.records()) == 2)
    assert running.records()[1]["outcome"] == "ok", "written, though not taken"
    await until(lambda: running.edge.counters.open_connections == 0, "the edge to give the client up", 5)


async def test_a_cut_answer_that_is_never_taken_ends_by_the_clients_own_clock(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    one = await upstream([SSE_HEAD + chunk(event("A") + MEDIUM), 0.05, "rst"])
    running = await edge({"eu": [one]}, timeouts={"client_write": "400ms"})
    await running.connect_narrow()
    (client,) = running._clients
    client.send(STREAM)
    await until(lambda: running.edge.counters.open_connections == 0, "the edge to give the client up", 5)


# --- wrong bytes --------------------------------------------------------------------------------------

CHUNKED = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
JUNK: dict[str, bytes] = {
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "nul bytes": bytes(100),
    "a header only": b"Host: a\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n",
    "HTTP/1.2": b"GET / HTTP/1.2\r\nHost: a\r\n\r\n",
    "HTTP/3": b"GET / HTTP/3.0\r\nHost: a\r\n\r\n",
    "lower-case method": b"get / HTTP/1.1\r\nHost: a\r\n\r\n",
    "an unknown method": b"BREW / HTTP/1.1\r\nHost: a\r\n\r\n",
    "bare CR": b"GET / HTTP/1.1\rHost: a\r\r",
    "CR in a value": b"GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n",
    "LF in a value": b"GET / HTTP/1.1\r\nHost: a\r\nX: a\nb\r\n\r\n",
    "NUL in a value": b"GET / HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n",
    "NUL in the target": b"GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n",
    "space in a name": b"GET / HTTP/1.1\r\nHost: a\r\nX Y: a\r\n\r\n",
    "space before the colon": b"GET / HTTP/1.1\r\nHost: a\r\nX : a\r\n\r\n",
    "a folded field": b"GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n",
    "no colon": b"GET / HTTP/1.1\r\nHost: a\r\nXY\r\n\r\n",
    "an empty name": b"GET / HTTP/1.1\r\nHost: a\r\n: a\r\n\r\n",
    "no host": b"GET /v1/models HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /v1/models HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
    "a bad host": b"GET /v1/models HTTP/1.1\r\nHost: a/b@c\r\n\r\n",
    "two targets": b"GET / / HTTP/1.1\r\nHost: a\r\n\r\n",
    "bad chunk size": CHUNKED + b"xyz\r\n",
    "negative chunk size": CHUNKED + b"-1\r\n",
    "0x chunk size": CHUNKED + b"0x1\r\na\r\n",
    "huge chunk size": CHUNKED + b"f" * 17,
    "chunk without CRLF": CHUNKED + b"1\r\nab\r\n",
}  # fmt: skip


@pytest.mark.parametrize("name", JUNK)
async def test_malformed_bytes_are_answered_400_and_closed(
    name: str, edge: MakeEdge, upstream: MakeUpstream
) -> None:
    one = await upstream()
    running = await edge({"eu": [one]})
    client = await running.connect()
    found = await client.ask(JUNK[name] + GET_MODELS)
    assert (found.status, found.error["code"], found.one("connection")) == (400, "bad_request", "close")
    assert await client.end() == "fin"
    assert client.unread == b""
    assert one.requests == []
    assert (await running.ask(ASK)).status == 200, "the edge goes on"


@pytest.mark.parametrize("place", ["name", "value", "target"])
async def test_every_byte_value_in_every_place(place: str, edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream()
    running = await edge({"eu": [one]})
    passed = []
    for byte in range(256):
        odd = bytes((byte,))
        field = {"name": b"X" + odd + b"Y: z", "value": b"X: a" + odd + b"b", "target": b"X: z"}[place]
        target = b"/v1/chat/completions" + (b"?" + odd + b"q" if place == "target" else b"")
        body = b'{"model":"m"}'
        raw = b"POST %b HTTP/1.1\r\nHost: a\r\n%b\r\nContent-Length: %d\r\n\r\n%b" % (
            target,
            field,
            len(body),
            body,
        )
        client = await running.connect()
        found = await client.ask(raw)
        assert found.status in (200, 400), byte
        if found.status == 200:
            passed.append(byte)
            assert one.requests[-1].raw.count(b"\r\n\r\n") == 1
        client.close()
    assert not set(passed) & {0, 10, 13}
    assert ord("a") in passed
    assert len(one.requests) == len(passed)


async def test_odd_but_good_requests(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream()
    running = await edge({"eu": [one]})
    body = b'{"model":"m"}'
    client = await running.connect()
    odd = [
        b"\r\n\r\nPOST /v1/completions HTTP/1.1\r\nHOST: a\r\ncontent-LENGTH:%d\r\n\r\n" % len(body),
        b"POST /v1/completions HTTP/1.1\r\nHost:\r\nX-Empty:\r\nContent-Length:  \t%d \t\r\n\r\n" % len(body),
        b"POST /v1/completions? HTTP/1.1\r\nHost: [::1]:80\r\nContent-Length: 0%d\r\n\r\n" % len(body),
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: Application/JSON; charset=utf-8\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body),
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked \r\n\r\nD\r\n",
    ]
    for head in odd:
        tail = body + b"\r\n0\r\n\r\n" if b"Chunked" in head else body
        assert (await client.ask(head + tail)).status == 200, head
    assert {got.body for got in one.requests} == {body}


async def test_trailers_of_a_request_end_here(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream()
    running = await edge({"eu": [one]}, {"ACME": "gk-1"}, tenants={"acme": {"key_env": "ACME"}})
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
    tail = (
        b'\r\nD\r\n{"model":"m"}\r\n0\r\nX-T: 1\r\nAuthorization: Bearer gk-1\r\nX-Forwarded-For: 9.9.9.9\r\n\r\n'
    )
    client = await running.connect()
    assert (await client.ask(head + tail)).status == 401, "a key in a trailer opens nothing"
    found = await client.ask(head + b"Authorization: Bearer gk-1\r\n" + tail)
    assert found.status == 200
    (got,) = one.requests
    assert got.all("x-t") == []
    assert got.all("x-forwarded-for") == ["127.0.0.1"]


ODD_NAMES = [
    'a"} 1\nfake_metric 2',
    "\x00\x1f\x7f",
    "\u2028\u2029",
    "\\",
    "\U0001f600",
    "m" * 256,
    "\x85",
    "</script>",
]


async def test_fc38_odd_names_make_no_odd_records_and_no_series(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-38: nobody can make up series, lines or ids."""
    running = await edge({"eu": [await upstream()]})
    client = await running.connect()
    assert (await client.ask(ASK)).status == 200
    assert (await client.ask(request(chat("first unknown")))).status == 404
    before = (await running.admin("/metrics")).body.count(b"\n")
    for name in ODD_NAMES:
        found = await client.ask(request(chat(name)))
        assert (found.status, found.error["code"]) == (404, "model_not_found")
    for path in ('/v1/"x\\', "/v1/%0a%22", "/" + "p" * 5000):
        assert (await client.ask(request(path=path))).status == 404
    records = running.records()
    assert [record["model"] for record in records[2:10]] == ODD_NAMES
    assert [record["path"] for record in records[10:]] == ['/v1/"x\\', "/v1/%0a%22", "/" + "p" * 127]
    metrics = (await running.admin("/metrics")).body
    assert b"fake_metric" not in metrics
    assert metrics.count(b"\n") - before <= 1, "outcome `refused` may be new"


async def test_endless_preambles_are_not_held_in_memory(edge: MakeEdge, upstream: MakeUpstream) -> None:
    ping = b'event: ping\ndata: {"type": "ping"}\n\n'
    one = await upstream([SSE_HEAD, *[chunk(ping * 1000)] * 100, "hang"])
    running = await edge({"eu": [one]})
    client = await running.connect()
    found = client.send(STREAM)
    await until(lambda: len(found.body) == len(ping) * 100_000)


# --- leaving ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_leaving_at_every_byte_of_a_request(how: str, edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream()
    running = await edge({"eu": [one]})
    for cut in range(0, len(ASK), 7):
        client = await running.connect()
        client.write(ASK[:cut])
        await until(lambda: running.edge.counters.open_connections >= 1)
        client.close() if how == "fin" else client.reset()
        await until(lambda: running.edge.counters.open_connections == 0)
    assert one.requests == []
    assert {record["status"] for record in running.records()} == {499}
    assert (await running.ask(ASK)).status == 200


@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_leaving_at_every_event_of_an_answer(how: str, edge: MakeEdge, upstream: MakeUpstream) -> None:
    events = [event(str(i)) for i in range(6)]
    one = await upstream()
    running = await edge({"eu": [one]})
    for count in range(1, 6):
        one.scripts.append([SSE_HEAD + b"".join(chunk(each) for each in events[:count]), "hang"])
        client = await running.connect()
        found = client.send(STREAM)
        await until(lambda: len(found.body) == len(b"".join(events[:count])))  # noqa: B023
        client.close() if how == "fin" else client.reset()
        await until(lambda: running.in_flight == 0)
    assert running.attempts() == {("eu", "aborted"): 5}
    assert running.failures(one) == 0
    assert {record["outcome"] for record in running.records()} == {"client_gone"}


async def test_slow_clients_do_not_hold_up_others(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream()
    running = await edge({"eu": [one]})
    slow = [await running.connect() for _ in range(50)]
    for i, client in enumerate(slow):
        client.write(ASK[: 1 + i * 3])
    for _ in range(20):
        assert (await running.ask(ASK)).status == 200
    for i, client in enumerate(slow):
        found = await client.ask(ASK[1 + i * 3 :])
        assert found.status == 200


async def test_a_websocket_offer_elsewhere_is_no_upgrade(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream()
    running = await edge({"eu": [one]})
    client = await running.connect()
    fields = (("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Key", "x"))
    found = await client.ask(request(method="GET", path="/v1/real", fields=fields) + ASK)
    assert found.status == 404
    assert (await client.whole(client.expect())).status == 200


async def test_ignored_upgrades_in_a_pipeline_are_all_answered(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream()
    running = await edge({"eu": [one]})
    fields = (("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", "h2c"), ("HTTP2-Settings", "AAMAAABk"))
    client = await running.connect()
    raw = request(chat(), fields=fields) + request(chat(), fields=fields, chunks=9) + ASK + GET_MODELS
    assert await answers_to(client, raw, 4) == [200] * 4
    assert len({got.body for got in one.requests}) == 1
