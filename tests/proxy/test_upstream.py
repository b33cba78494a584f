"""Answers of an endpoint over a fake transport: the same wherever they are cut, and what makes one doubtful."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gslb.native import is_native
from gslb.proxy.pool import EndpointPool
from gslb.proxy.relay import Relay
from gslb.proxy.upstream import UpstreamConnection
from gslb.wire.chunks import chunk, chunks_payload
from gslb.wire.http1 import ResponseHead


class Transport:
    """What an upstream connection needs of a transport."""

    def __init__(self) -> None:
        self.written = b""
        self.is_aborted = False
        self.is_paused = False
        self.unsent = 0

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def write(self, data: bytes) -> None:
        self.written += data

    def abort(self) -> None:
        self.is_aborted = True

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


class Waiter:
    """Who asked. Every answer must end exactly once."""

    def __init__(self) -> None:
        self.head: ResponseHead | None = None
        self.payload = b""
        self.end = ""

    def on_head(self, head: ResponseHead) -> None:
        assert self.head is None
        assert not self.end
        self.head = head

    def on_payload(self, payload: bytes, is_complete: bool) -> None:
        assert self.head is not None, "the head comes first"
        assert not self.end
        self.payload += payload
        self.end = "complete" if is_complete else ""

    def on_lost(self, error: Exception | None) -> None:
        assert not self.end
        self.end = "lost"

    def on_switch(self, head: ResponseHead, behind: bytes) -> bool:
        return False

    def on_garbled(self, what: str) -> None:
        assert not self.end
        self.end = "garbled"


class Taker:
    """A relay to a client that gets chunks."""

    is_chunked = True

    def __init__(self, waiter: Waiter) -> None:
        self.write = waiter.on_payload
        self._waiter = waiter
        self.passed: list[bytes] = []

    def write_chunks(self, framed: bytes, size: int) -> None:
        assert size == len(chunks_payload(framed))
        self.passed.append(framed)
        self._waiter.payload += chunks_payload(framed)


class Line:
    """A connection with its fakes."""

    def __init__(self) -> None:
        loop = SimpleNamespace(time=lambda: 0.0)  # all of a loop that a pool needs which opens nothing
        self.pool = EndpointPool(cast(asyncio.AbstractEventLoop, loop), "http://127.0.0.1:1")
        self.transport = Transport()
        self.connection = UpstreamConnection(self.pool)
        self.connection.connection_made(cast(asyncio.Transport, self.transport))

    @property
    def returned(self) -> list[UpstreamConnection]:
        """Whatever was given back to the pool, as often as it was."""
        return self.pool._idle

    def ask(self) -> Waiter:
        waiter = Waiter()
        self.connection.send(waiter, b"POST / HTTP/1.1\r\n\r\n", b"{}")
        return waiter

    def receive(self, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            if self.transport.is_aborted:
                return
            self.connection.data_received(piece)

    def close(self, error: Exception | None = None) -> None:
        if error is None and not self.transport.is_aborted:
            self.connection.eof_received()
        self.connection.connection_lost(error)


Seen = tuple[str, tuple[tuple[bytes, bytes], ...] | None, bytes, str, bool]


def seen(pieces: Iterable[bytes], *, closes: bool = True) -> Seen:
    """(status and reason, fields, payload, end, is kept) of one answer, the connection closed behind it."""
    line = Line()
    waiter = line.ask()
    line.receive(pieces)
    is_kept = bool(line.returned) and not line.transport.is_aborted
    if closes:
        line.close()
    head = waiter.head
    status = f"{head.status} {head.reason.decode('latin-1')}" if head else ""
    return status, tuple(head.fields) if head else None, waiter.payload, waiter.end, is_kept


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A: 1\r\n\r\n"
ANSWERS: dict[str, tuple[bytes, str, bytes, bool]] = {
    "length": (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "complete", b"hello", True),
    "no body": (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "complete", b"", True),
    "chunks": (CHUNKED + b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n", "complete", b"abcde", True),
    "trailers": (CHUNKED + b"3\r\nabc\r\n0\r\nX-T: 1\r\nX-U: 2\r\n\r\n", "complete", b"abc", True),
    "204": (b"HTTP/1.1 204 No Content\r\n\r\n", "complete", b"", True),
    "304": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 512\r\n\r\n", "complete", b"", True),
    "interim": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nX: y\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        "complete", b"ok", True,
    ),
    "close": (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", "complete", b"ok", False),
    "until close": (b"HTTP/1.1 200 OK\r\n\r\nall of it", "complete", b"all of it", False),
    "1.0": (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", "complete", b"ok", False),
    "1.0 until close": (b"HTTP/1.0 200 OK\r\n\r\nok", "complete", b"ok", False),
    "cut in the head": (b"HTTP/1.1 200 OK\r\nContent-Le", "lost", b"", False),
    "cut in a length": (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhell", "lost", b"hell", False),
    "cut in chunks": (CHUNKED + b"3\r\nabc\r\n", "lost", b"abc", False),
    "cut in the last chunk": (CHUNKED + b"3\r\nabc\r\n0\r\n", "lost", b"abc", False),
    "cut after an interim": (b"HTTP/1.1 100 Continue\r\n\r\n", "lost", b"", False),
    "nothing": (b"", "lost", b"", False),
    "upgrade": (b"HTTP/1.1 101 Now\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nraw", "garbled", b"", False),
    "bad chunk": (CHUNKED + b"3\r\nabc\r\nzz\r\n", "garbled", b"abc", False),
    "both lengths": (CHUNKED[:-2] + b"Content-Length: 3\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "garbled", b"", False),
    "gzip, chunked": (CHUNKED.replace(b"chunked", b"gzip, chunked") + b"0\r\n\r\n", "garbled", b"", False),
    "two lengths": (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx", "garbled", b"", False),
    "below 100": (b"HTTP/1.1 099 X\r\nContent-Length: 1\r\n\r\nxHTTP/1.1 200 OK\r\n\r\n", "garbled", b"", False),
    "interim with chunks": (CHUNKED.replace(b"200", b"199") + b"3\r\nabc\r\n0\r\n\r\n", "garbled", b"", False),
    "HTTP/2.0": (b"HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\nok", "garbled", b"", False),
    "1.0 in chunks": (CHUNKED.replace(b"/1.1", b"/1.0") + b"3\r\nabc\r\n0\r\n\r\n", "garbled", b"", False),
    "close in a trailer": (CHUNKED + b"3\r\nabc\r\n0\r\nConnection: close\r\n\r\n", "complete", b"abc", False),
    "204 with a length": (b"HTTP/1.1 204 No\r\nContent-Length: 2\r\n\r\n", "complete", b"", False),
    "no HTTP": (b"SSH-2.0-OpenSSH\r\n", "garbled", b"", False),
    "a request": (b"GET / HTTP/1.1\r\n\r\n", "garbled", b"", False),
    "a head without end": (b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 70_000, "garbled", b"", False),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_in_one_piece_and_cut_at_each_byte(name: str) -> None:
    raw, end, payload, is_kept = ANSWERS[name]
    whole = seen([raw])
    assert whole[2:] == (payload, end, is_kept)
    step = 1 if len(raw) < 1000 else 6007
    for cut in range(1, len(raw), step):
        assert seen([raw[:cut], raw[cut:]]) == whole, cut
    assert seen(raw[i : i + step] for i in range(0, len(raw), step)) == whole


@settings(max_examples=200, deadline=None)
@given(name=st.sampled_from(sorted(ANSWERS)), cuts=st.lists(st.integers(0, 500), max_size=8))
def test_any_segmentation(name: str, cuts: list[int]) -> None:
    raw = ANSWERS[name][0]
    ends = sorted({cut % (len(raw) + 1) for cut in cuts} | {len(raw)})
    assert seen(raw[start:end] for start, end in zip([0, *ends], ends, strict=False)) == seen([raw])


@settings(max_examples=200, deadline=None)
@given(
    pieces=st.lists(st.binary(min_size=1, max_size=50), max_size=8), cuts=st.lists(st.integers(0, 900), max_size=8)
)
def test_payload_comes_out_as_it_went_in(pieces: list[bytes], cuts: list[int]) -> None:
    raw = CHUNKED + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    ends = sorted({cut % (len(raw) + 1) for cut in cuts} | {len(raw)})
    found = seen(raw[start:end] for start, end in zip([0, *ends], ends, strict=False))
    assert found[2:] == (b"".join(pieces), "complete", True)


@pytest.mark.skipif(is_native(), reason="compiled, nothing passes for a relay that is none")
@settings(max_examples=200, deadline=None)
@given(
    pieces=st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=8),
    together=st.sets(st.integers(1, 7)),
    cuts=st.lists(st.integers(0, 900), max_size=4),
)
def test_chunks_that_come_whole_pass_as_they_are(pieces: list[bytes], together: set[int], cuts: list[int]) -> None:
    """One in a read or several (the n-th and the next where n is in `together`)."""
    raw = b"".join(chunk(piece) for piece in pieces)
    whole = list(itertools.accumulate(len(chunk(piece)) for piece in pieces))
    reads = [end for number, end in enumerate(whole, 1) if number == len(whole) or number not in together]
    ends = {*reads, *(cut % (len(raw) + 1) for cut in cuts)}
    line = Line()
    waiter = line.ask()
    line.receive([CHUNKED])
    relay = Taker(waiter)
    line.connection.pass_on(cast(Relay, relay))
    line.receive(raw[start:end] for start, end in itertools.pairwise([0, *sorted(ends)]))
    assert waiter.payload == b"".join(pieces)
    if not cuts:
        passed = [raw[start:end] for start, end in itertools.pairwise(reads)]
        assert relay.passed == passed, "the first lies behind the head"
    line.receive([b"0\r\n\r\n"])
    assert waiter.end == "complete"
    assert line.returned


def test_a_payload_that_looks_like_a_chunk_is_none() -> None:
    line = Line()
    waiter = line.ask()
    line.receive([CHUNKED, b"3\r\nabc\r\n", b"8\r\n", b"3\r\nabc\r\n", b"\r\n", b"3\r\nabc\r\n", b"0\r\n\r\n"])
    assert waiter.payload == b"abc" + b"3\r\nabc\r\n" + b"abc"
    assert waiter.end == "complete"


def test_a_chunk_cut_in_its_size_is_no_shorter_one() -> None:
    payload = b"hello\r\nb\r\nabcdefghijk"  # 0x15 bytes: what follows the 1 looks like two whole chunks
    raw = CHUNKED + b"3\r\nabc\r\n" + chunk(payload) + b"0\r\n\r\n"
    whole = seen([raw])
    assert whole[2:4] == (b"abc" + payload, "complete")
    first = len(CHUNKED) + 8
    for cut in range(first, len(raw) - 5):
        assert seen([raw[:cut], raw[cut:-5], raw[-5:]]) == whole, cut
        assert seen([raw[:first], raw[first:cut], raw[cut:-5], raw[-5:]]) == whole, cut


@settings(max_examples=300, deadline=None)
@given(raw=st.binary(max_size=200), cut=st.integers(0, 200))
def test_noise_ends_once(raw: bytes, cut: int) -> None:
    assert seen([raw[:cut], raw[cut:]] if cut else [raw])[3] in ("lost", "garbled", "complete")


@pytest.mark.parametrize(
    "junk", [b"x", b"\x00", b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nstolen", b"HTTP/1.1 200 "]
)
@pytest.mark.parametrize("name", ["length", "chunks", "204", "304"])
def test_bytes_behind_an_answer_end_the_connection(name: str, junk: bytes) -> None:
    raw, end, payload, _ = ANSWERS[name]
    assert seen([raw + junk]) == (*seen([raw])[:2], payload, end, False)
    line = Line()
    waiter = line.ask()
    line.receive([raw])
    assert waiter.end == "complete"
    line.receive([junk])
    assert line.transport.is_aborted


def test_a_kept_connection_serves_again_with_nothing_left_over() -> None:
    line = Line()
    for name in ("trailers", "length", "204", "interim", "chunks", "304", "no body"):
        waiter = line.ask()
        line.receive([ANSWERS[name][0]])
        assert waiter.end == "complete"
        assert waiter.payload == ANSWERS[name][2]
        assert waiter.head is not None
        assert not any(field[0] in (b"X-T", b"X-U") for field in waiter.head.fields)
    assert len(line.returned) == 7
    assert line.connection.is_reused


def test_an_answer_before_the_request_was_written_is_not_kept() -> None:
    line = Line()
    waiter = line.ask()
    line.transport.unsent = 100
    line.receive([ANSWERS["length"][0]])
    assert waiter.end == "complete"
    assert line.returned == []
    assert line.transport.is_aborted


def test_a_connection_closed_while_idle_is_known_to_be_lost() -> None:
    line = Line()
    line.ask()
    line.receive([ANSWERS["length"][0]])
    assert not line.connection.is_lost
    line.connection.eof_received()
    assert line.connection.is_lost


def test_an_announced_limit_holds_for_the_connection() -> None:
    line = Line()
    line.ask()
    line.receive([b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=3\r\nContent-Length: 0\r\n\r\n"])
    assert line.connection.idle_until_s == 2.5, "half a second before the engine closes it; the clock stands at 0"


class Leaver(Waiter):
    """Who leaves as soon as the head is there."""

    def __init__(self, connection: UpstreamConnection) -> None:
        super().__init__()
        self._connection = connection

    def on_head(self, head: ResponseHead) -> None:
        super().on_head(head)
        self._connection.abort()


@pytest.mark.parametrize("name", ["length", "chunks", "204", "bad chunk"])
def test_who_leaves_at_the_head_hears_no_more(name: str) -> None:
    line = Line()
    leaver = Leaver(line.connection)
    line.connection.send(leaver, b"", b"")
    line.receive([ANSWERS[name][0]])
    line.close()
    assert leaver.end == ""
    assert leaver.payload == b""
    assert line.returned == []


@pytest.mark.parametrize("start", [b"0\r\nX-A: ", b"3;", b"0\r\n"])
def test_framing_without_end_is_given_up(start: bytes) -> None:
    line = Line()
    waiter = line.ask()
    line.receive([CHUNKED + b"3\r\nabc\r\n" + start])
    piece = b"X-A: b\r\n" * 1000 if start == b"0\r\n" else b"x" * 8000
    for _ in range(200):
        line.receive([piece])
    assert waiter.end == "garbled"
    assert waiter.payload == b"abc"
    assert line.transport.is_aborted


def test_many_sizes_apart_from_their_chunks_are_no_endless_framing() -> None:
    line = Line()
    waiter = line.ask()
    line.receive([CHUNKED, *[b"1\r\n", b"x\r\n"] * 20_000, b"0\r\n\r\n"])
    assert (waiter.end, waiter.payload) == ("complete", b"x" * 20_000)


def test_reset_is_told_with_its_reason() -> None:
    line = Line()
    waiter = line.ask()
    line.receive([CHUNKED])
    line.close(ConnectionResetError())
    assert waiter.end == "lost"
    head: Any = waiter.head
    assert head.status == 200


REPEATED = b"HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 02:31:%02d GMT\r\ncontent-length: %d\r\n\r\n"


def test_answers_whose_head_repeats_are_as_if_parsed() -> None:
    line = Line()
    for number in (0, 1, 2, 13, 300):
        body = b"b" * number
        waiter = line.ask()
        line.receive([REPEATED % (number % 60, number) + body])
        assert (waiter.payload, waiter.end) == (body, "complete")
        assert line.connection.has_answered
    assert len(line.returned) == 5
    waiter = line.ask()
    whole = REPEATED % (7, 5) + b"hello"
    line.receive([whole[:40], whole[40:]])
    assert (waiter.payload, waiter.end) == (b"hello", "complete"), "one in pieces is parsed, in between"
    waiter = line.ask()
    line.receive([whole + b"HTTP/1.1 200 OK\r\n"])
    assert (waiter.payload, waiter.end) == (b"hello", "complete")
    assert line.transport.is_aborted, "bytes behind it still end the connection"
