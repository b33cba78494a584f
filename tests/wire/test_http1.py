"""Heads: what is judged bad, what passes in which direction, and the bytes that are built."""

from __future__ import annotations

from typing import Any

import pytest

from gslb.errors import ApiError
from gslb.wire.http1 import (
    OWN_FIELDS,
    RequestHead,
    ResponseHead,
    client_head,
    finish_head,
    finish_response_head,
    good_request_id,
    is_interim,
    key_lines,
    local_answer,
    upstream_head,
)

Fields = list[tuple[bytes, bytes]]


def head(*fields: tuple[bytes, bytes], target: bytes = b"/v1/x?a=1", version: str = "1.1", method: bytes = b"POST",
         host: bytes | None = b"a") -> RequestHead:  # fmt: skip
    """A head as httptools would fill it."""
    made = RequestHead()
    made.method, made.target, made.version = method, target, version
    if host is not None:
        made.add_field(b"Host", host)
    for name, value in fields:
        made.add_field(name, value)
    return made


def refusal(made: RequestHead) -> ApiError:
    with pytest.raises(ApiError) as raised:
        finish_head(made)
    assert raised.value.is_framing
    return raised.value


def test_a_plain_head() -> None:
    made = head((b"Content-Length", b" 12\t"), (b"X-A", b"1"))
    finish_head(made)
    assert (made.path, made.content_length, made.is_chunked, made.keep_alive) == (b"/v1/x", 12, False, True)
    assert made.passed == [(b"X-A", b"1")]


BAD: list[tuple[int, dict[str, Any]]] = [
    (400, {"fields": [(b"Content-Length", b"3"), (b"content-length", b"3")]}),
    (400, {"fields": [(b"Content-Length", b"3, 3")]}),
    (400, {"fields": [(b"Content-Length", b"+3")]}),
    (400, {"fields": [(b"Content-Length", b"")]}),
    (400, {"fields": [(b"Content-Length", b"1" * 19)]}),
    (400, {"fields": [(b"Content-Length", b"\xb2")]}),
    (400, {"fields": [(b"Transfer-Encoding", b"chunked"), (b"Content-Length", b"3")]}),
    (400, {"fields": [(b"Transfer-Encoding", b"chunked"), (b"Transfer-Encoding", b"chunked")]}),
    (400, {"fields": [(b"Transfer-Encoding", b"chunked")], "version": "1.0"}),
    (501, {"fields": [(b"Transfer-Encoding", b"gzip, chunked")]}),
    (501, {"fields": [(b"Transfer-Encoding", b"identity")]}),
    (417, {"fields": [(b"Expect", b"more")]}),
    (417, {"fields": [(b"Expect", b"100-continue"), (b"Expect", b"more")]}),
    (405, {"method": b"CONNECT", "target": b"a:1"}),
    (400, {"target": b"http://a/"}),
    (400, {"target": b"*"}),
    (400, {"target": b"/a#b"}),
    (400, {"target": b"/\xe9"}),
    (400, {"target": b""}),
    (400, {"host": None}),
    (400, {"host": b"a b"}),
    (400, {"host": b"a/b"}),
    (400, {"host": b"a@b"}),
    (400, {"fields": [(b"host", b"b")]}),
    (400, {"version": "2.0"}),
    (400, {"version": "0.9"}),
]


@pytest.mark.parametrize(("status", "how"), BAD)
def test_bad_heads(status: int, how: dict[str, Any]) -> None:
    how = dict(how)
    assert refusal(head(*how.pop("fields", ()), **how)).status == status


def test_keep_alive_and_nominated() -> None:
    made = head(
        (b"Connection", b"Keep-Alive, X-Drop"), (b"connection", b"upgrade"), (b"X-Drop", b"1"), (b"X-Keep", b"2")
    )
    finish_head(made)
    assert made.keep_alive
    assert made.nominated == {b"x-drop"}
    assert made.passed == [(b"X-Keep", b"2")]
    for value in (b"close", b"CLOSE", b"x, close"):
        made = head((b"Connection", value))
        finish_head(made)
        assert not made.keep_alive
    made = head((b"Connection", b"keep-alive"), version="1.0", host=None)
    finish_head(made)
    assert made.is_http10
    assert not made.keep_alive


@pytest.mark.parametrize("name", sorted(OWN_FIELDS))
def test_own_fields_never_pass_by_themselves(name: bytes) -> None:
    made = RequestHead()
    for spelling in (name, name.upper(), name.title()):
        made.add_field(spelling, b"v")
    assert made.passed == []
    assert made.own == {name: [b"v"] * 3}


@pytest.mark.parametrize("name", [b"X_Forwarded_For", b"x_forwarded-for", b"Content_Length", b"TRANSFER_ENCODING"])
def test_fields_that_differ_from_own_ones_by_underscores_do_not_pass(name: bytes) -> None:
    made = head((name, b"1"), (b"X_Other", b"2"))
    finish_head(made)
    assert made.passed == [(b"X_Other", b"2")]
    assert made.own == {b"host": [b"a"]}


def test_what_goes_upstream() -> None:
    made = head(
        (b"X-A", b"1"), (b"x-a", b"2"), (b"Content-Type", b"application/json"), (b"Via", b"1.0 p"),
        (b"Authorization", b"Bearer k"), (b"Content-Length", b"9"), (b"X-Forwarded-For", b"9.9.9.9"),
    )  # fmt: skip
    finish_head(made)
    made.method, made.target = b"POST", b"/v1/x?a=b"
    host = b"Host: e:8000\r\n"
    assert upstream_head(made, b"/base", host, key_lines(made), 5, b"10.0.0.1", b"https", b"r1") == (
        b"POST /base/v1/x?a=b HTTP/1.1\r\nHost: e:8000\r\nauthorization: Bearer k\r\nX-A: 1\r\nx-a: 2\r\n"
        b"Content-Type: application/json\r\nX-Forwarded-Host: a\r\nVia: 1.0 p, 1.1 gslb\r\n"
        b"Content-Length: 5\r\nX-Forwarded-For: 10.0.0.1\r\nX-Forwarded-Proto: https\r\nX-Request-Id: r1\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("values", "good"),
    [
        (None, None), ([], None), ([b"req-42"], b"req-42"), ([b"a" * 128], b"a" * 128), ([b"a" * 129], None),
        ([b"a", b"a"], None), ([b""], None), ([b"a b"], None), ([b"a\n"], None), ([b"\xe9"], None),
        ([b"A.z_0-"], b"A.z_0-"),
    ],
)  # fmt: skip
def test_request_ids(values: list[bytes] | None, good: bytes | None) -> None:
    assert good_request_id(values) == good


# --- responses ----------------------------------------------------------------------------------------


def response(status: int, *fields: tuple[bytes, bytes]) -> ResponseHead:
    made = ResponseHead()
    made.status, made.reason, made.fields = status, b"Fine", list(fields)
    return made


def test_fields_that_end_here() -> None:
    made = response(
        200, (b"Connection", b"keep-alive, X-Up"), (b"X-Up", b"1"), (b"Keep-Alive", b"timeout=7, max=9"),
        (b"Server", b"s"),
        (b"Transfer-Encoding", b"Chunked"), (b"X-Request-Id", b"theirs"), (b"x-gslb-region", b"fake"),
        (b"Set-Cookie", b"a"), (b"Set-Cookie", b"b"), (b"Retry-After", b" 5 "),
        (b"Content-Type", b"Text/Event-Stream; x"),
    )  # fmt: skip
    assert finish_response_head(made) is None
    names = [name.lower() for name, _ in made.fields]
    assert names == [b"server", b"set-cookie", b"set-cookie", b"retry-after", b"content-type"]
    assert (made.is_chunked, made.content_length, made.retry_after, made.keep_alive_s) == (True, None, b"5", 7)
    assert made.is_event_stream


@pytest.mark.parametrize(
    "fields",
    [
        [(b"Content-Length", b"3"), (b"Content-Length", b"4")],
        [(b"Content-Length", b"3"), (b"Transfer-Encoding", b"chunked")],
        [(b"Transfer-Encoding", b"chunked"), (b"content-length", b"3")],
        [(b"Content-Length", b"x")],
        [(b"Content-Length", b"-1")],
        [(b"Content-Length", b"")],
        [(b"Transfer-Encoding", b"gzip, chunked")],
        [(b"transfer-encoding", b"gzip")],
    ],
)
def test_framing_that_cannot_be_trusted(fields: Fields) -> None:
    assert finish_response_head(response(200, *fields)) is not None


@pytest.mark.parametrize(
    ("version", "fields", "is_good"),
    [
        ("1.1", [(b"Transfer-Encoding", b"chunked")], True),
        ("1.0", [(b"Content-Length", b"3")], True),
        ("1.0", [(b"Transfer-Encoding", b"chunked")], False),
        ("2.0", [(b"Content-Length", b"3")], False),
        ("0.9", [], False),
        ("1.1", [(b"X-A", b"b")] * 501, False),
    ],
)
def test_versions_and_their_framing(version: str, fields: Fields, is_good: bool) -> None:
    made = response(200, *fields)
    made.version = version
    assert (finish_response_head(made) is None) is is_good


@pytest.mark.parametrize(
    ("status", "fields", "is_passed_over"),
    [
        (100, [], True), (103, [(b"Link", b"x")], True), (199, [], True), (101, [], False), (99, [], False),
        (0, [], False), (200, [], False), (103, [(b"Content-Length", b"0")], False),
        (100, [(b"transfer-encoding", b"chunked")], False),
    ],
)  # fmt: skip
def test_answers_that_are_passed_over(status: int, fields: Fields, is_passed_over: bool) -> None:
    made = response(status, *fields)
    assert is_interim(made) is is_passed_over
    assert (finish_response_head(made) is None) is (status >= 200)


@pytest.mark.parametrize(
    ("status", "fields", "may_reuse"),
    [
        (204, [], True), (204, [(b"Content-Length", b"0")], True), (204, [(b"Content-Length", b"1")], False),
        (204, [(b"Transfer-Encoding", b"chunked")], False), (304, [(b"Content-Length", b"9")], True),
        (304, [(b"Transfer-Encoding", b"chunked")], False), (200, [(b"Content-Length", b"9")], True),
    ],
)  # fmt: skip
def test_an_announced_body_that_may_not_come_ends_the_connection(
    status: int, fields: Fields, may_reuse: bool
) -> None:
    made = response(status, *fields)
    assert finish_response_head(made) is None
    assert made.may_reuse is may_reuse


@pytest.mark.parametrize(
    ("reason", "passes"),
    [
        (b"OK", True),
        (b"", True),
        (b"I'm a\ttea pot \xe9", True),
        (b"O\x00K", False),
        (b"\x1b[2J", False),
        (b"\x7f", False),
    ],
)
def test_reasons(reason: bytes, passes: bool) -> None:
    made = response(200)
    made.reason = reason
    assert finish_response_head(made) is None
    line = client_head(made, b"", is_http10=False, close=False).split(b"\r\n")[0]
    assert line == b"HTTP/1.1 200 " + (reason if passes and reason else b"OK")


@pytest.mark.parametrize(
    ("status", "fields", "is_http10", "framing"),
    [
        (200, [(b"Content-Length", b"3")], False, b"content-length: 3\r\n"),
        (200, [(b"Content-Length", b"3")], True, b"content-length: 3\r\n"),
        (200, [(b"Transfer-Encoding", b"chunked")], False, b"transfer-encoding: chunked\r\n"),
        (200, [], False, b"transfer-encoding: chunked\r\n"),
        (200, [(b"Transfer-Encoding", b"chunked")], True, b""),
        (204, [], False, b""),
        (204, [(b"Content-Length", b"0")], False, b""),
        (304, [(b"Content-Length", b"512")], False, b"content-length: 512\r\n"),
        (304, [], False, b""),
    ],
)
def test_framing_toward_the_client(status: int, fields: Fields, is_http10: bool, framing: bytes) -> None:
    made = response(status, *fields)
    assert finish_response_head(made) is None
    built = client_head(made, b"x-gslb-region: eu\r\n", is_http10=is_http10, close=is_http10)
    close = b"connection: close\r\n" if is_http10 else b""
    assert built == b"HTTP/1.1 %d Fine\r\n%bx-gslb-region: eu\r\n%b\r\n" % (status, framing, close)


def test_local_answers() -> None:
    built = local_answer(404, b"{}", [(b"X-A", b"1")], date=b"now", close=True)
    assert built == (
        b"HTTP/1.1 404 Not Found\r\nServer: gslb\r\nDate: now\r\nContent-Type: application/json\r\n"
        b"Content-Length: 2\r\nX-A: 1\r\nConnection: close\r\n\r\n{}"
    )
    assert local_answer(404, b"{}", [], date=b"now", close=False, sends_body=False).endswith(
        b"Content-Length: 2\r\n\r\n"
    )
