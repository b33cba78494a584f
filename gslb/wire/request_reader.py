"""Bytes of a client connection to whole requests, or to the one error that ends the connection. No I/O.

httptools splits, `http1.finish_head` judges, this bounds (FC-02, FC-03, FC-36):

    stage     takes                         until                            then
    IDLE      blank lines                   any other byte                   IN_HEAD
    IN_HEAD   request line, fields          a blank line; the head is good   IN_BODY
    IN_BODY   length or chunks, trailers    the last byte of them            IDLE, one more request in `ready`
    any       what is refused               -                                `fault`: nothing more is read

    refused by    what                                                                           answered
    httptools     line ends other than CR LF, folds, a blank before a colon, control bytes, no
                  token as a name, doubled or malformed lengths, a length beside a coding,
                  sizes and extensions of chunks that are none, unknown methods                  400
    finish_head   other versions than 1.1 and 1.0, targets other than a path, no or two Hosts,
                  codings in 1.0 or on two lines                                                 400
                  CONNECT; other codings than chunked; other expectations                        405, 501, 417
    this          a head, or trailers behind it, beyond bytes or count                           431
                  a body beyond its bytes, announced or sent                                     413
                  a body for which all connections together have no room                         503
                  chunk framing without end, trailers that pose as framing                       400
    nobody        blank lines before a request and two blanks in its line, which is written anew;
                  chunk extensions and trailers, which are dropped; an offered upgrade, which is
                  ignored; fields that differ from gslb's own by underscores, which are dropped

tests/system/smuggling_vectors.py has each row's cases.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Final

import httptools

from gslb.errors import ApiError
from gslb.wire.body_budget import BodyBudget
from gslb.wire.http1 import RequestHead, finish_head
from gslb.wire.paths import ROUTES
from gslb.wire.websocket import is_offer

IDLE, IN_HEAD, IN_BODY = range(3)

_LENGTH = re.compile(rb"\r\ncontent-length: ?([0-9]{1,18})\r\n", re.IGNORECASE)
_NO_TRAILERS = frozenset(
    (b"connection", b"proxy-connection", b"content-length", b"transfer-encoding", b"upgrade", b"host")
)
_MAX_LESSONS: Final = 8
"""A client whose heads never repeat is not looked at again for repetition."""


class RequestReader:
    """Feed it bytes; take whole requests from `ready`. After `fault` is set nothing more is read.

    `stage` tells what the connection waits for; `wants_continue` that a client awaits `100 Continue`. Bodies are
    held of `budget`: whoever takes a request from `ready` lets its body go there, `close` what is left here.
    Behind a WebSocket handshake nothing is HTTP any more: what comes is kept in `behind`.
    """

    __slots__ = (
        "_body", "_body_bytes", "_body_limit_bytes", "_budget", "_count_limit", "_fields", "_form_limit_bytes",
        "_head_bytes", "_head_limit_bytes", "_is_resuming", "_is_upgrading", "_known", "_lessons", "_parser",
        "_unfinished_bytes", "behind", "fault", "head", "ready", "stage", "wants_continue",
    )  # fmt: skip

    def __init__(
        self,
        head_limit_bytes: int,
        count_limit: int,
        body_limit_bytes: int,
        form_limit_bytes: int | None = None,
        budget: BodyBudget | None = None,
    ) -> None:
        """`form_limit_bytes` bounds bodies of paths that take multipart forms (None: as others)."""
        self._head_limit_bytes = head_limit_bytes
        self._count_limit = count_limit
        self._body_limit_bytes = body_limit_bytes
        self._form_limit_bytes = body_limit_bytes if form_limit_bytes is None else form_limit_bytes
        self._budget = budget or BodyBudget()
        self._parser = httptools.HttpRequestParser(self)
        self.ready: deque[tuple[RequestHead, bytes]] = deque()
        self.fault: ApiError | None = None
        self.stage = IDLE
        self.wants_continue = False
        self.behind: bytearray | None = None
        self._known: tuple[bytes, bytes, RequestHead] | None = None
        self._lessons = 0
        # the request being received
        self.head: RequestHead | None = None
        self._fields = 0
        self._head_bytes = 0
        self._unfinished_bytes = 0
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._is_upgrading = self._is_resuming = False

    def feed(self, data: bytes) -> None:
        """Take in bytes as they came, cut anywhere."""
        if self.fault is not None:
            return
        if self.behind is not None:
            self.behind += data
        elif self.stage != IDLE:
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
        if end < 0 or not data.startswith(before) or not data.startswith(after, end):
            return False
        digits = data[at:end]
        if not digits.isdigit():
            return False
        body_at = end + len(after)
        length = int(digits)
        if length != len(data) - body_at or length > self._limit_bytes(head) or not self._budget.try_hold(length):
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
        while data and self.fault is None:
            # Target, fields and body reset this: httptools buffers an unfinished field, and skips chunk
            # extensions, without telling.
            self._unfinished_bytes += len(data)
            try:
                self._parser.feed_data(data)
                break
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                if self._takes_handshake(data):
                    break
                self._ignore_upgrade()
            except httptools.HttpParserError:
                self._refuse(ApiError("bad_request", "the request is not well-formed HTTP/1.1", is_framing=True))
        if self.stage == IN_HEAD and self._head_bytes + self._unfinished_bytes > self._head_limit_bytes:
            self._refuse(_head_too_large())
        elif self.stage == IN_BODY and self._unfinished_bytes > self._head_limit_bytes:
            self._refuse(ApiError("bad_request", "the body is nearly all chunk framing", is_framing=True))

    def _refuse(self, fault: ApiError) -> None:
        if self.fault is None:
            self.fault = fault
            self._drop_body()

    def _drop_body(self) -> None:
        self._body = []
        self._budget.let_go(self._body_bytes)
        self._body_bytes = 0

    def close(self) -> None:
        """The connection is gone: let go what was received and will not be asked for."""
        self._drop_body()
        while self.ready:
            self._budget.let_go(len(self.ready.popleft()[1]))

    def _limit_bytes(self, head: RequestHead) -> int:
        route = ROUTES.get(head.path)
        is_form = route is not None and route.kind == "multipart"
        return self._form_limit_bytes if is_form else self._body_limit_bytes

    def _takes_handshake(self, behind: bytes) -> bool:
        """True when a WebSocket is offered: the last request of this connection, whatever becomes of it."""
        head = self.head
        if head is None or self.fault is not None or not is_offer(head):
            return False
        head.is_handshake = True
        head.keep_alive = False
        self.behind = bytearray(behind)
        self.head = None
        self.stage = IDLE
        self.wants_continue = False
        self.ready.append((head, b""))
        return True

    def _ignore_upgrade(self) -> None:
        """Go on with the body of a request whose offered upgrade is ignored (RFC 9110 7.8): the parser stopped
        before it, believing another protocol follows (FC-03). A new parser takes it behind a head made up."""
        head = self.head
        if head is None or self.fault is not None:
            return
        framing = (
            b"Transfer-Encoding: chunked"
            if head.is_chunked
            else b"Content-Length: %d" % (head.content_length or 0)
        )
        self._is_upgrading = False
        self._is_resuming = True
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(b"POST / HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n" % framing)

    # --- httptools ----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        if self._is_resuming or self.fault is not None:
            return
        self.head = RequestHead()
        self.stage = IN_HEAD
        self._fields = self._head_bytes = self._unfinished_bytes = 0
        self._body = []
        self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        """A piece of the target."""
        if self.head is not None and self.stage == IN_HEAD:
            self.head.target += url
            self._head_bytes += len(url)
            self._unfinished_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """One field."""
        head = self.head
        if self.fault is not None or head is None or self._is_resuming:
            return
        if self.stage != IN_HEAD:
            # A trailer is dropped (RFC 9110 6.5.1): it must not pass for a field that was judged. httptools
            # does take those it knows for such.
            if name.lower() in _NO_TRAILERS:
                self._refuse(ApiError("bad_request", "a trailer poses as a framing field", is_framing=True))
        else:
            head.add_field(name, value)
        self._fields += 1
        self._head_bytes += len(name) + len(value) + 4
        self._unfinished_bytes = 0
        if self._head_bytes > self._head_limit_bytes:
            self._refuse(_head_too_large())
        elif self._fields > self._count_limit:
            self._refuse(ApiError("headers_too_large", "the request has too many fields", is_framing=True))

    def on_headers_complete(self) -> None:
        """The head is whole: judge it."""
        head = self.head
        if self._is_resuming:
            self._is_resuming = False
            return
        if head is None or self.fault is not None:
            return
        self.stage = IN_BODY
        head.method = self._parser.get_method()
        head.version = self._parser.get_http_version()
        self._is_upgrading = self._parser.should_upgrade()
        try:
            if self._head_bytes > self._head_limit_bytes:
                raise _head_too_large()
            finish_head(head)
            # httptools ends the connection for fields of its own choice too (Proxy-Connection: close).
            head.keep_alive = head.keep_alive and self._parser.should_keep_alive()
            if head.content_length is not None:
                if head.content_length > self._limit_bytes(head):
                    raise _body_too_large(self._limit_bytes(head))
                if not self._budget.has_room(head.content_length):
                    raise _no_room()
        except ApiError as error:
            self._refuse(error)
            return
        self.wants_continue = head.expects_continue

    def on_body(self, body: bytes) -> None:
        """A piece of the body, its chunk framing gone."""
        if self.fault is not None or self.head is None:
            return
        self._unfinished_bytes = 0
        limit_bytes = self._limit_bytes(self.head)
        if self._body_bytes + len(body) > limit_bytes:
            self._refuse(_body_too_large(limit_bytes))
        elif not self._budget.try_hold(len(body)):
            self._refuse(_no_room())
        else:
            self._body_bytes += len(body)
            self._body.append(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        head = self.head
        if head is None or self.fault is not None or self._is_upgrading:
            return
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self.head = None
        self._body = []
        self._body_bytes = 0  # who takes it from `ready` answers for it
        self.stage = IDLE
        if not head.keep_alive:
            self._known = None  # what follows is no request (RFC 9112 9.6): the parser refuses it
        self.wants_continue = False
        self.ready.append((head, body))


def _head_too_large() -> ApiError:
    return ApiError("headers_too_large", "the request head is larger than this edge takes", is_framing=True)


def _body_too_large(limit_bytes: int) -> ApiError:
    return ApiError("payload_too_large", f"the body is larger than {limit_bytes} bytes", is_framing=True)


def _no_room() -> ApiError:
    return ApiError(
        "saturated", "this edge holds all the request bodies it may; ask again", retry_after_s=1, is_framing=True
    )
