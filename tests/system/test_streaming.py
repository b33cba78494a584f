"""Streams pass as bytes, and a cut one never looks complete: FC-07, FC-08, FC-09, FC-11, FC-13."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
from random import Random
from typing import Any

import pytest

from tests.support.raw_client import RawClient, chat, request, until
from tests.support.raw_upstream import (
    DONE,
    LAST,
    ROLE_EVENT,
    SSE_HEAD,
    RawUpstream,
    Step,
    answer,
    chunk,
    event,
    stream,
)
from tests.system.conftest import MakeEdge, MakeUpstream

STREAM = request(chat(stream=True))
KOREAN = 'data: {"c":"한글"}\n\n'.encode()
PIECES = [
    b": warming\n\n",
    KOREAN[:-6],
    KOREAN[-6:],
    b'data:{"no":"space"}\r\n\r\n',
    b"event: x\nid: 7\ndata: a\ndata: b\n\n",
    'data: {"bom":"\ufeff"}\n\n'.encode(),
    DONE,
]


async def test_fc07_payload_passes_as_bytes_and_a_comment_at_once(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-07: a stream's payload passes as bytes."""
    gates = [asyncio.Event() for _ in PIECES]
    steps: list[Step] = [SSE_HEAD]
    for gate, piece in zip(gates, PIECES, strict=True):
        steps += [gate, chunk(piece)]
    running = await edge({"eu": [await upstream([*steps, LAST])]})
    client = await running.connect()
    found = client.send(STREAM)
    sent = b""
    for gate, piece in zip(gates, PIECES, strict=True):
        gate.set()
        sent += piece
        # Each piece is here before the next is sent: nothing waits for a whole event, or for the first token.
        await until(lambda: bytes(found.body) == sent, f"{sent!r}")  # noqa: B023 - awaited within the turn
    await client.whole(found)
    assert hashlib.sha256(found.body).digest() == hashlib.sha256(b"".join(PIECES)).digest()


async def test_fc07_the_same_bytes_come_out_wherever_they_are_cut(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-07: a stream's payload passes as bytes."""
    payload = b"".join(PIECES)
    one = await upstream()
    running = await edge({"eu": [one]})
    client = await running.connect()
    for cut in range(1, len(payload), 3):
        one.scripts.append([SSE_HEAD + chunk(payload[:cut]), 0, chunk(payload[cut:]) + LAST])
        found = await client.ask(STREAM)
        assert bytes(found.body) == payload, cut
    raw = SSE_HEAD + chunk(payload) + LAST
    one.scripts.append([raw[i : i + 1] for i in range(len(raw))])
    assert bytes((await client.ask(STREAM)).body) == payload


CUTS: dict[str, list[Step]] = {
    "fin on a chunk boundary": ["fin"],
    "rst on a chunk boundary": ["rst"],
    "fin inside a chunk": [b"50\r\ndata: {", "fin"],
    "rst inside a chunk": [b"50\r\ndata: {", "rst"],
    "a bad chunk size": [b"zz\r\n", "hang"],
    "fin inside the last chunk": [b"0\r\n", "fin"],
}


@pytest.mark.parametrize("name", CUTS)
async def test_fc08_a_cut_stream_never_looks_complete(name: str, edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-08 a, b, d: a cut stream never looks complete."""
    sent = event("A") + event("B")
    gate = asyncio.Event()
    one, other = (
        await upstream([SSE_HEAD + chunk(event("A")) + chunk(event("B")), gate, *CUTS[name]]),
        await upstream(),
    )
    running = await edge({"eu": [one], "us": [other]})
    client = await running.connect()
    found = client.send(STREAM)
    await until(lambda: bytes(found.body) == sent)
    gate.set()
    await client.end()
    assert not found.is_complete
    assert b"[DONE]" not in found.body
    assert bytes(found.body).startswith(sent)
    record = await running.record()
    assert (record["status"], record["outcome"], record["attempts"]) == (200, "upstream_truncated", 1)
    assert running.failures(one) == 1
    assert other.requests == []
    await until(lambda: all(link.is_closed or link.ended for link in one.asked))


async def test_fc08_c_a_short_answer_with_a_length(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-08 c and a: a cut stream never looks complete."""
    one = await upstream([answer(200, b"x" * 500)[:-200], "fin"])
    running = await edge({"eu": [one]})
    client = await running.connect()
    found = client.send(request(chat()))
    assert await client.end() == "fin"
    assert (found.one("content-length"), len(found.body), found.is_complete) == ("500", 300, False)
    assert (await running.record())["outcome"] == "upstream_truncated"


async def test_fc08_e_an_answer_that_ends_at_close_is_complete(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-08 e: a cut stream never looks complete."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    running = await edge({"eu": [await upstream([head + event("A") + event("B"), "fin"])]})
    client = await running.connect()
    found = await client.ask(STREAM)
    assert found.is_chunked
    assert found.body == event("A") + event("B")
    assert (await running.record())["outcome"] == "ok"
    assert (await client.ask(request(chat()))).status == 200


async def test_fc08_an_http_10_client_is_reset_when_its_stream_is_cut(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-08: a cut stream never looks complete."""
    running = await edge({"eu": [await upstream([SSE_HEAD + chunk(event("A")), "rst"])]})
    client = await running.connect()
    found = client.send(request(chat(stream=True), version="1.0"))
    await until(lambda: client.is_closed, "a reset, as a plain close would mean the end of a whole answer")
    assert client.ended == "rst"
    assert bytes(found.body).startswith(event("A"))


async def cut_after(
    edge: MakeEdge, upstream: MakeUpstream, path: str, *payloads: bytes
) -> tuple[bytes, RawUpstream]:
    """What a client receives of a stream that is reset after `payloads`."""
    gate = asyncio.Event()
    one = await upstream([SSE_HEAD + b"".join(map(chunk, payloads)), gate, "rst"])
    running = await edge({"eu": [one]})
    client = await running.connect()
    found = client.send(request(chat(stream=True), path=path))
    await until(lambda: bytes(found.body) == b"".join(payloads))
    gate.set()
    await client.end()
    assert not found.is_complete
    return bytes(found.body)[len(b"".join(payloads)) :], one


async def test_fc09_a_one_error_event_between_events(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-09 a: a stream's reader is told that it failed."""
    told, one = await cut_after(edge, upstream, "/v1/chat/completions", event("A"), event("B"))
    assert told.startswith(b"data: ")
    assert told.endswith(b"\n\n")
    assert told.count(b"\n\n") == 1
    error = json.loads(told.removeprefix(b"data: "))["error"]
    assert error == {
        "message": "the upstream ended the stream early", "type": "server_error", "param": None,
        "code": "upstream_disconnected",
    }  # fmt: skip
    assert str(one.port).encode() not in told


@pytest.mark.parametrize(
    ("path", "payload"),
    [
        ("/v1/messages", b'event: content_block_delta\ndata: {"type":"content_block_delta"}\n\n'),
        ("/v1/responses", b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta"}\n\n'),
    ],
)
async def test_fc09_the_event_is_in_the_callers_dialect(
    path: str, payload: bytes, edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-09: a stream's reader is told that it failed."""
    told, _ = await cut_after(edge, upstream, path, payload)
    name, data, *_ = told.split(b"\n")
    assert name == b"event: error"
    assert json.loads(data.removeprefix(b"data: "))["type"] == "error"


@pytest.mark.parametrize("half", [b'data: {"cho', b"data: x\n", b"event: y\ndata: x\r\n", b"d"])
async def test_fc09_b_nothing_is_added_inside_an_event(
    half: bytes, edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-09 b: a stream's reader is told that it failed."""
    told, _ = await cut_after(edge, upstream, "/v1/chat/completions", event("A"), half)
    assert told == b""


async def test_fc09_c_nothing_is_added_to_json(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-09 c: a stream's reader is told that it failed."""
    head = SSE_HEAD.replace(b"text/event-stream", b"application/json")
    one = await upstream([head + chunk(b'{"a":1}\n\n'), "rst"])
    running = await edge({"eu": [one]})
    client = await running.connect()
    found = client.send(STREAM)
    await client.end()
    assert (bytes(found.body), found.is_complete) == (b'{"a":1}\n\n', False)


async def test_fc09_nothing_is_added_to_a_compressed_stream(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-09: a stream's reader is told that it failed."""
    head = SSE_HEAD[:-2] + b"Content-Encoding: gzip\r\n\r\n"
    one = await upstream([head + chunk(b"\x1f\x8b\n\n"), "rst"])
    running = await edge({"eu": [one]})
    client = await running.connect()
    found = client.send(STREAM)
    await client.end()
    assert (bytes(found.body), found.is_complete) == (b"\x1f\x8b\n\n", False)


async def test_fc11_events_pass_one_by_one_without_compression(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-11: events are neither compressed nor held back."""
    gates = [asyncio.Event() for _ in range(5)]
    events = [event(f"token {i}") for i in range(5)]
    steps: list[Step] = [SSE_HEAD[:-2] + b"Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n\r\n"]
    for gate, one_event in zip(gates, events, strict=True):
        steps += [gate, chunk(one_event)]
    one = await upstream([*steps, LAST])
    running = await edge({"eu": [one]})
    client = await running.connect()
    found = client.send(request(chat(stream=True), fields=(("Accept-Encoding", "gzip, br"),)))
    await until(lambda: one.requests)
    assert not found.has_head, "the head is held until the first content (the commit rule)"
    for i, gate in enumerate(gates):
        gate.set()
        await until(lambda: found.chunks == events[: i + 1], "one chunk per event")  # noqa: B023
    await client.whole(found)
    assert found.one("content-encoding") is None
    assert found.one("cache-control") == "no-cache"
    assert found.one("x-accel-buffering") == "no"
    assert one.requests[0].all("accept-encoding") == ["gzip, br"]


async def test_fc11_a_compressed_stream_passes_untouched(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-11: events are neither compressed nor held back."""
    noise = bytes(range(256))
    running = await edge(
        {"eu": [await upstream([SSE_HEAD[:-2] + b"Content-Encoding: gzip\r\n\r\n" + chunk(noise) + LAST])]}
    )
    found = await running.ask(STREAM)
    assert (bytes(found.body), found.one("content-encoding")) == (noise, "gzip")


async def test_fc11_no_delay_on_both_sockets(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-11: events are neither compressed nor held back."""
    gate = asyncio.Event()
    one = await upstream([SSE_HEAD + chunk(event("A")), gate, LAST])
    running = await edge({"eu": [one]})
    client = await running.connect()
    found = client.send(STREAM)
    await until(lambda: found.body)
    transports: list[Any] = [connection._transport for connection in running.edge._listener.connections]
    transports += [connection.transport for connection in running.pool(one)._all]
    assert len(transports) == 2
    for transport in transports:
        assert transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    gate.set()
    await client.whole(found)


def stop_reading(client: RawClient) -> None:
    assert client.transport is not None
    client.transport.pause_reading()


BIG = bytes(range(256)) * 4096  # 1 MiB
MANY = 48
"""MiB: more than all sockets on the way hold."""


async def test_fc13_a_slow_client_holds_the_upstream_back_and_gets_every_byte(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-13: a slow client holds the upstream back."""
    one = await upstream([SSE_HEAD + chunk(event("A")), *[chunk(BIG)] * MANY, LAST, "fin"])
    running = await edge({"eu": [one]})
    client = await running.connect()
    found = client.send(STREAM)
    await until(lambda: found.body)
    stop_reading(client)
    assert client.transport is not None
    (link,) = one.asked
    sent = -1
    while link.sent_bytes != sent:  # until the sockets are full
        sent = link.sent_bytes
        await asyncio.sleep(0.1)
    assert sent < MANY * len(BIG), "the upstream had to wait"
    (connection,) = running.edge._listener.connections
    assert connection._transport is not None
    assert connection._transport.get_write_buffer_size() < 1024 * 1024
    client.transport.resume_reading()
    await client.whole(found)
    assert hashlib.sha256(found.body).digest() == hashlib.sha256(event("A") + BIG * MANY).digest()


async def test_fc13_a_client_that_vanishes_while_paused_frees_the_upstream(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-13: a slow client holds the upstream back."""
    one = await upstream([SSE_HEAD + chunk(event("A")), *[chunk(BIG)] * MANY, LAST])
    running = await edge({"eu": [one]})
    client = await running.connect()
    found = client.send(STREAM)
    await until(lambda: found.body)
    stop_reading(client)
    (connection,) = running.edge._listener.connections
    await until(lambda: connection._exchange is not None and connection._exchange._is_paused, "back-pressure")
    client.reset()
    (link,) = one.asked
    await until(lambda: link.ended or link.is_closed, "the upstream to be let go", 2)
    assert (await running.record())["outcome"] == "client_gone"


async def test_role_only_and_usage_pass_with_the_stream(edge: MakeEdge, upstream: MakeUpstream) -> None:
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}\n\n'
    running = await edge({"eu": [await upstream(stream(ROLE_EVENT, event("A"), usage, DONE))]})
    found = await running.ask(STREAM)
    assert found.body == ROLE_EVENT + event("A") + usage + DONE
    record = await running.record()
    assert (record["prompt_tokens"], record["completion_tokens"]) == (7, 3)
    assert record["bytes_out"] == len(found.body)


async def test_fc07_payload_received_is_payload_sent_in_any_segmentation(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-07: a stream's payload passes as bytes."""
    dice = Random(20261130)
    one = await upstream()
    running = await edge({"eu": [one]})
    client = await running.connect()
    for _ in range(40):
        payload = b"".join(
            dice.choice((event("x" * dice.randrange(9)), dice.randbytes(20), b": c\n\n")) for _ in range(9)
        )
        raw = SSE_HEAD + b"".join(map(chunk, pieces_of(payload, dice))) + LAST
        one.scripts.append(pieces_of(raw, dice))
        body = json.dumps(chat(stream=True, prompt="y" * dice.randrange(3000))).encode()
        found = client.expect()
        for piece in pieces_of(request(body, chunks=dice.choice((0, 7, 500))), dice):
            client.write(piece)
            await asyncio.sleep(0)
        await client.whole(found)
        assert bytes(found.body) == payload
        assert one.requests[-1].body == body


def pieces_of(data: bytes, dice: Random) -> list[bytes]:
    """`data` cut at random places."""
    places = sorted({dice.randrange(1, len(data)) for _ in range(dice.randrange(12))}) if len(data) > 1 else []
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]
