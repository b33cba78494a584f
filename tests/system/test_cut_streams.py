"""A stream that breaks, in each dialect and to each version of client: FC-08, FC-09, FC-21.

Between events the client is told so in its own dialect; the end is unclean; the record says what happened.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from tests.support.raw_client import chat, request, until
from tests.support.raw_upstream import DONE, LAST, SSE_HEAD, Step, answer, chunk, stream
from tests.system.conftest import MakeEdge, MakeUpstream


def named(name: str, **document: Any) -> bytes:
    """One event of the dialects whose events have names."""
    return f"event: {name}\ndata: {json.dumps({'type': name, **document})}\n\n".encode()


def plain(**document: Any) -> bytes:
    """One event of the OpenAI dialects."""
    return b"data: " + json.dumps(document).encode() + b"\n\n"


@dataclass(frozen=True)
class Dialect:
    """Events of one path: content, and the error events that an engine may send."""

    path: str
    content: bytes
    engine_error: bytes
    callers_error: bytes
    told: bytes
    """What the client gets from gslb when the stream is cut between events."""


WHY = "the upstream ended the stream early"
OPENAI_TOLD = plain(error={"message": WHY, "type": "server_error", "param": None, "code": "upstream_disconnected"})
DIALECTS = {
    "chat": Dialect(
        "/v1/chat/completions",
        plain(choices=[{"index": 0, "delta": {"content": "A"}, "finish_reason": None}]),
        plain(error={"message": "EngineCore died", "type": "InternalServerError", "code": 500}),
        plain(error={"message": "too long", "type": "BadRequestError", "code": 400}),
        OPENAI_TOLD,
    ),
    "completions": Dialect(
        "/v1/completions",
        plain(choices=[{"index": 0, "text": "A", "finish_reason": None}]),
        plain(error={"message": "EngineCore died", "type": "InternalServerError", "code": 500}),
        plain(error={"message": "too long", "type": "BadRequestError", "code": 400}),
        OPENAI_TOLD,
    ),
    "responses": Dialect(
        "/v1/responses",
        named("response.output_text.delta", delta="A"),
        named("response.failed", response={"error": {"code": "server_error", "message": "died"}}),
        named("error", error={"code": 400, "message": "too long"}),
        named("error", code="upstream_disconnected", message=WHY, param=None),
    ),
    "messages": Dialect(
        "/v1/messages",
        named("content_block_delta", index=0, delta={"type": "text_delta", "text": "A"}),
        named("error", error={"type": "overloaded_error", "message": "busy"}),
        named("error", error={"type": "invalid_request_error", "message": "too long"}),
        named("error", error={"type": "api_error", "message": WHY}),
    ),
}


def documents(event: bytes) -> Any:
    """(name, document) of one event."""
    assert event.endswith(b"\n\n")
    assert event.count(b"\n\n") == 1
    fields = dict(line.split(b": ", 1) for line in event[:-2].split(b"\n"))
    return fields.get(b"event"), json.loads(fields[b"data"])


CAUSES: dict[str, tuple[list[Step], tuple[str, str, int]]] = {
    "reset": (["rst"], ("upstream_truncated", "reset", 1)),
    "closed": (["fin"], ("upstream_truncated", "reset", 1)),
    "a bad chunk": ([b"zz\r\n", "hang"], ("upstream_truncated", "protocol_error", 1)),
    "silence": (["hang"], ("timeout", "timeout", 1)),
}


@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_fc09_a_cut_is_told_in_the_callers_dialect_and_ends_uncleanly(
    dialect: str, cause: str, version: str, edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-08 and FC-09 a: one error event after the last whole one, no `[DONE]`, no clean end, the right record."""
    speech = DIALECTS[dialect]
    steps, (outcome, result, failures) = CAUSES[cause]
    gate = asyncio.Event()
    one, other = await upstream([SSE_HEAD + chunk(speech.content), gate, *steps]), await upstream()
    running = await edge({"eu": [one], "us": [other]}, timeouts={"between_bytes": "300ms", "first_byte": "8s"})
    client = await running.connect()
    found = client.send(request(chat(stream=True), path=speech.path, version=version))
    await until(lambda: bytes(found.body) == speech.content)
    assert found.is_chunked is (version == "1.1")
    gate.set()
    await until(lambda: client.ended)
    await until(lambda: len(found.body) > len(speech.content), "the error event")
    assert documents(bytes(found.body)[len(speech.content) :]) == documents(speech.told)
    if version == "1.0":
        await until(lambda: client.is_closed, "a reset: a plain close would mean the end of a whole answer")
        assert client.ended == "rst"
    assert not found.is_complete
    assert b"[DONE]" not in found.body
    assert str(one.port).encode() not in found.body
    record = await running.record()
    assert (record["outcome"], record["status"], record["attempts"]) == (outcome, 200, 1)
    assert record["bytes_out"] == len(speech.content), "of the engine's own"
    assert running.attempts() == {("eu", result): 1}
    assert running.failures(one) == failures
    assert other.requests == []
    assert running.pool(one)._idle == []


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_fc09_b_half_an_event_is_left_alone(dialect: str, edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-09 b: nothing is glued to half an event, in no dialect."""
    speech = DIALECTS[dialect]
    sent = speech.content + speech.content[:-9]
    gate = asyncio.Event()
    running = await edge({"eu": [await upstream([SSE_HEAD + chunk(sent), gate, "rst"])]})
    client = await running.connect()
    found = client.send(request(chat(stream=True), path=speech.path))
    await until(lambda: bytes(found.body) == sent)
    gate.set()
    await client.end()
    assert (bytes(found.body), found.is_complete) == (sent, False)
    assert (await running.record())["outcome"] == "upstream_truncated"


@pytest.mark.parametrize("half", [0, 9])
async def test_fc09_what_came_in_one_read_is_looked_at_to_its_end(
    half: int, edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """Chunks that come together pass together: whether an event was whole is seen at the last of them."""
    speech = DIALECTS["chat"]
    together = [speech.content] * 40 + [speech.content[: len(speech.content) - half]]
    sent = speech.content + b"".join(together)
    begun, all_out = asyncio.Event(), asyncio.Event()
    steps: list[Step] = [SSE_HEAD + chunk(speech.content), begun, b"".join(map(chunk, together)), all_out, "rst"]
    running = await edge({"eu": [await upstream(steps)]})
    client = await running.connect()
    found = client.send(request(chat(stream=True)))
    await until(lambda: bytes(found.body) == speech.content)
    begun.set()
    await until(lambda: bytes(found.body) == sent)
    all_out.set()
    await client.end()
    told = bytes(found.body).removeprefix(sent)
    assert (documents(told) == documents(speech.told)) if not half else not told
    record = await running.record()
    assert (record["outcome"], record["bytes_out"]) == ("upstream_truncated", len(sent))


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_fc21_an_engines_error_event_passes_and_counts_against_it(
    dialect: str, edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-21: an error event within a stream is the engine's failure; what the caller did wrong is not."""
    speech = DIALECTS[dialect]
    ends = DONE if speech.told is OPENAI_TOLD else b""
    broken, refused = speech.engine_error + ends, speech.callers_error + ends
    one = await upstream(stream(speech.content, broken), stream(speech.content, refused))
    running = await edge({"eu": [one]})
    raw = request(chat(stream=True), path=speech.path)
    found = await running.ask(raw)
    assert found.body == speech.content + broken, "as it came"
    assert running.failures(one) == 1
    found = await running.ask(raw)
    assert found.body == speech.content + refused
    assert [record["outcome"] for record in running.records()] == ["upstream_error", "ok"]
    assert running.attempts() == {("eu", "error_event"): 1, ("eu", "ok"): 1}


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_fc14_an_error_as_the_first_event_is_a_failure_in_every_dialect(
    dialect: str, edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-14 and DESIGN section 3: nothing has gone to the client, so another region answers."""
    speech = DIALECTS[dialect]
    eu, us = await upstream(stream(speech.engine_error)), await upstream(stream(speech.content))
    running = await edge({"eu": [eu], "us": [us]})
    found = await running.ask(request(chat(stream=True), path=speech.path))
    assert (found.body, found.one("x-gslb-region")) == (speech.content, "us")
    assert running.attempts() == {("eu", "error_event"): 1, ("us", "ok"): 1}


async def test_fc08_c_a_short_answer_is_the_upstreams_failure(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-08 c: 300 of 500 bytes; one record, one failure, no second try, nothing pooled."""
    one, other = await upstream([answer(200, b"x" * 500)[:-200], "fin"]), await upstream()
    running = await edge({"eu": [one], "us": [other]})
    client = await running.connect()
    found = client.send(request(chat()))
    assert await client.end() == "fin"
    assert (found.one("content-length"), len(found.body), found.is_complete) == ("500", 300, False)
    record = await running.record()
    assert (record["status"], record["outcome"], record["attempts"]) == (200, "upstream_truncated", 1)
    assert running.failures(one) == 1
    assert other.requests == running.pool(one)._idle == []


@pytest.mark.parametrize("is_stream", [True, False])
async def test_fc08_a_client_library_sees_the_failure(
    is_stream: bool, edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-08: whoever parses HTTP raises; a cut answer cannot be taken for a short one."""
    cut: list[Step] = [SSE_HEAD + chunk(DIALECTS["chat"].content), "fin"]
    running = await edge({"eu": [await upstream(cut if is_stream else [answer(200, b"x" * 500)[:-200], "fin"])]})
    async with aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{running.port}/v1/chat/completions"
        async with session.post(url, json=chat(stream=is_stream)) as found:
            assert found.status == 200
            with pytest.raises(aiohttp.ClientPayloadError):
                await found.read()


async def test_fc08_the_same_client_may_come_back(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-08: after a cut the next request, on a new connection, is served."""
    speech = DIALECTS["chat"]
    one = await upstream([SSE_HEAD + chunk(speech.content), "rst"], [SSE_HEAD + chunk(speech.content) + LAST])
    running = await edge({"eu": [one]})
    client = await running.connect()
    client.send(request(chat(stream=True)))
    await client.end()
    assert (await running.ask(request(chat(stream=True)))).body == speech.content
