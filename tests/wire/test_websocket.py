"""The handshake of `/v1/realtime`: what is one, whose key it brings, what goes on. RFC 6455 section 4."""

from __future__ import annotations

import pytest

from gslb.errors import ApiError
from gslb.wire.http1 import RequestHead, ResponseHead, finish_head
from gslb.wire.request_reader import RequestReader
from gslb.wire.websocket import (
    accept_of,
    check_handshake,
    client_switch,
    is_accepted,
    is_offer,
    offered_keys,
    read_model,
    upstream_handshake,
    with_model,
)

NONCE = b"dGhlIHNhbXBsZSBub25jZQ=="  # the example of RFC 6455 section 1.3
ACCEPT = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
GOOD = {
    "Host": "a", "Connection": "keep-alive, Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": NONCE.decode(),
}  # fmt: skip


def head_of(
    target: bytes = b"/v1/realtime?model=m", *, method: bytes = b"GET", **fields: str | None
) -> RequestHead:
    """A finished head: GOOD with `fields` (dashes as underscores) put in, or taken out by None."""
    head = RequestHead()
    head.method, head.target = method, target
    changed = {**GOOD, **{name.replace("_", "-"): value for name, value in fields.items()}}
    for name, value in changed.items():
        if value is not None:
            head.add_field(name.encode(), value.encode())
    finish_head(head)
    head.is_handshake = is_offer(head)
    return head


def read(raw: bytes, size: int = 1 << 20) -> RequestReader:
    """A reader fed with `raw` in pieces of `size` bytes."""
    reader = RequestReader(8192, 100, 1 << 20)
    for at in range(0, len(raw), size):
        reader.feed(raw[at : at + size])
    return reader


RAW = b"GET /v1/realtime?model=m HTTP/1.1\r\n%b\r\n" % b"".join(
    b"%b: %b\r\n" % (name.encode(), value.encode()) for name, value in GOOD.items()
)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_behind_a_handshake_nothing_is_http(size: int) -> None:
    reader = read(RAW + b"\x81\x85GET / HTTP/1.1\r\n\r\n", size)
    ((head, body),) = reader.ready
    assert (head.is_handshake, head.keep_alive, body) == (True, False, b"")
    assert reader.behind == b"\x81\x85GET / HTTP/1.1\r\n\r\n"
    assert reader.fault is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"Upgrade: websocket", b"Upgrade: h2c"), (b"/v1/realtime", b"/v1/models"), (b", Upgrade\r\n", b"\r\n"),
        (b"Host: a", b"Host: a\r\nContent-Length: 0\r\nX: y"),
    ],
)  # fmt: skip
def test_fc03_other_upgrades_are_ignored(old: bytes, new: bytes) -> None:
    """FC-03: the request is read as if nothing had been offered, and the next one behind it."""
    assert old in RAW
    reader = read(RAW.replace(old, new) + b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n")
    if b"Content-Length" in new:
        assert [head.is_handshake for head, _ in reader.ready] == [True], "a length of 0 is no body"
    else:
        assert [head.is_handshake for head, _ in reader.ready] == [False, False]


def test_a_handshake_with_a_body_is_none() -> None:
    reader = read(RAW.replace(b"Host: a", b"Host: a\r\nContent-Length: 3") + b"abc")
    ((head, body),) = reader.ready
    assert (head.is_handshake, body) == (False, b"abc")


def test_the_nonce_and_its_answer() -> None:
    assert check_handshake(head_of()) == NONCE
    assert accept_of(NONCE) == ACCEPT


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"Upgrade": None}, 426), ({"Upgrade": "h2c"}, 426), ({"Sec_WebSocket_Version": "8"}, 426),
        ({"Sec_WebSocket_Version": None}, 426), ({"Sec_WebSocket_Version": "13, 8"}, 426),
        ({"Sec_WebSocket_Key": None}, 400), ({"Sec_WebSocket_Key": "short"}, 400),
        ({"Sec_WebSocket_Key": "A" * 24}, 400), ({"sec-websocket-key": NONCE.decode()}, 400),
        ({"Connection": "Upgrade, Sec-WebSocket-Key"}, 400),
    ],
)  # fmt: skip
def test_what_is_no_handshake(fields: dict[str, str | None], status: int) -> None:
    with pytest.raises(ApiError) as caught:
        check_handshake(head_of(**fields))
    assert caught.value.status == status
    if status == 426:
        assert (b"Sec-WebSocket-Version", b"13") in caught.value.headers


@pytest.mark.parametrize(
    ("target", "model"),
    [
        (b"/v1/realtime?model=m", "m"), (b"/v1/realtime?a=1&model=org%2Fm+1&b", "org/m 1"),
        (b"/v1/realtime?%6dodel=x", "x"),
    ],
)  # fmt: skip
def test_the_model_stands_in_the_query(target: bytes, model: str) -> None:
    assert read_model(target) == model


@pytest.mark.parametrize("query", [b"", b"?", b"?model", b"?model=", b"?model=a&model=b", b"?model=" + b"x" * 257])
def test_one_model_must_be_named(query: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        read_model(b"/v1/realtime" + query)
    assert (caught.value.status, caught.value.param) == (400, "model")


def test_an_alias_is_replaced_and_nothing_else() -> None:
    target = b"/v1/realtime?a=%41&model=fast&b=model%3d"
    assert with_model(target, "org/m&1") == b"/v1/realtime?a=%41&model=org/m%261&b=model%3d"
    assert with_model(target, "fast") is target


def test_the_endpoint_gets_a_handshake_of_its_own() -> None:
    head = head_of(Sec_WebSocket_Extensions="permessage-deflate", Authorization="Bearer c", Cookie="a=b")
    raw = upstream_handshake(
        head, b"/base/v1/realtime?model=m", b"Host: up\r\n", b"", b"1.2.3.4", b"https", b"id-1"
    )
    lines = raw.split(b"\r\n")
    assert lines[0] == b"GET /base/v1/realtime?model=m HTTP/1.1"
    assert raw.endswith(b"\r\n\r\n")
    for line in (
        b"Host: up", b"Upgrade: websocket", b"Connection: Upgrade", b"Sec-WebSocket-Key: " + NONCE,
        b"Sec-WebSocket-Version: 13", b"Sec-WebSocket-Extensions: permessage-deflate", b"Cookie: a=b",
        b"X-Forwarded-For: 1.2.3.4", b"X-Forwarded-Proto: https", b"X-Request-Id: id-1", b"X-Forwarded-Host: a",
    ):  # fmt: skip
        assert lines.count(line) == 1, line
    assert b"Bearer" not in raw
    assert b"Content-Length" not in raw


@pytest.mark.parametrize(
    ("offered", "passed"),
    [
        ("realtime, openai-insecure-api-key.sk-1, x", "realtime, x"), ("openai-insecure-api-key.sk-1", None),
        ("realtime,x", "realtime,x"),
    ],
)  # fmt: skip
def test_a_browsers_key_ends_here_unless_keys_pass(offered: str, passed: str | None) -> None:
    head = head_of(Sec_WebSocket_Protocol=offered)
    assert offered_keys(head) == ([b"sk-1"] if "sk-1" in offered else [])
    ended = upstream_handshake(head, b"/", b"", None, b"", b"http", b"i")
    assert b"sk-1" not in ended
    assert (b"Sec-WebSocket-Protocol: " in ended) == (passed is not None)
    if passed is not None:
        assert b"\r\nSec-WebSocket-Protocol: %b\r\n" % passed.encode() in ended
    transparent = upstream_handshake(head, b"/", b"", b"", b"", b"http", b"i")
    assert b"\r\nSec-WebSocket-Protocol: %b\r\n" % offered.encode() in transparent


def answered(**fields: str | None) -> ResponseHead:
    """A 101 as an endpoint sends it."""
    head = ResponseHead()
    head.status = 101
    good = {"Upgrade": "WebSocket", "Connection": "upgrade", "Sec_WebSocket_Accept": ACCEPT.decode()}
    for name, value in {**good, **fields}.items():
        if value is not None:
            head.fields.append((name.replace("_", "-").encode(), value.encode()))
    return head


@pytest.mark.parametrize(
    ("fields", "is_good"),
    [
        ({}, True), ({"Upgrade": "h2c"}, False), ({"Connection": "close"}, False),
        ({"Sec_WebSocket_Accept": None}, False), ({"Sec_WebSocket_Accept": "x" + ACCEPT[1:].decode()}, False),
    ],
)  # fmt: skip
def test_only_a_true_accept_is_one(fields: dict[str, str | None], is_good: bool) -> None:
    assert is_accepted(answered(**fields), NONCE) is is_good


def test_the_client_gets_the_endpoints_choices() -> None:
    head = answered()
    head.fields = [(b"sec-websocket-accept", ACCEPT), (b"sec-websocket-protocol", b"realtime")]
    raw = client_switch(head, b"x-request-id: i\r\n")
    assert raw == (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nsec-websocket-accept: "
        + ACCEPT + b"\r\nsec-websocket-protocol: realtime\r\nx-request-id: i\r\n\r\n"
    )  # fmt: skip
