"""What must hold for any bytes: one function per target, fed the fuzzer's bytes, raising AssertionError.

The first byte of an input says how many of the next ones are places to cut the rest at.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from typing import cast

import orjson

from gslb.errors import ApiError
from gslb.proxy.failure import ends_in_error
from gslb.proxy.upstream import UpstreamConnection
from gslb.wire.http1 import RequestHead, client_head, upstream_head
from gslb.wire.openai import read_json_facts, read_multipart_facts, replace_model
from gslb.wire.request_reader import RequestReader
from gslb.wire.sse import FirstContent, Verdict, ends_between_events, has_engine_error
from tests.fuzz.exchange import BREAK, check_exchange
from tests.proxy.test_upstream import Line, Seen, seen
from tests.support.strict_http import Malformed, Message, Unfinished, answer_in, requests_in

HEAD_LIMIT, COUNT_LIMIT, BODY_LIMIT = 2048, 40, 4096
_MAX_BYTEWISE = 600
_STARTS = re.compile(rb"(?=POST /|GET /)")
"""Clients that wait for their answers send like this, which is where heads that repeat are recognised."""
_ALIKE = {"headers_too_large": "bad_request"}
"""httptools tells the field before a syntax error only when they come apart: which of two faults is the first one
then depends on the cut, that it is refused does not."""


def pieces_of(data: bytes) -> tuple[bytes, list[bytes]]:
    """(the bytes to feed, the same bytes cut as the input's first bytes say)."""
    count = data[0] % 6 if data else 0
    places, raw = data[1 : 1 + count], data[1 + count :]
    # One byte reaches everywhere in a short input and steps through a long one.
    step = len(raw) // 256 + 1
    ends = sorted({place * step % (len(raw) + 1) for place in places} | {len(raw)})
    return raw, [raw[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def ways_of(data: bytes) -> tuple[bytes, list[list[bytes]]]:
    """(the bytes, the ways to feed them: cut as told, a request in each piece, byte by byte when they are few)."""
    raw, cut = pieces_of(data)
    ways = [cut, _STARTS.split(raw)]
    if len(raw) <= _MAX_BYTEWISE:
        ways.append([raw[i : i + 1] for i in range(len(raw))])
    return raw, ways


# --- requests -----------------------------------------------------------------------------------------

Heard = tuple[list[tuple[RequestHead, bytes]], ApiError | None]


def read(pieces: list[bytes]) -> Heard:
    """(requests, fault) of a connection that receives `pieces`."""
    reader = RequestReader(HEAD_LIMIT, COUNT_LIMIT, BODY_LIMIT)
    for piece in pieces:
        reader.feed(piece)
    return list(reader.ready), reader.fault


def _told(heard: Heard) -> object:
    requests, fault = heard
    return [
        (head.method, head.target, head.is_http10, head.keep_alive, head.passed, body,
         {name: values for name, values in head.own.items() if name != b"content-length"})
        for head, body in requests
    ], _ALIKE.get(fault.code, fault.code) if fault else None  # fmt: skip


def check_request(data: bytes) -> None:
    """Cuts do not matter; what is taken is what a strict reading finds; what goes on is well-formed."""
    raw, ways = ways_of(data)
    heard = read([raw])
    for pieces in ways:
        assert _told(read(pieces)) == _told(heard), pieces
    strict, is_whole = requests_in(raw)
    requests, fault = heard
    assert len(requests) <= len(strict), "more requests than there are"
    assert fault is not None or not is_whole or len(requests) == len(strict), "a request was lost"
    for (head, body), message in zip(requests, strict, strict=False):
        assert (head.method, head.target) == message.line[:2]
        assert body == message.body
        _check_passing(head, body)


def _check_passing(head: RequestHead, body: bytes) -> None:
    out = upstream_head(head, b"", b"Host: up\r\n", b"", len(body), b"127.0.0.1", b"http", b"r") + body
    (sent,), is_whole = requests_in(out)
    assert is_whole
    assert sent.body == body
    names = [name.lower().replace(b"_", b"-") for name, _ in sent.fields]
    for name in (b"host", b"content-length", b"via", b"x-forwarded-for", b"x-request-id"):
        assert names.count(name) == 1, name
    for name in (b"transfer-encoding", b"connection", b"te", b"trailer", b"upgrade", b"expect"):
        assert name not in names
    with suppress(ApiError):
        facts = read_json_facts(body)
        other = replace_model(body, "other")
        assert orjson.loads(other) == {**orjson.loads(body), "model": "other"}
        assert read_json_facts(other).prompt_tokens == facts.prompt_tokens
    with suppress(ApiError):
        read_multipart_facts(body, head.first(b"content-type") or b"multipart/form-data; boundary=x")


# --- answers ------------------------------------------------------------------------------------------


def check_response(data: bytes) -> None:
    """One answer: cuts do not matter, it ends once, and its payload is what a strict reading finds.

    With BREAK in the input: what another connection of the endpoint was answered before does not matter either.
    """
    raw, ways = ways_of(data)
    before, is_second, raw = raw.rpartition(BREAK)
    if is_second:
        assert _heard_after(before, raw) == _heard_after(b"", raw)
        return
    whole = seen([raw])
    status, _, payload, end, is_kept = whole
    # httptools skips blank lines behind an answer without a word; alone on an idle connection they end it.
    may_differ = end == "complete" and raw[-1:] in (b"\r", b"\n")
    for pieces in ways:
        cut = seen(pieces)
        _check_alike(whole, cut)
        assert may_differ or cut[4] == is_kept
    message: Message | None = None
    try:
        message, rest = answer_in(raw, is_closed=True)
        strict = message.body
    except (Malformed, Unfinished) as fault:
        strict, rest = fault.payload, b""
    assert end in ("complete", "garbled", "lost")
    assert strict.startswith(payload)
    if end == "complete":
        assert message is not None, "taken for whole"
        assert payload == strict
        assert status.encode("latin-1").startswith(message.line[1])
    assert not is_kept or (end == "complete" and not rest.strip(b"\r\n")), "kept with bytes behind the answer"


def _heard_after(before: bytes, raw: bytes) -> object:
    """What the asker of `raw` hears, and whether its connection is kept, when `before` was an answer before it."""
    first, second = Line(), Line()
    first.ask()
    first.receive([before])
    connection = second.connection = UpstreamConnection(first.pool)
    connection.connection_made(cast(asyncio.Transport, second.transport))
    waiter = second.ask()
    second.receive([raw])
    is_kept = connection in first.returned and not second.transport.is_aborted
    second.close()
    head = waiter.head
    told = client_head(head, b"", is_http10=False, close=False) if head and waiter.end == "complete" else b""
    return told, waiter.payload, waiter.end, is_kept


def _check_alike(whole: Seen, cut: Seen) -> None:
    # A head may have been told before the fault that follows it came; nobody uses it.
    is_told = whole[3] == "complete"
    assert whole[2:4] == cut[2:4], (whole, cut)
    assert not is_told or whole[:2] == cut[:2], (whole, cut)


# --- events -------------------------------------------------------------------------------------------


def verdict_of(pieces: list[bytes]) -> Verdict:
    """The strongest verdict there was, up to the one that ends the search."""
    scanner = FirstContent()
    strongest = Verdict.HOLD
    for piece in pieces:
        found = scanner.feed(piece)
        if found in (Verdict.CONTENT, Verdict.ERROR):
            return found
        strongest = Verdict.COMMENT if found is Verdict.COMMENT else strongest
    return strongest


def stands_between_events(payload: bytes) -> bool:
    """By the letter (WHATWG HTML 9.2.5): the last line that ended is blank, and no line has begun."""
    line = b""
    is_blank = True
    for character in payload.replace(b"\r\n", b"\n").replace(b"\r", b"\n"):
        if character == 10:
            is_blank = not line
            line = b""
        else:
            line += b"x"
    return is_blank and not line


def check_events(data: bytes) -> None:
    """The first verdict does not depend on cuts; an error event goes only between events."""
    raw, ways = ways_of(data)
    for pieces in ways:
        assert verdict_of(pieces) is verdict_of([raw]), pieces
    for end in range(0, len(raw) + 1, max(1, len(raw) // 50)):
        if ends_between_events(raw[:end][-4:]):
            assert stands_between_events(raw[:end]), raw[:end]
    assert ends_in_error(raw) == ends_in_error(b"".join(ways[0][-4:])) or len(ways[0]) > 4
    has_engine_error(raw)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "request": check_request,
    "response": check_response,
    "events": check_events,
    "exchange": check_exchange,
}
