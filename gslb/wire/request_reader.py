"""Bytes of a client connection to whole requests, or to the one error that ends the connection. No I/O.

httptools splits, `http1.finish_head` judges, this bounds: head bytes, field count, body bytes, whether
announced by Content-Length or sent in chunks (FC-36).
"""

from __future__ import annotations

import re
from collections import deque

import httptools

from gslb.errors import ApiError
from gslb.wire.http1 import RequestHead, finish_head

IDLE, IN_HEAD, IN_BODY = range(3)

_LENGTH = re.compile(rb"\r\ncontent-length: ?([0-9]{1,18})\r\n", re.IGNORECASE)
_MAX_LESSONS = 8
"""A client whose heads never repeat is not looked at again for repetition."""


class RequestReader:
    """Feed it bytes; take whole requests from `ready`. After `fault` is set nothing more is read.

    `stage` tells what the connection waits for; `wants_continue` that a client awaits `100 Continue`.
    """

    __slots__ = (
        "_body", "_body_bytes", "_body_limit_bytes", "_count_limit", "_head_bytes", "_head_limit_bytes",
        "_is_upgrading", "_known", "_lessons", "_parser", "fault", "head", "ready", "stage", "wants_continue",
    )  # fmt: skip

    def __init__(self, head_limit_bytes: int, count_limit: int, body_limit_bytes: int) -> None:
        self._head_limit_bytes = head_limit_bytes
        self._count_limit = count_limit
        self._body_limit_bytes = body_limit_bytes
        self._parser = httptools.HttpRequestParser(self)
        self.ready: deque[tuple[RequestHead, bytes]] = deque()
        self.fault: ApiError | None = None
        self.stage = IDLE
        self.wants_continue = False
        self._known: tuple[bytes, bytes, RequestHead] | None = None
        self._lessons = 0
        # the request being received
        self.head: RequestHead | None = None
        self._head_bytes = 0
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._is_upgrading = False

    def feed(self, data: bytes) -> None:
        """Take in bytes as they came, cut anywhere."""
        if self.fault is not None:
            return
        if self.stage != IDLE:
            self._parse(data)
        elif not self._repeats(data):
            waiting = len(self.ready)
            self._parse(data)
            if len(self.ready) == waiting + 1 and self._lessons < _MAX_LESSONS:
                self._learn(data, self.ready[-1][0])

    def _repeats(self, data: bytes) -> bool:
        """Take a whole request whose head differs from the last one's in the digits of Content-Length only.

        SDKs on a kept connection send the same head over and over. What httptools and `finish_head` found of
        it still holds: the bytes are the same, and digits are a length whatever they say.
        """
        if self._known is None:
            return False
        before, after, head = self._known
        at = len(before)
        end = data.find(b"\r", at, at + 19)
        digits = data[at:end]
        if end < 0 or not digits.isdigit() or not data.startswith(before) or not data.startswith(after, end):
            return False
        body_at = end + len(after)
        length = int(digits)
        if length != len(data) - body_at or length > self._body_limit_bytes:
            return False
        self._lessons = 0
        self.ready.append((head, data[body_at:]))
        return True

    def _learn(self, data: bytes, head: RequestHead) -> None:
        """Remember a head that came with its whole body in one piece."""
        self._lessons += 1
        end = data.find(b"\r\n\r\n") + 4
        length = _LENGTH.search(data, 0, end)
        is_plain = head.keep_alive and not head.expects_continue and b"upgrade" not in head.own
        if length is not None and is_plain and head.content_length == len(data) - end:
            self._known = (data[: length.start(1)], data[length.end(1) : end], head)

    def _parse(self, data: bytes) -> None:
        before = self.head if self.stage == IN_HEAD else None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._refuse(ApiError("bad_request", "the request is not well-formed HTTP/1.1", is_framing=True))
        if self.stage == IN_HEAD and self.fault is None:
            # httptools buffers an unfinished field without telling: count what was fed.
            self._head_bytes = self._head_bytes + len(data) if self.head is before else len(data)
            if self._head_bytes > self._head_limit_bytes:
                self._refuse(_head_too_large())

    def _refuse(self, fault: ApiError) -> None:
        if self.fault is None:
            self.fault = fault
            self._body = []

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Read the body of a request whose offered upgrade is ignored (RFC 9110 7.8): the parser stopped
        before it, believing another protocol follows (FC-03)."""
        head = self.head
        if head is None or self.fault is not None:
            return
        self._is_upgrading = False
        self._parser = httptools.HttpRequestParser(_BodyOnly(self))
        framing = (
            b"Transfer-Encoding: chunked"
            if head.is_chunked
            else b"Content-Length: %d" % (head.content_length or 0)
        )
        self._parse(b"POST / HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n" % framing)
        if rest:
            self._parse(rest)

    # --- httptools ----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self.head = RequestHead()
        self.stage = IN_HEAD
        self._head_bytes = 0
        self._body = []
        self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        """A piece of the target."""
        if self.head is not None:
            self.head.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One field."""
        head = self.head
        if head is None or self.fault is not None:
            return
        head.add_field(name, value)
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > self._head_limit_bytes:
            self._refuse(_head_too_large())
        elif len(head.passed) + len(head.own) > self._count_limit:
            self._refuse(ApiError("headers_too_large", "the request has too many header fields", is_framing=True))

    def on_headers_complete(self) -> None:
        """The head is whole: judge it."""
        head = self.head
        if head is None or self.fault is not None:
            return
        self.stage = IN_BODY
        head.method = self._parser.get_method()
        head.version = self._parser.get_http_version()
        self._is_upgrading = self._parser.should_upgrade()
        try:
            if len(head.target) > self._head_limit_bytes:
                raise _head_too_large()
            finish_head(head)
            if head.content_length is not None and head.content_length > self._body_limit_bytes:
                raise _body_too_large(self._body_limit_bytes)
        except ApiError as error:
            self._refuse(error)
            return
        self.wants_continue = head.expects_continue

    def on_body(self, body: bytes) -> None:
        """A piece of the body, its chunk framing gone."""
        if self.fault is not None:
            return
        self._body_bytes += len(body)
        if self._body_bytes > self._body_limit_bytes:
            self._refuse(_body_too_large(self._body_limit_bytes))
            return
        self._body.append(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        head = self.head
        if head is None or self.fault is not None or self._is_upgrading:
            return
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self.head = None
        self._body = []
        self.stage = IDLE
        self.wants_continue = False
        self.ready.append((head, body))

    def on_upgraded_body_complete(self) -> None:
        """The body behind an ignored upgrade is whole: the next request needs the usual parser again."""
        self.on_message_complete()
        self._parser = httptools.HttpRequestParser(self)


class _BodyOnly:
    """Callbacks for the body behind an ignored upgrade: its head is known already."""

    def __init__(self, reader: RequestReader) -> None:
        self.on_body = reader.on_body
        self.on_message_complete = reader.on_upgraded_body_complete


def _head_too_large() -> ApiError:
    return ApiError("headers_too_large", "the request head is larger than this edge takes", is_framing=True)


def _body_too_large(limit_bytes: int) -> ApiError:
    return ApiError("payload_too_large", f"the body is larger than {limit_bytes} bytes", is_framing=True)
