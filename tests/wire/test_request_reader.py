"""From bytes to requests, cut anywhere: the answer must not depend on where."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gslb.wire.request_reader import IDLE, IN_BODY, IN_HEAD, RequestReader

HEAD_LIMIT, COUNT_LIMIT, BODY_LIMIT = 2048, 40, 4096

Seen = tuple[list[tuple[Any, ...]], str | None]


def reader() -> RequestReader:
    return RequestReader(HEAD_LIMIT, COUNT_LIMIT, BODY_LIMIT)


def read(pieces: Iterable[bytes]) -> Seen:
    """(requests, code of the fault) of a connection that receives `pieces`."""
    one = reader()
    for piece in pieces:
        one.feed(piece)
    return seen_by(one)


def seen_by(one: RequestReader) -> Seen:
    # Not the length: a head that repeats is shared, and the body is there to be counted.
    requests = [
        (
            head.method, head.target, head.path, head.is_http10, head.keep_alive, head.is_chunked,
            tuple(head.passed),
            tuple(sorted((k, tuple(v)) for k, v in head.own.items() if k != b"content-length")), body,
        )
        for head, body in one.ready
    ]  # fmt: skip
    return requests, one.fault.code if one.fault else None


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    """`data` in pieces that end at `places`."""
    ends = sorted({place % (len(data) + 1) for place in places} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def post(body: bytes, *lines: bytes) -> bytes:
    length = b"Content-Length: %d" % len(body)
    return b"\r\n".join((b"POST /v1/x?q=1 HTTP/1.1", b"Host: a", *lines, length)) + b"\r\n\r\n" + body


def chunked(*pieces: bytes, trailers: bytes = b"", lines: tuple[bytes, ...] = ()) -> bytes:
    head = b"\r\n".join((b"POST /v1/y HTTP/1.1", b"Host: a", *lines, b"Transfer-Encoding: chunked")) + b"\r\n\r\n"
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return head + chunks + b"0\r\n" + trailers + b"\r\n"


H2C = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk")
GET = b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
CONNECTIONS: dict[str, bytes] = {
    "one": post(b'{"a":1}'),
    "two": post(b"abc") + GET,
    "the same three": post(b"abc") + post(b"abcd") + post(b"ab"),
    "chunked": chunked(b"abc", b"defg") + GET,
    "trailers": chunked(b"abc", trailers=b"X-T: 1\r\nAuthorization: Bearer t\r\nX-U: 2\r\n") + GET,
    "chunk extensions": CHUNKED + b"3;a=b\r\nabc\r\n0;c\r\n\r\n" + GET,
    "h2c with a length": post(b"abcdef", *H2C) + GET,
    "h2c in chunks": chunked(b"abc", b"def", lines=H2C) + post(b"next") + GET,
    "h2c without a body": b"GET / HTTP/1.1\r\nHost: a\r\n" + b"\r\n".join(H2C) + b"\r\n\r\n" + GET,
    "h2c twice": post(b"abc", *H2C) + chunked(b"def", lines=H2C) + GET,
    "leading blank lines": b"\r\n\r\n" + GET + b"\r\n" + post(b"x"),
    "http 1.0": b"POST / HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc",
    "empty body": post(b"") + post(b""),
    "bad second": GET + b"GET / HTTP/9.9\r\n\r\n",
    "garbage": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "two lengths": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "both lengths": CHUNKED[:-2] + b"Content-Length: 3\r\n\r\n0\r\n\r\n",
    "gzip, chunked": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "connect": b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n" + GET,
    "bad chunk": CHUNKED + b"zz\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "absolute form": b"GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n",
    "body too large": post(b"x" * (BODY_LIMIT + 1)),
    "chunked body too large": chunked(b"x" * BODY_LIMIT, b"y"),
    "largest body": post(b"x" * BODY_LIMIT) + GET,
    "largest chunked body": chunked(b"x" * (BODY_LIMIT - 1), b"y") + GET,
    "head too large": b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * HEAD_LIMIT + b"\r\n\r\n",
    "target too large": b"GET /" + b"y" * HEAD_LIMIT + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    "large head": b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * (HEAD_LIMIT - 100) + b"\r\n\r\n",
    "large head of small fields": GET[:-2] + (b"X: " + b"y" * 35 + b"\r\n") * 38 + b"\r\n",
    "too many fields": b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * COUNT_LIMIT + b"\r\n",
    "too many of one own field": b"GET / HTTP/1.1\r\nHost: a\r\n" + b"Via: y\r\n" * COUNT_LIMIT + b"\r\n",
    "large bodies, then a head": post(b"x" * 4000) + post(b"y" * 3000) + GET,
}  # fmt: skip


@pytest.mark.parametrize("name", CONNECTIONS)
def test_the_same_wherever_it_is_cut_once(name: str) -> None:
    data = CONNECTIONS[name]
    whole = read([data])
    step = 1 if len(data) < 1000 else 37
    for place in range(1, len(data), step):
        assert read([data[:place], data[place:]]) == whole, f"cut at {place}: {data[:place][-30:]!r}"


@pytest.mark.parametrize("name", CONNECTIONS)
def test_the_same_byte_by_byte(name: str) -> None:
    data = CONNECTIONS[name]
    assert read(data[i : i + 1] for i in range(len(data))) == read([data])


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(sorted(CONNECTIONS)), places=st.lists(st.integers(0, 10_000), max_size=12))
def test_the_same_in_any_segmentation(name: str, places: list[int]) -> None:
    data = CONNECTIONS[name]
    assert read(cut(data, places)) == read([data])


BODIES = st.binary(max_size=60)
FIELD_LINES = st.lists(
    st.sampled_from([b"X-A: 1", b"Accept: */*", b"Authorization: Bearer k", b"X-Request-Id: r", b"Via: v"]),
    max_size=4,
)
MESSAGES = st.one_of(
    st.builds(lambda body, lines: (post(body, *lines), body), BODIES, FIELD_LINES),
    st.builds(
        lambda pieces, lines: (chunked(*pieces, lines=tuple(lines)), b"".join(pieces)),
        st.lists(st.binary(min_size=1, max_size=20), max_size=4),
        FIELD_LINES,
    ),
    st.builds(lambda body: (post(body, *H2C), body), BODIES),
    st.just((GET, b"")),
)


@settings(max_examples=200, deadline=None)
@given(messages=st.lists(MESSAGES, min_size=1, max_size=6), places=st.lists(st.integers(0, 5000), max_size=12))
def test_requests_come_out_as_they_went_in(messages: list[tuple[bytes, bytes]], places: list[int]) -> None:
    data = b"".join(raw for raw, _ in messages)
    requests, fault = read(cut(data, places))
    assert fault is None
    assert [request[-1] for request in requests] == [body for _, body in messages]
    assert (requests, fault) == read([data])
    # The way of a client that waits for its answers: one request a segment.
    assert (requests, fault) == read([raw for raw, _ in messages])


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=300), places=st.lists(st.integers(0, 300), max_size=5))
def test_noise_never_raises(data: bytes, places: list[int]) -> None:
    assert read(cut(data, places))[0] == read([data])[0]


@settings(max_examples=300, deadline=None)
@given(
    name=st.sampled_from(["two", "chunked", "h2c in chunks", "the same three"]),
    at=st.integers(0, 400),
    byte=st.integers(0, 255),
)
def test_one_wrong_byte_never_raises(name: str, at: int, byte: int) -> None:
    odd = bytearray(CONNECTIONS[name])
    odd[at % len(odd)] = byte
    data = bytes(odd)
    whole = read([data])
    assert read(data[i : i + 1] for i in range(len(data))) == whole


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("two lengths", "bad_request"), ("both lengths", "bad_request"), ("gzip, chunked", "not_implemented"),
        ("connect", "method_not_allowed"), ("no host", "bad_request"), ("two hosts", "bad_request"),
        ("absolute form", "bad_request"), ("body too large", "payload_too_large"),
        ("chunked body too large", "payload_too_large"), ("head too large", "headers_too_large"),
        ("target too large", "headers_too_large"), ("too many fields", "headers_too_large"),
        ("too many of one own field", "headers_too_large"), ("bad chunk", "bad_request"),
        ("garbage", "bad_request"),
        ("bad second", "bad_request"),
    ],
)  # fmt: skip
def test_what_is_refused(name: str, code: str) -> None:
    requests, fault = read([CONNECTIONS[name]])
    assert fault == code
    assert len(requests) == (1 if name == "bad second" else 0)


@pytest.mark.parametrize("name", ["trailers", "h2c in chunks", "h2c twice", "largest body", "large head", "two"])
def test_what_is_taken(name: str) -> None:
    requests, fault = read([CONNECTIONS[name]])
    assert fault is None
    assert len(requests) == CONNECTIONS[name].count(b" HTTP/1.1\r\n")


def test_trailers_are_no_fields() -> None:
    requests, _ = read([CONNECTIONS["trailers"]])
    for request in requests:
        fields = dict(request[6]) | dict(request[7])
        assert not {b"X-T", b"X-U", b"authorization"} & set(fields)


def test_a_head_that_repeats_is_the_same_request_with_another_body() -> None:
    one = reader()
    for body in (b"a", b"bb", b"x" * 100, b"", b"y" * 1000):
        one.feed(post(body, b"X-A: 1"))
    one.feed(post(b"other", b"X-A: 2"))
    one.feed(post(b"z" * (BODY_LIMIT + 1), b"X-A: 1"))
    assert [body for _, body in one.ready] == [b"a", b"bb", b"x" * 100, b"", b"y" * 1000, b"other"]
    assert [head.passed[0][1] for head, _ in one.ready] == [b"1"] * 5 + [b"2"]
    assert one.fault is not None
    assert one.fault.code == "payload_too_large"


def test_a_repeated_head_with_another_length_than_its_body_is_not_taken_for_whole() -> None:
    one = reader()
    raw = post(b"abcdef")
    for _ in range(3):
        one.feed(raw)
    one.feed(raw[:-2])
    assert len(one.ready) == 3
    assert one.stage == IN_BODY
    one.feed(b"ef" + raw + raw)
    assert len(one.ready) == 6
    assert one.stage == IDLE


def test_stages_and_continue() -> None:
    one = reader()
    assert one.stage == IDLE
    one.feed(b"P")
    assert one.stage == IN_HEAD
    one.feed(b"OST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    assert one.stage == IN_BODY
    assert one.wants_continue
    one.feed(b"ab")
    assert one.stage == IDLE
    assert not one.wants_continue


@pytest.mark.parametrize(
    "flood",
    [
        b"GET /" + b"a" * 100_000,
        b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000,
        b"GET / HTTP/1.1\r\n" + b"a" * 100_000,
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000,
        CHUNKED + b"3;" + b"x" * 100_000,
        CHUNKED + b"0\r\nX: " + b"x" * 100_000,
        CHUNKED + b"0\r\n" + b"X: y\r\n" * 20_000,
        b"GET" + b" " * 100_000,
    ],
)
def test_floods_are_refused_early(flood: bytes) -> None:
    one = reader()
    fed = 0
    for i in range(0, len(flood), 100):
        one.feed(flood[i : i + 100])
        fed += 100
        if one.fault:
            break
    assert one.fault is not None
    assert fed <= HEAD_LIMIT + 400, "bounded by the head limit"
    assert not one.ready


def test_a_thousand_ignored_upgrades_in_one_segment() -> None:
    data = post(b"abc", *H2C) * 1500
    requests, fault = read([data])
    assert fault is None
    assert len(requests) == 1500
