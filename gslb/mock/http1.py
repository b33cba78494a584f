"""HTTP/1.1 heads and chunks with uvicorn's spelling: lower-case names in its order, lower-case hex sizes."""

from __future__ import annotations

from email.utils import formatdate

from gslb.mock.refusals import REASONS, Headers

JSON_TYPE = b"application/json"
STREAM_TYPE = b"text/event-stream; charset=utf-8"
LAST_CHUNK = b"0\r\n\r\n"

VARY = (b"vary", b"Origin")


def chunk(data: bytes) -> bytes:
    """`data` (not empty) as one chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def head(status: int, headers: Headers, unix_s: float) -> bytes:
    """Status line and header block; `date` and `server` come first, then `headers` in their order."""
    reason = REASONS.get(status, "").encode()
    lines = [
        b"HTTP/1.1 %d %s" % (status, reason),
        b"date: " + formatdate(unix_s, usegmt=True).encode(),
        b"server: uvicorn",
    ]
    lines += [name + b": " + value for name, value in headers]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def body_headers(
    length: int,
    content_type: bytes | None = JSON_TYPE,
    *,
    before: Headers = (),
    has_vary: bool = True,
    behind: Headers = (),
) -> Headers:
    """Headers of an answer with a known length. `before` go ahead of it, `behind` after `vary`."""
    headers = [*before, (b"content-length", b"%d" % length)]
    if content_type is not None:
        headers.append((b"content-type", content_type))
    if has_vary:
        headers.append(VARY)
    return (*headers, *behind)


def stream_headers(is_closing: bool, behind: Headers = ()) -> Headers:
    """Headers of an event stream: framing comes last, after `connection: close` where that is said."""
    headers = [(b"content-type", STREAM_TYPE), VARY, *behind]
    if is_closing:
        headers.append((b"connection", b"close"))
    return (*headers, (b"transfer-encoding", b"chunked"))


INVALID_REQUEST_BODY = b"Invalid HTTP request received."
