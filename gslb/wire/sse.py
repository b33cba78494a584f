"""Server-sent events as far as a proxy must understand them: where content starts, where an event ends.

WHATWG HTML 9.2.5: lines end in CR, LF or CRLF; a blank line ends an event; a line starting with a colon is a
comment. Payload is only looked at here, never rebuilt.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Any, Final

import orjson

_MAX_HELD_BYTES: Final = 64 * 1024
_EVENT_END = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE_END = re.compile(rb"\r\n|\n|\r")

_PREAMBLES = frozenset(
    (
        "message_start", "ping", "content_block_start",
        "response.created", "response.in_progress", "response.queued",
        "response.output_item.added", "response.content_part.added",
    )
)  # fmt: skip
"""Event types of the Anthropic and Responses dialects that come before the first token."""
ABORTED = b'"finish_reason":"abort"'
"""How vLLM ends what it gave up itself (SIGTERM, an operator's pause), with a 200 and, in a stream, a `[DONE]`."""
_DELTA_CONTENT = ("content", "tool_calls", "reasoning", "reasoning_content", "function_call", "refusal")


class Verdict(Enum):
    """What the stream has shown so far."""

    HOLD = "hold"
    COMMENT = "comment"
    CONTENT = "content"
    ERROR = "error"


class FirstContent:
    """Looks for the first content event of a stream, fed in pieces cut anywhere.

    After COMMENT it may be fed on; after CONTENT or ERROR it is done.
    """

    __slots__ = ("_buffer", "_seen_bytes", "error_message")

    def __init__(self) -> None:
        self._buffer = b""
        self._seen_bytes = 0
        self.error_message = ""

    def feed(self, payload: bytes) -> Verdict:
        """The strongest verdict among the complete events so far; HOLD when nothing speaks yet."""
        buffer = self._buffer + payload
        self._seen_bytes += len(payload)
        verdict = Verdict.HOLD
        position = 0
        # Only events that end within the bound count, wherever the pieces were cut.
        limit = len(buffer) - max(0, self._seen_bytes - _MAX_HELD_BYTES)
        while (end := _EVENT_END.search(buffer, position, limit)) is not None:
            event = buffer[position : end.start()]
            position = end.end()
            one = self._judge(event)
            if one in (Verdict.CONTENT, Verdict.ERROR):
                self._buffer = b""
                return one
            if one is Verdict.COMMENT:
                verdict = one
        self._buffer = buffer[position:]
        if self._seen_bytes > _MAX_HELD_BYTES:
            return Verdict.CONTENT  # no preamble is that long
        line = self._buffer.lstrip(b"\r\n")  # the LF of a CRLF that was cut may stand first
        if line[:1] == b":" and _LINE_END.search(line):
            return Verdict.COMMENT
        return verdict

    def _judge(self, event: bytes) -> Verdict:
        data: list[bytes] = []
        name = b""
        verdict = Verdict.HOLD
        for line in _LINE_END.split(event):
            field, _, value = line.partition(b":")
            if not field and line:
                verdict = Verdict.COMMENT
            elif field == b"data":
                data.append(value.removeprefix(b" "))
            elif field == b"event":
                name = value.strip()
        # A comment counts wherever it stands: cut behind it, it has been seen before its event was whole.
        found = self._judge_data(b"\n".join(data), name) if data else Verdict.HOLD
        return verdict if found is Verdict.HOLD else found

    def _judge_data(self, data: bytes, name: bytes) -> Verdict:
        try:
            tree = orjson.loads(data)
        except orjson.JSONDecodeError:
            if data != b"[DONE]":
                return Verdict.CONTENT  # whatever dialect this is: not ours to hold
            # An engine that stops while it reads the prompt says no more than this.
            self.error_message = "the engine ended the stream before its first token"
            return Verdict.ERROR
        if not isinstance(tree, dict):
            return Verdict.CONTENT
        fault = tree.get("error")
        kind = tree.get("type")
        if fault or name == b"error" or kind in ("error", "response.failed"):
            if _is_callers_fault(fault):
                return Verdict.CONTENT
            self.error_message = "the engine reported an error as its first event"
            return Verdict.ERROR
        if isinstance(kind, str):
            return Verdict.HOLD if kind in _PREAMBLES else Verdict.CONTENT
        choices = tree.get("choices")
        if isinstance(choices, list):
            if any(_speaks(choice) for choice in choices):
                return Verdict.CONTENT
            if any(choice.get("finish_reason") is not None for choice in choices):
                self.error_message = "the engine aborted the request before its first token"
                return Verdict.ERROR
            return Verdict.HOLD
        return Verdict.CONTENT


_CALLERS_TYPES = frozenset(
    (
        "invalid_request_error", "authentication_error", "permission_error", "not_found_error",
        "request_too_large",
    )
)  # fmt: skip
"""Error types of the Anthropic dialect, which has no codes, that are the caller's own doing."""
_ERROR_STARTS = (b'data: {"error":', b"event: error", b"event: response.failed")
"""How an event that tells an error begins: OpenAI's, then Anthropic's and Responses', which are named."""


def _is_callers_fault(fault: Any) -> bool:
    """A 4xx in the event (prompt too long ...) would fail everywhere: pass it, blame nobody."""
    if not isinstance(fault, dict):
        return False
    code = fault.get("code")
    if isinstance(code, int):
        return 400 <= code < 500 and code not in (408, 429)
    return fault.get("type") in _CALLERS_TYPES


def has_engine_error(tail: bytes) -> bool:
    """True when the last error event in `tail`, the end of a stream in any dialect, is not the caller's fault.

    Inside a JSON string line ends would be escaped, so an answer's text cannot pose as an event.
    """
    text = b"\n" + tail
    start = max(text.rfind(b"\n" + words) for words in _ERROR_STARTS) + 1
    if not start:
        return False
    for line in _LINE_END.split(_EVENT_END.split(text[start:], 1)[0]):
        if line.startswith(b"data:"):
            return not _tells_callers_fault(line[5:])
    return True


def _tells_callers_fault(data: bytes) -> bool:
    try:
        tree = orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    return isinstance(tree, dict) and _is_callers_fault(tree.get("error"))


def _speaks(choice: Any) -> bool:
    if not isinstance(choice, dict):
        return True
    if choice.get("finish_reason") not in (None, "abort") or choice.get("text"):
        return True
    delta = choice.get("delta")
    return isinstance(delta, dict) and any(delta.get(name) for name in _DELTA_CONTENT)


def ends_between_events(tail: bytes) -> bool:
    """True when a payload ending in `tail` (its last 4 bytes or more; b"" = nothing sent) ends an event."""
    return not tail or tail.endswith((b"\n\n", b"\r\r", b"\n\r\n"))
