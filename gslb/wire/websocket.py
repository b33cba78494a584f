"""The WebSocket handshake of `/v1/realtime` (RFC 6455 section 4): read, checked, written anew. What follows it
is bytes to gslb: frames are neither read nor made.
"""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha1
from typing import Final
from urllib.parse import quote_from_bytes, unquote_to_bytes

from gslb.errors import ApiError
from gslb.wire.http1 import RequestHead, ResponseHead, request_lines
from gslb.wire.openai import MAX_MODEL_CHARS
from gslb.wire.paths import REALTIME_PATH

PROTOCOL_FIELD: Final = b"sec-websocket-protocol"
KEY_PROTOCOL: Final = b"openai-insecure-api-key."
"""Browsers cannot set Authorization on a WebSocket; OpenAI's realtime API lets them offer their key so."""

_ACCEPT_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455 section 1.3
_NONCE = re.compile(rb"[A-Za-z0-9+/]{21}[AQgw]==")  # 16 bytes in base64
_VERSION: Final = b"13"


def is_offer(head: RequestHead) -> bool:
    """True when `head`, whose Connection names Upgrade, offers the one upgrade that is served: WebSocket, on the
    realtime path, without a body. Any other is ignored (RFC 9110 7.8)."""
    return (
        head.path == REALTIME_PATH
        and head.method == b"GET"
        and not (head.is_http10 or head.is_chunked or head.content_length)
        and _names(head.own.get(b"upgrade", ()), b"websocket")
    )


def check_handshake(head: RequestHead) -> bytes:
    """The handshake's nonce. Raises ApiError: 426 for what is none or of another version, 400 for a broken one
    (RFC 6455 4.2.1 and 4.4)."""
    versions = [value.strip() for name, value in head.passed if name.lower() == b"sec-websocket-version"]
    if not head.is_handshake or versions != [_VERSION]:
        told = [(b"Upgrade", b"websocket"), (b"Connection", b"Upgrade"), (b"Sec-WebSocket-Version", _VERSION)]
        raise ApiError("upgrade_required", "this path speaks WebSocket, version 13", headers=told)
    nonces = [value.strip() for name, value in head.passed if name.lower() == b"sec-websocket-key"]
    if len(nonces) != 1 or not _NONCE.fullmatch(nonces[0]):
        raise ApiError("bad_request", "a WebSocket handshake needs one Sec-WebSocket-Key of 16 bytes in base64")
    return nonces[0]


def accept_of(nonce: bytes) -> bytes:
    """The Sec-WebSocket-Accept that answers `nonce` (RFC 6455 4.2.2)."""
    return b64encode(sha1(nonce + _ACCEPT_GUID, usedforsecurity=False).digest())


# --- the model, in the query ------------------------------------------------------------------------


def read_model(target: bytes) -> str:
    """The model a target's query names. Raises ApiError `bad_request` unless it names exactly one."""
    values = [value for name, value in _parameters(target) if name == b"model"]
    if len(values) != 1 or not 0 < len(values[0]) <= MAX_MODEL_CHARS:
        raise ApiError("bad_request", "the query must name one model: ?model=NAME", param="model")
    return values[0].decode("utf-8", "replace")


def with_model(target: bytes, model: str) -> bytes:
    """`target` with the model its query names replaced by `model`, every other byte as it was."""
    if read_model(target) == model:
        return target
    path, _, query = target.partition(b"?")
    pieces = [
        piece.partition(b"=")[0] + b"=" + quote_from_bytes(model.encode()).encode()
        if _decoded(piece.partition(b"=")[0]) == b"model"
        else piece
        for piece in query.split(b"&")
    ]
    return path + b"?" + b"&".join(pieces)


def _parameters(target: bytes) -> list[tuple[bytes, bytes]]:
    pieces = (piece.partition(b"=") for piece in target.partition(b"?")[2].split(b"&"))
    return [(_decoded(name), _decoded(value)) for name, _, value in pieces]


def _decoded(text: bytes) -> bytes:
    return unquote_to_bytes(text.replace(b"+", b" "))


# --- subprotocols, and the key among them ------------------------------------------------------------


def offered_keys(head: RequestHead) -> list[bytes]:
    """The keys a browser sends among the subprotocols it offers."""
    return [name.removeprefix(KEY_PROTOCOL) for name in _protocols(head) if name.startswith(KEY_PROTOCOL)]


def _protocol_lines(head: RequestHead, passes_key: bool) -> bytes:
    values = () if PROTOCOL_FIELD in head.nominated else head.own.get(PROTOCOL_FIELD, ())
    if not passes_key and offered_keys(head):
        values = [b", ".join(name for name in _protocols(head) if not name.startswith(KEY_PROTOCOL))]
    return b"".join(b"Sec-WebSocket-Protocol: %b\r\n" % value for value in values if value)


def _protocols(head: RequestHead) -> list[bytes]:
    return [name.strip() for value in head.own.get(PROTOCOL_FIELD, ()) for name in value.split(b",")]


# --- the heads that go on ----------------------------------------------------------------------------


def upstream_handshake(
    head: RequestHead,
    target: bytes,
    endpoint_lines: bytes,
    key_lines: bytes | None,
    forwarded_for: bytes,
    proto: bytes,
    request_id: bytes,
) -> bytes:
    """The handshake an endpoint gets for a client's: `target` already has its base path and model. `key_lines` are
    the client's own key where it passes, None where it ends here."""
    return (
        b"GET %b HTTP/1.1\r\n%b%b%b%bUpgrade: websocket\r\nConnection: Upgrade\r\nX-Forwarded-For: %b\r\n"
        b"X-Forwarded-Proto: %b\r\nX-Request-Id: %b\r\n\r\n"
    ) % (
        target, endpoint_lines, key_lines or b"", request_lines(head),
        _protocol_lines(head, key_lines is not None), forwarded_for, proto, request_id,
    )  # fmt: skip


def is_accepted(head: ResponseHead, nonce: bytes) -> bool:
    """True when an endpoint's 101, not yet finished, takes up the WebSocket that was offered with `nonce`."""
    values: dict[bytes, list[bytes]] = {}
    for name, value in head.fields:
        values.setdefault(name.lower(), []).append(value.strip())
    return (
        _names(values.get(b"upgrade", ()), b"websocket")
        and _names(values.get(b"connection", ()), b"upgrade")
        and values.get(b"sec-websocket-accept") == [accept_of(nonce)]
    )


def client_switch(head: ResponseHead, gslb_fields: bytes) -> bytes:
    """The 101 a client gets: the endpoint's finished fields and gslb's; it has no framing, for it has no body."""
    lines = b"".join(b"%b: %b\r\n" % field for field in head.fields)
    switch = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    return b"%b%b%b\r\n" % (switch, lines, gslb_fields)


def _names(values: list[bytes] | tuple[()], token: bytes) -> bool:
    return any(part.strip().lower() == token for value in values for part in value.split(b","))
