"""One connection to an endpoint: parses answers and hands them to whoever asked.

It never decides anything. A connection that has shown stray bytes, a parse error or an early answer is not
used again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, cast

import httptools

from gslb.wire.chunks import chunks_payload, whole_chunks_bytes
from gslb.wire.http1 import ResponseHead, finish_response_head, is_interim

if TYPE_CHECKING:
    from gslb.proxy.pool import EndpointPool
    from gslb.proxy.relay import Relay

_WRITE_HIGH_BYTES: Final = 256 * 1024
_MAX_HEAD_BYTES: Final = 64 * 1024
"""An answer whose head is still not whole after this many bytes has none (httptools buffers without limit)."""
_MAX_BARE_BYTES: Final = 1024 * 1024
"""Of one answer's body, in segments that bring no payload: chunk sizes cut off from their data are a few bytes
each, but a trailer or a chunk extension may have no end."""


class Asker(Protocol):
    """Who waits for an answer. Every answer ends in exactly one of complete, lost or garbled."""

    def on_head(self, head: ResponseHead) -> None:
        """The head is there."""

    def on_payload(self, payload: bytes, is_complete: bool) -> None:
        """Body bytes without framing (may be empty when only the end arrived)."""

    def on_switch(self, head: ResponseHead, behind: bytes) -> bool:
        """The endpoint answers with another protocol (the head is not finished yet), `behind` being its first
        bytes. True when the asker takes the connection for it; else the answer is garbled."""

    def on_lost(self, error: Exception | None) -> None:
        """The connection ended before the answer did."""

    def on_garbled(self, what: str) -> None:
        """What came is no HTTP answer."""


class UpstreamConnection:
    """One pooled connection (an asyncio.Protocol by its methods, as `ClientConnection` is)."""

    __slots__ = (
        "_bodies", "_has_said_end", "_head", "_head_bytes", "_head_is_new", "_head_is_whole",
        "_is_between_chunks", "_is_complete", "_is_dirty", "_is_in_body", "_keeps_alive", "_parser", "_relay",
        "_sink", "asker", "has_answered", "idle_until_s", "is_lost", "pool", "requests", "transport",
    )  # fmt: skip

    def __init__(self, pool: EndpointPool) -> None:
        # as long as the connection
        self.pool = pool
        self.transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self.requests = 0
        self.idle_until_s = 0.0
        self.is_lost = False
        self._is_dirty = False
        self._has_said_end = False
        # as long as one answer
        self.asker: Asker | None = None
        self.has_answered = False
        self._head: ResponseHead | None = None
        self._head_bytes = 0
        self._head_is_new = False
        self._head_is_whole = False
        self._is_in_body = False
        """The head is handed on and the end is not there: what comes is more of the body, or a fault."""
        self._is_between_chunks = False
        """The parser stands before a chunk's head."""
        self._bodies: list[bytes] = []
        self._is_complete = False
        self._keeps_alive = False
        self._sink: Callable[[bytes, bool], None] = _to_nobody
        self._relay: Relay | None = None

    @property
    def is_reused(self) -> bool:
        """True when an earlier request went over this connection: it may have died unseen."""
        return self.requests > 1

    def send(self, asker: Asker, request: bytes, body: bytes) -> None:
        """Write one request; its answer goes to `asker`."""
        self.asker = asker
        self._sink = asker.on_payload
        self._relay = None
        self.requests += 1
        self.has_answered = False
        self._head = None
        self._head_bytes = 0
        self._head_is_whole = False
        self._is_complete = self._is_between_chunks = False
        transport = cast(asyncio.Transport, self.transport)
        if len(body) > 16 * 1024:
            transport.write(request)
            transport.write(body)
        else:
            transport.write(request + body)

    def pass_on(self, relay: Relay) -> None:
        """From now on the body goes to `relay` instead of the asker's `on_payload`: one step less per token. To a
        client that gets chunks too, those that come whole, one at a time, go as they are."""
        self._sink = relay.write
        self._relay = relay if relay.is_chunked else None

    def lend(self) -> asyncio.Transport:
        """Give the transport away: this connection carries no HTTP any more."""
        self.asker = None
        self._sink = _to_nobody
        return cast(asyncio.Transport, self.transport)

    def abort(self) -> None:
        """Drop the connection at once: that is how vLLM learns to free the GPU."""
        self.asker = None
        self._sink = _to_nobody
        self._relay = None
        self._is_in_body = False
        self.is_lost = True
        if self.transport is not None:
            self.transport.abort()

    def pause_reading(self) -> None:
        """The reader behind is slow: let TCP hold the engine back."""
        if self.transport is not None and not self.is_lost:
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        if self.transport is not None and not self.is_lost:
            self.transport.resume_reading()

    # --- asyncio.Protocol ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)

    def data_received(self, data: bytes) -> None:
        if self._is_between_chunks and self._is_in_body and (size := whole_chunks_bytes(data)):
            # One token or a few, the commonest case: the parser stands where it stood.
            relay = self._relay
            if relay is None:
                self._sink(chunks_payload(data), False)
            else:
                relay.write_chunks(data, size)
            return
        fault: str | None = None
        if self._head is None and self._recognised(data):
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._head_is_new and self.asker is not None and self._head is not None:
                self.has_answered = True
                if self.asker.on_switch(self._head, data[upgrade.args[0] :]):
                    return
            fault = "an upgrade nobody asked for"
        except httptools.HttpParserError as error:
            fault = f"no HTTP answer ({type(error).__name__})"
        if not data.endswith(b"\n"):
            self._is_between_chunks = False  # what is behind the last chunk is a part of the next one's size
        if self._is_in_body and fault is None:
            bodies = self._bodies
            if bodies:  # more of a body
                self._sink(bodies.pop() if len(bodies) == 1 else self._joined(), False)
                return
            self._head_bytes += len(data)
            if self._head_bytes <= _MAX_BARE_BYTES:
                return
            fault = "framing without end"
        self._look(data, fault)

    def _recognised(self, data: bytes) -> bool:
        """Take a whole answer whose head is the one this endpoint always sends: the parser need not see it."""
        asker = self.asker
        if asker is None or (found := self.pool.known_answer.match(data)) is None:
            return False
        head, body = found
        self._head = head
        self.has_answered = self._head_is_whole = self._is_complete = self._keeps_alive = True
        asker.on_head(head)
        if self.asker is asker:
            self._finish()
            asker.on_payload(body, True)
        return True

    def _joined(self) -> bytes:
        joined = b"".join(self._bodies)
        self._bodies.clear()
        return joined

    def _look(self, data: bytes, fault: str | None) -> None:
        """What came is not just more of a body."""
        asker = self.asker
        if asker is None:
            self.abort()  # nobody asked: these bytes must never become the next request's answer
            return
        self.has_answered = True
        if not self._head_is_whole:
            self._head_bytes += len(data)
            if self._head_bytes > _MAX_HEAD_BYTES:
                fault = fault or "a head without end"
        head = self._head
        is_first = self._head_is_new
        self._deliver(asker, fault)
        is_kept = self._is_complete and self._keeps_alive and not self._is_dirty
        if is_first and is_kept and head is not None and head.may_reuse and not self._head_bytes:
            self.pool.known_answer.learn(data, head)

    def _deliver(self, asker: Asker, fault: str | None) -> None:
        """Hand on what the parser found; `fault` is what it stumbled over behind that."""
        head = self._head
        if self._head_is_new and head is not None:
            self._head_is_new = False
            doubt = finish_response_head(head)
            if doubt is not None:
                fault = fault or doubt  # where such a body ends nobody knows: nothing of it is used
                self._bodies.clear()
                self._is_complete = False
            elif fault is None or self._bodies or self._is_complete:
                asker.on_head(head)
                if self.asker is not asker:
                    self._bodies.clear()  # the head alone made the asker leave
                    return
        if self._bodies or self._is_complete:
            payload = self._joined()
            is_complete = self._is_complete
            sink = self._sink
            if is_complete:
                self._is_dirty = self._is_dirty or fault is not None  # a fault behind a whole answer
                self._finish()
            sink(payload, is_complete)
        if fault is not None and self.asker is asker:
            self.abort()
            asker.on_garbled(fault)
        self._is_in_body = self._head_is_whole and self.asker is asker and not self._is_complete

    def _finish(self) -> None:
        """The answer is whole: back to the pool, if everything about it was clean."""
        self.asker = None
        self._sink = _to_nobody
        transport = cast(asyncio.Transport, self.transport)
        head = self._head
        may_reuse = self._keeps_alive and not self._is_dirty and (head is None or head.may_reuse)
        if may_reuse and not transport.get_write_buffer_size():
            self.pool.give_back(self, None if head is None else head.keep_alive_s)
        else:
            self.is_lost = True
            transport.abort()

    def pause_writing(self) -> None:
        """The endpoint takes no more for now: what is written waits in the transport, and is bounded."""

    def resume_writing(self) -> None:
        """It takes more again."""

    def eof_received(self) -> None:
        """The endpoint will send no more (over TLS: it has said so); the transport closes itself."""
        self._has_said_end = True
        if self.asker is None:
            self.is_lost = True  # it may still wait in the pool

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self.pool.forget(self)
        asker, self.asker = self.asker, None
        if asker is None:
            return
        head = self._head
        is_end = exc is None and self._has_said_end  # TCP's end alone ends nothing over TLS (RFC 9112 9.8)
        if is_end and head is not None and head.ends_at_close and not self._is_complete:
            self._sink(b"", True)
        else:
            asker.on_lost(exc)

    # --- httptools ----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._head_is_whole:
            self._is_dirty = True  # bytes after the answer
            return
        self._head = ResponseHead()

    def on_status(self, status: bytes) -> None:
        if not self._head_is_whole and self._head is not None:
            self._head.reason += status

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._head_is_whole and self._head is not None:  # trailers are dropped (RFC 9110 6.5.1)
            self._head.fields.append((name, value))

    def on_headers_complete(self) -> None:
        head = self._head
        if self._head_is_whole or head is None:
            return
        head.status = self._parser.get_status_code()
        head.version = self._parser.get_http_version()
        self._head_is_new = self._head_is_whole = head.status >= 200 or not is_interim(head)

    def on_body(self, body: bytes) -> None:
        if not self._is_complete:
            self._bodies.append(body)

    def on_chunk_header(self) -> None:
        self._is_between_chunks = False

    def on_chunk_complete(self) -> None:
        self._is_between_chunks = True

    def on_message_complete(self) -> None:
        head = self._head
        if head is not None and head.status >= 200 and not self._is_complete:
            self._is_complete = True
            # Asked at the very end: httptools lets a trailer count, and would refuse the next answer.
            self._keeps_alive = self._parser.should_keep_alive()
            self._is_in_body = False


def _to_nobody(_payload: bytes, _is_complete: bool) -> None:
    """Where a body goes that nobody waits for."""
