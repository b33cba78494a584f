"""Where a stream's content starts, cut anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gslb.wire.sse import FirstContent, Verdict, ends_between_events, has_engine_error

HOLD, COMMENT, CONTENT, ERROR = Verdict.HOLD, Verdict.COMMENT, Verdict.CONTENT, Verdict.ERROR


def data(document: Any, end: bytes = b"\n\n") -> bytes:
    return b"data: " + json.dumps(document).encode() + end


def delta(**members: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": members, "finish_reason": None}]}


ROLE = data(delta(role="assistant", content=""))
TOKEN = data(delta(content="Hi"))
CASES: dict[str, tuple[bytes, Verdict]] = {
    "nothing": (b"", HOLD),
    "half an event": (TOKEN[:-1], HOLD),
    "role only": (ROLE, HOLD),
    "role only, content null": (data(delta(role="assistant", content=None)), HOLD),
    "no choices": (data({"choices": []}), HOLD),
    "content": (TOKEN, CONTENT),
    "role, then content": (ROLE + TOKEN, CONTENT),
    "a tool call": (data(delta(tool_calls=[{"index": 0}])), CONTENT),
    "reasoning": (data(delta(reasoning_content="hm")), CONTENT),
    "a refusal": (data(delta(refusal="no")), CONTENT),
    "an end without content": (data({"choices": [{"delta": {}, "finish_reason": "stop"}]}), CONTENT),
    "completion text": (data({"choices": [{"text": "Hi", "finish_reason": None}]}), CONTENT),
    "completion without text": (data({"choices": [{"text": "", "finish_reason": None}]}), HOLD),
    "done": (b"data: [DONE]\n\n", ERROR),
    "role, then done": (ROLE + b"data: [DONE]\n\n", ERROR),
    "aborted": (data({"choices": [{"text": "", "finish_reason": "abort"}]}), ERROR),
    "aborted with text": (data({"choices": [{"text": "Hi", "finish_reason": "abort"}]}), CONTENT),
    "no JSON": (b"data: hello\n\n", CONTENT),
    "a number": (b"data: 7\n\n", CONTENT),
    "an unknown object": (data({"a": 1}), CONTENT),
    "a comment": (b": warming\n\n", COMMENT),
    "a comment line": (b": warming\n", COMMENT),
    "half a comment": (b": warm", HOLD),
    "a comment and half an event": (b": warming\n\ndata: {", COMMENT),
    "a comment, then content": (b": x\n\n" + TOKEN, CONTENT),
    "a comment before a preamble's data": (b": x\n" + ROLE, COMMENT),
    "a comment behind a preamble's data": (ROLE[:-1] + b": x\n\n", COMMENT),
    "a comment before content": (b": x\n" + TOKEN, CONTENT),
    "a comment within an event": (b": x\nid: 1\n\n", COMMENT),
    "only an id": (b"id: 1\n\n", HOLD),
    "blank lines": (b"\n\n\n\n", HOLD),
    "error": (data({"error": {"message": "died", "code": 500}}), ERROR),
    "error after the role": (ROLE + data({"error": {"message": "died"}}), ERROR),
    "error text": (data({"error": "died"}), ERROR),
    "error null": (data({"error": None, "choices": []}), HOLD),
    "error event name": (b"event: error\n" + data({"message": "x"}), ERROR),
    "anthropic error": (b"event: error\n" + data({"type": "error", "error": {"type": "overloaded_error"}}), ERROR),
    "responses failed": (data({"type": "response.failed", "response": {}}), ERROR),
    "a 4xx": (data({"error": {"message": "too long", "code": 400}}), CONTENT),
    "a 429": (data({"error": {"message": "busy", "code": 429}}), ERROR),
    "a 408": (data({"error": {"message": "late", "code": 408}}), ERROR),
    "message_start": (b"event: message_start\n" + data({"type": "message_start"}), HOLD),
    "ping": (data({"type": "ping"}), HOLD),
    "anthropic delta": (data({"type": "content_block_delta", "delta": {"text": "x"}}), CONTENT),
    "response created": (data({"type": "response.created"}), HOLD),
    "response delta": (data({"type": "response.output_text.delta", "delta": "x"}), CONTENT),
    "no space": (TOKEN.replace(b"data: ", b"data:"), CONTENT),
    "CRLF": (ROLE.replace(b"\n", b"\r\n") + TOKEN.replace(b"\n", b"\r\n"), CONTENT),
    "CRLF role": (ROLE.replace(b"\n", b"\r\n"), HOLD),
    "CR": (ROLE.replace(b"\n", b"\r") + TOKEN.replace(b"\n", b"\r"), CONTENT),
    "mixed ends": (ROLE[:-2] + b"\n\r\n" + TOKEN[:-2] + b"\r\n\n", CONTENT),
    "CRLF, then CR": (ROLE[:-2] + b"\r\n\r" + TOKEN, CONTENT),
    "data in two lines": (b'data: {"choices":[{"delta":\ndata: {"content":"x"}}]}\n\n', CONTENT),
    "a long preamble": (b"data: " + b"x" * 70_000, CONTENT),
    "many preambles": (data({"type": "ping"}) * 4000, CONTENT),
}  # fmt: skip


def verdict(pieces: Iterable[bytes]) -> Verdict:
    """The strongest verdict there was, up to the one that ends the search."""
    scanner = FirstContent()
    strongest = HOLD
    for piece in pieces:
        found = scanner.feed(piece)
        if found in (CONTENT, ERROR):
            return found
        strongest = COMMENT if found is COMMENT else strongest
    return strongest


@pytest.mark.parametrize("name", CASES)
def test_in_one_piece(name: str) -> None:
    stream, expected = CASES[name]
    assert verdict([stream]) is expected


@pytest.mark.parametrize("name", CASES)
def test_cut_at_each_byte(name: str) -> None:
    stream, expected = CASES[name]
    step = 1 if len(stream) < 2000 else 4999
    for cut in range(0, len(stream) + 1, step):
        assert verdict([stream[:cut], stream[cut:]]) is expected, cut
    assert verdict(stream[i : i + step] for i in range(0, len(stream), step)) is expected


@settings(max_examples=200, deadline=None)
@given(
    names=st.lists(
        st.sampled_from(
            sorted(set(CASES) - {"a long preamble", "many preambles", "half an event", "half a comment"})
        ),
        max_size=4,
    ),
    cuts=st.lists(st.integers(0, 2000), max_size=6),
)
def test_any_sequence_in_any_segmentation(names: list[str], cuts: list[int]) -> None:
    stream = b"".join(CASES[name][0] for name in names)
    ends = sorted({cut % (len(stream) + 1) for cut in cuts} | {len(stream)})
    pieces = [stream[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    assert verdict(pieces) is verdict([stream])


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_noise_never_raises(pieces: list[bytes]) -> None:
    verdict(pieces)


def test_the_message_for_operators_never_quotes_the_stream() -> None:
    scanner = FirstContent()
    assert scanner.feed(data({"error": {"message": "SECRET"}})) is ERROR
    assert "SECRET" not in scanner.error_message


@pytest.mark.parametrize(
    ("tail", "is_between"),
    [
        (b"", True), (b"a\n\n", True), (b"a\r\n\r\n", True), (b"a\r\r", True), (b"a\n\r\n", True), (b"a\n", False),
        (b"a\r\n", False), (b"a", False), (b"data: x", False), (b"\n", False),
    ],
)  # fmt: skip
def test_ends_between_events(tail: bytes, is_between: bool) -> None:
    assert ends_between_events(tail) is is_between


NAMED = b'event: error\ndata: {"type":"error","error":{"type":"%b","message":"x"}}\n\n'


@pytest.mark.parametrize(
    ("tail", "is_engines"),
    [
        (data({"error": {"code": 400}}), False), (data({"error": {"code": 500}}), True),
        (data({"error": {"code": 429}}), True), (data({"error": {"code": "x"}}), True),
        (data({"error": {"code": "context_length_exceeded", "type": "invalid_request_error"}}), False),
        (data({"error": "x"}), True), (data({"error": {"code": 404}}) + b"data: [DONE]\n\n", False),
        (b'data: {"error": {"co', True), (b"", False), (b"data: [DONE]\n\n", False),
        # Anthropic messages
        (NAMED % b"api_error", True), (NAMED % b"overloaded_error", True),
        (NAMED % b"invalid_request_error", False),
        (b'data: {"type":"ping"}\n\n' + NAMED.replace(b"\n", b"\r\n") % b"api_error", True),
        # Responses
        (b'event: error\ndata: {"type":"error","code":"server_error","message":"x"}\n\n', True),
        (b'event: response.failed\ndata: {"type":"response.failed","response":{"error":{}}}\n\n', True),
        (b"event: error\n", True),
        # an answer that talks of errors
        (data({"text": "\nevent: error\ndata: {}"}), False), (b'data: {"a":"event: error"}\n\n', False),
    ],
)  # fmt: skip
def test_has_engine_error(tail: bytes, is_engines: bool) -> None:
    assert has_engine_error(tail) is is_engines
