"""HTTP/1.1 heads: what may pass, what must not, and the bytes that go on.

httptools splits bytes into fields and refuses bad characters in them (tried with every byte value, in names and
values). What else it lets through and a proxy in front of money must not, `finish_head` refuses (RFC 9112
sections 3, 6 and 9; FC-02, FC-03, FC-36). The builders never copy a framing field: gslb writes its own
(FC-01, FC-05).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import product
from typing import Final

from gslb.errors import REASONS, ApiError

Field = tuple[bytes, bytes]

OWN_FIELDS = frozenset(
    (
        b"host", b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization",
        b"proxy-authenticate", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"http2-settings",
        b"content-length", b"content-type", b"content-encoding", b"expect", b"x-forwarded-for", b"forwarded",
        b"x-forwarded-proto", b"x-forwarded-host", b"x-real-ip", b"via", b"x-request-id", b"authorization",
        b"x-api-key", b"api-key", b"x-gslb-latency-budget-ms", b"x-gslb-session", b"x-gslb-region",
        b"x-gslb-priority", b"x-gslb-explain", b"sec-websocket-protocol",
    )
)  # fmt: skip
"""Request fields gslb reads, replaces or ends: none of them passes by itself."""

KEY_FIELDS = (b"authorization", b"x-api-key", b"api-key")
"""Those of them that carry a client's key."""

_DOUBLES = frozenset(
    b"".join(spelled)
    for name in OWN_FIELDS
    for spelled in product(*((b"-", b"_") if byte == ord("-") else (bytes((byte,)),) for byte in name))
) - OWN_FIELDS  # fmt: skip
"""OWN_FIELDS with underscores: an engine behind CGI or WSGI cannot tell them apart, so these do not pass."""

_HOP_BY_HOP = frozenset(
    (
        b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"te", b"trailer",
        b"transfer-encoding", b"upgrade", b"content-length", b"x-request-id", b"x-gslb-region",
        b"x-gslb-attempts", b"x-gslb-decision",
    )
)  # fmt: skip
"""Response fields that end here: hop-by-hop (RFC 9110 7.6.1), framing, and those gslb writes itself."""

_TARGET = re.compile(rb"/[\x21-\x22\x24-\x7e]*")
_HOST = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]*")
_DIGITS = re.compile(rb"[0-9]{1,18}")
_IDLE_LIMIT = re.compile(rb"timeout=([0-9]{1,9})", re.IGNORECASE)
_REASON = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")


class RequestHead:
    """One request's head, filled while it is parsed, then checked once by `finish_head`.

    `passed` are the fields that go upstream as they came; `own` those of OWN_FIELDS, by lower-case name.
    """

    __slots__ = (
        "content_length", "expects_continue", "is_chunked", "is_handshake", "is_http10", "keep_alive", "method",
        "nominated", "own", "passed", "passed_lines", "path", "reading", "target", "version",
    )  # fmt: skip

    def __init__(self) -> None:
        self.method = b""
        self.target = b""
        self.path = b""
        self.is_http10 = False
        self.keep_alive = True
        self.version = "1.1"
        self.content_length: int | None = None
        self.is_chunked = False
        self.expects_continue = False
        self.is_handshake = False
        """Offers a WebSocket: what comes behind it is not HTTP."""
        self.passed: list[Field] = []
        self.passed_lines: bytes | None = None
        self.reading: object = None
        """Kept here by whoever read the head, for the next request that repeats it."""
        self.own: dict[bytes, list[bytes]] = {}
        self.nominated: frozenset[bytes] = frozenset()

    def add_field(self, name: bytes, value: bytes) -> None:
        """Take one field as httptools hands it over (it does not strip trailing whitespace)."""
        lower = name.lower()
        if lower in OWN_FIELDS:
            self.own.setdefault(lower, []).append(value.strip(b" \t"))
        elif lower not in _DOUBLES:
            self.passed.append((name, value))

    def first(self, name: bytes) -> bytes | None:
        """The first value of one of OWN_FIELDS, or None."""
        values = self.own.get(name)
        return values[0] if values else None


def finish_head(head: RequestHead) -> None:
    """Check framing and routing fields of a complete head and fill in what follows from them.

    Raises ApiError (`is_framing`: answer and close) for what RFC 9112 calls an error.
    """
    own = head.own
    target = head.target
    if head.version not in ("1.0", "1.1"):
        raise _malformed("the only versions served are HTTP/1.1 and HTTP/1.0")
    head.is_http10 = head.version == "1.0"
    head.path = target.partition(b"?")[0]
    if head.method == b"CONNECT":
        raise ApiError("method_not_allowed", "gslb is no tunnel", headers=[(b"Allow", b"POST, GET, HEAD")],
                       is_framing=True)  # fmt: skip
    if not _TARGET.fullmatch(target):
        raise _malformed("the request target must be a path in origin form")
    hosts = own.get(b"host", ())
    if len(hosts) > 1 or (not hosts and not head.is_http10) or (hosts and not _HOST.fullmatch(hosts[0])):
        raise _malformed("a request needs exactly one well-formed Host")
    _read_framing(head)
    _read_connection(head)
    if (expects := own.get(b"expect")) is not None:
        if any(expect.lower() != b"100-continue" for expect in expects):
            raise ApiError("expectation_failed", "the only expectation served is 100-continue", is_framing=True)
        head.expects_continue = not head.is_http10


def _read_framing(head: RequestHead) -> None:
    """RFC 9112 6.1 and 6.3: one length, or exactly `chunked`, never both."""
    codings = head.own.get(b"transfer-encoding")
    lengths = head.own.get(b"content-length")
    if codings:
        if lengths or head.is_http10 or len(codings) > 1:
            raise _malformed("Transfer-Encoding is doubled, beside Content-Length, or in HTTP/1.0")
        if codings[0].lower() != b"chunked":
            raise ApiError("not_implemented", "the only transfer coding served is chunked", is_framing=True)
        head.is_chunked = True
    elif lengths:
        if len(lengths) > 1 or not _DIGITS.fullmatch(lengths[0]):
            raise _malformed("Content-Length must be one plain number")
        head.content_length = int(lengths[0])


def _read_connection(head: RequestHead) -> None:
    values = head.own.get(b"connection")
    tokens = (
        frozenset(token.strip().lower() for value in values for token in value.split(b","))
        if values
        else frozenset()
    )
    head.keep_alive = not head.is_http10 and b"close" not in tokens
    # What the client nominates goes from the client's own set; gslb's fields are added later (FC-05).
    head.nominated = tokens - {b"close", b"keep-alive", b"upgrade"}
    if head.nominated:
        head.passed = [field for field in head.passed if field[0].lower() not in head.nominated]


def _malformed(message: str) -> ApiError:
    return ApiError("bad_request", message, is_framing=True)


def good_request_id(values: list[bytes] | None) -> bytes | None:
    """The client's X-Request-Id when it is one line of `[A-Za-z0-9._-]{1,128}`, else None."""
    if values and len(values) == 1 and _REQUEST_ID.fullmatch(values[0]):
        return values[0]
    return None


def upstream_head(
    head: RequestHead,
    base_path: bytes,
    endpoint_lines: bytes,
    key_lines: bytes,
    body_bytes: int,
    forwarded_for: bytes,
    proto: bytes,
    request_id: bytes,
) -> bytes:
    """The head an endpoint gets for a client's request. `endpoint_lines` are its Host and key, `key_lines` the
    client's own key where it passes; all lines end in CRLF."""
    return (
        b"%b %b%b HTTP/1.1\r\n%b%b%bContent-Length: %d\r\nX-Forwarded-For: %b\r\nX-Forwarded-Proto: %b\r\n"
        b"X-Request-Id: %b\r\n\r\n"
    ) % (
        head.method, base_path, head.target, endpoint_lines, key_lines, request_lines(head), body_bytes,
        forwarded_for, proto, request_id,
    )  # fmt: skip


def key_lines(head: RequestHead) -> bytes:
    """The client's own key as lines for an endpoint, where it may pass."""
    own = head.own
    return b"".join(
        b"%b: %b\r\n" % (name, values[0])
        for name in KEY_FIELDS
        if (values := own.get(name)) and name not in head.nominated
    )


def request_lines(head: RequestHead) -> bytes:
    """The lines that depend on the head alone; a head that repeats on its connection keeps them."""
    if head.passed_lines is None:
        head.passed_lines = _passed_lines(head)
    return head.passed_lines


def _passed_lines(head: RequestHead) -> bytes:
    lines = [b"%b: %b\r\n" % field for field in head.passed]
    own = head.own
    if (content_type := own.get(b"content-type")) is not None and b"content-type" not in head.nominated:
        lines.append(b"Content-Type: %b\r\n" % content_type[0])
    if (host := own.get(b"host")) is not None:
        lines.append(b"X-Forwarded-Host: %b\r\n" % host[0])
    via = b", ".join((*own.get(b"via", ()), b"1.0 gslb" if head.is_http10 else b"1.1 gslb"))
    lines.append(b"Via: %b\r\n" % via)
    return b"".join(lines)


# --- responses --------------------------------------------------------------------------------------


class ResponseHead:
    """An upstream's response head, filled while it is parsed."""

    __slots__ = (
        "content_length", "fields", "is_chunked", "is_encoded", "is_event_stream", "keep_alive_s",
        "load_metrics", "may_reuse", "passed_lines", "reason", "retry_after", "status", "version",
    )  # fmt: skip

    def __init__(self) -> None:
        self.status = 0
        self.version = "1.1"
        self.reason = b""
        self.fields: list[Field] = []
        self.content_length: int | None = None
        self.is_chunked = False
        self.is_event_stream = False
        self.is_encoded = False
        self.may_reuse = True
        self.retry_after: bytes | None = None
        self.keep_alive_s: int | None = None
        self.load_metrics: bytes | None = None
        self.passed_lines: bytes | None = None
        """Status line and passed fields as a client gets them, once they are made."""

    def again(self, content_length: int, passed_lines: bytes) -> ResponseHead:
        """The head of a later answer that differs in its length and in values of what passes only. Its fields are
        in `passed_lines` and nowhere else."""
        head = ResponseHead()
        head.status = self.status
        head.reason = self.reason
        head.content_length = content_length
        head.is_encoded = self.is_encoded
        head.is_event_stream = self.is_event_stream
        head.keep_alive_s = self.keep_alive_s
        head.passed_lines = passed_lines
        return head

    @property
    def has_body(self) -> bool:
        """False for 1xx, 204 and 304 (RFC 9112 6.3 rule 1)."""
        return self.status >= 200 and self.status not in (204, 304)

    @property
    def ends_at_close(self) -> bool:
        """True when only the end of the connection ends the body (RFC 9112 6.3 rule 8)."""
        return self.has_body and not self.is_chunked and self.content_length is None


_MAX_RESPONSE_FIELDS: Final = 500

# What a response field is to gslb, by the spellings met most; others are looked up in lower case.
_PASSES, _ENDS, _LENGTH, _CODING, _CONNECTION, _IDLE, _TYPE, _ENCODING, _RETRY, _LOAD = range(10)
_RESPONSE_FIELDS: dict[bytes, int] = {
    **dict.fromkeys(_HOP_BY_HOP, _ENDS),
    **dict.fromkeys((b"date", b"server", b"vary", b"Date", b"Server", b"Vary"), _PASSES),
    b"content-length": _LENGTH, b"Content-Length": _LENGTH,
    b"transfer-encoding": _CODING, b"Transfer-Encoding": _CODING,
    b"connection": _CONNECTION,
    b"keep-alive": _IDLE,
    b"content-type": _TYPE, b"Content-Type": _TYPE,
    b"content-encoding": _ENCODING,
    b"retry-after": _RETRY,
    b"endpoint-load-metrics": _LOAD,
}  # fmt: skip


def is_interim(head: ResponseHead) -> bool:
    """True for an answer to be passed over (RFC 9110 15.2).

    httptools takes any three digits for a status, and reads the body of an interim answer that announces one
    although it may not (RFC 9112 6.3): such heads are no interim answers but faults.
    """
    if not 100 <= head.status < 200 or head.status == 101:
        return False
    return not any(name.lower() in (b"content-length", b"transfer-encoding") for name, _ in head.fields)


def finish_response_head(head: ResponseHead) -> str | None:
    """Strip what must not reach a client and read framing; returns what is wrong, or None."""
    if head.status < 200:
        return "a status that answers nothing, or an interim answer with a body"
    return finish_switch_head(head)


def finish_switch_head(head: ResponseHead) -> str | None:
    """The same for a head of any status: a 101 that was asked for answers something."""
    if len(head.fields) > _MAX_RESPONSE_FIELDS:
        return "too many fields"
    if head.reason != b"OK" and not _REASON.fullmatch(head.reason):
        head.reason = b""  # httptools takes any byte but CR and LF; a reason has no meaning (RFC 9112 4)
    kept: list[Field] = []
    nominated: frozenset[bytes] = frozenset()
    known = _RESPONSE_FIELDS
    for field in head.fields:
        name, value = field
        kind = known.get(name)
        if kind is None:
            kind = known.get(name.lower(), _PASSES)
        if kind == _PASSES:
            kept.append(field)
        elif kind == _TYPE:
            head.is_event_stream = value[:17].lower() == b"text/event-stream"
            kept.append(field)
        elif kind == _LENGTH:
            if head.content_length is not None or not value.strip().isdigit():
                return "a doubled or malformed length"
            head.content_length = int(value)
        elif kind == _CODING:
            # A tab behind it is none of httptools' chunked, which would then read on to the connection's end.
            if head.is_chunked or value.strip(b" ").lower() != b"chunked":
                return "an unknown transfer coding"
            head.is_chunked = True
        elif kind == _CONNECTION:
            nominated |= {token.strip().lower() for token in value.split(b",")}
        elif kind == _IDLE:
            if (limit := _IDLE_LIMIT.search(value)) is not None:
                head.keep_alive_s = int(limit[1])
        elif kind != _ENDS:
            _note_field(head, kind, value)
            kept.append(field)
    if head.is_chunked and head.content_length is not None:
        return "contradictory framing"
    if head.version != "1.1" and (head.version != "1.0" or head.is_chunked):
        return f"HTTP/{head.version}, or its framing"  # 1.0 knows no chunks (RFC 9112 6.1)
    if not head.has_body:
        # It ends here whatever it announces; but the endpoint may think otherwise, and send that body later.
        head.may_reuse = not head.is_chunked and (head.status == 304 or not head.content_length)
    nominated -= {b"close", b"keep-alive"}
    head.fields = [field for field in kept if field[0].lower() not in nominated] if nominated else kept
    return None


def _note_field(head: ResponseHead, kind: int, value: bytes) -> None:
    if kind == _ENCODING:
        head.is_encoded = value.strip().lower() != b"identity"
    elif kind == _RETRY:
        head.retry_after = value.strip()
    else:
        head.load_metrics = value


def client_head(head: ResponseHead, gslb_fields: bytes, *, is_http10: bool, close: bool) -> bytes:
    """The head a client gets for an upstream's answer: its status and fields, gslb's framing and fields."""
    framing = b""
    if head.content_length is not None and head.status != 204:
        framing = b"content-length: %d\r\n" % head.content_length
    elif head.has_body and not is_http10:
        framing = b"transfer-encoding: chunked\r\n"
    end = b"connection: close\r\n\r\n" if close else b"\r\n"
    return b"%b%b%b%b" % (head.passed_lines or passed_lines(head), framing, gslb_fields, end)


def passed_lines(head: ResponseHead) -> bytes:
    """Status line and field lines of an upstream's finished head that pass to a client."""
    lines = [b"HTTP/1.1 %d %b\r\n" % (head.status, head.reason or REASONS.get(head.status, b""))]
    lines += [b"%b: %b\r\n" % field for field in head.fields]
    return b"".join(lines)


def local_answer(
    status: int, body: bytes, fields: Iterable[Field], *, date: bytes, close: bool, sends_body: bool = True
) -> bytes:
    """A whole answer of gslb's own, JSON body included (left out for HEAD, its length kept)."""
    lines = [
        b"HTTP/1.1 %d %b\r\nServer: gslb\r\nDate: %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
        % (status, REASONS[status], date, len(body))
    ]
    lines += [b"%b: %b\r\n" % field for field in fields]
    lines.append(b"Connection: close\r\n\r\n" if close else b"\r\n")
    if sends_body:
        lines.append(body)
    return b"".join(lines)


CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
