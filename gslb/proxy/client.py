"""One client connection: parses requests and hands whole ones to exchanges.

One request at a time is answered; pipelined ones wait parsed. The connection's one deadline serves whatever
it is doing: receiving a head, receiving a body, waiting for an answer, idling, lingering.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from gslb.config.settings import Settings
from gslb.errors import ApiError, error_body, retry_after_text
from gslb.geo.addresses import parse_address
from gslb.geo.proxy_protocol import ProxyProtocolError, parse_proxy_header
from gslb.proxy.deadlines import NEVER_S
from gslb.proxy.exchange import Exchange
from gslb.proxy.unsent import has_unsent
from gslb.types import UNKNOWN_PLACE, Place
from gslb.wire.http1 import CONTINUE, Field, RequestHead, good_request_id, local_answer
from gslb.wire.paths import dialect_of
from gslb.wire.request_reader import IDLE, IN_BODY, IN_HEAD, RequestReader

if TYPE_CHECKING:
    from gslb.proxy.listener import Listener

_WRITE_HIGH_BYTES: Final = 64 * 1024
_MAX_PIPELINED: Final = 8
_LINGER_S: Final = 1.0
_UNSENT_LOOK_S: Final = 0.1
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class ClientConnection:
    """One client connection (watched by the deadline ring).

    An asyncio.Protocol by its methods. It does not inherit from one: loops ask for the methods only, and compiled
    it is then a plain struct.
    """

    __slots__ = (
        "_close_by_s", "_counted_as", "_exchange", "_generation", "_is_closing", "_is_pumping", "_is_write_paused",
        "_listener", "_peer", "_proxy_head", "_reader", "_seen_from", "_stage", "_transport", "address",
        "deadline_s", "forwarded_for", "next_look_s", "now_s", "place", "proto",
    )  # fmt: skip

    def __init__(self, listener: Listener) -> None:
        limits = listener.generation.limits
        # as long as the connection
        self._listener = listener
        self.now_s = listener.door.loop.time
        self._generation = listener.generation
        self._transport: asyncio.Transport | None = None
        self._reader = RequestReader(
            limits.head_bytes, limits.header_count, limits.body_bytes, limits.multipart_bytes,
            listener.door.body_budget,
        )  # fmt: skip
        self._peer = ""
        self._counted_as: int | None = None
        self._proxy_head: bytes | None = b"" if listener.generation.settings.config.geo.proxy_protocol else None
        self._is_closing = self._is_pumping = self._is_write_paused = False
        self._stage = IN_HEAD  # a fresh connection owes a head
        self._exchange: Exchange | None = None
        self.proto = b"http"
        self._close_by_s = 0.0
        self.deadline_s = self.next_look_s = NEVER_S
        # where the client is, by what the last request's forwarding fields said
        self._seen_from: tuple[RequestHead, Settings] | None = None
        self.address = ""
        self.forwarded_for = b""
        self.place: Place = UNKNOWN_PLACE

    def become_secure(self, source: str) -> None:
        """This connection is TLS. Its PROXY header, if any, came before the handshake and named `source`."""
        self.proto = b"https"
        self._peer = source
        self._proxy_head = None

    @property
    def is_fresh(self) -> bool:
        """Nothing has been asked on this connection yet."""
        return self._seen_from is None and not self._is_closing

    @property
    def is_receiving(self) -> bool:
        """A request is on its way in, or waits for the one before it."""
        return bool(self._reader.ready) or (self._reader.stage != IDLE and not self._is_closing)

    @property
    def has_unsent(self) -> bool:
        """What was written has not all left this process."""
        return self._transport is not None and bool(self._transport.get_write_buffer_size())

    # --- asyncio.Protocol ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        listener = self._listener
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._peer = self._peer or (str(peer[0]) if isinstance(peer, tuple) else "")
        if listener.door.connections.open_ticket(0, self._generation.limits.connections) is None:
            listener.door.counters.refused_connections["connections"] += 1
            self._transport.abort()
            return
        if not self._is_within_its_share():
            listener.door.connections.add(-1, 0)
            self._transport.abort()
            return
        listener.connections.add(self)
        listener.door.counters.open_connections += 1
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)
        self.arm(self.now_s() + self._generation.timeouts.request_head)

    def _is_within_its_share(self) -> bool:
        """Count this connection for its client's address; False when that has as many as it may."""
        generation = self._generation
        address = parse_address(self._peer.partition("%")[0])
        if address is None or generation.settings.trusted_proxies.trusts(self._peer):
            return True  # a trusted proxy stands for any number of clients
        door = self._listener.door
        most = generation.limits.connections_per_address
        share = None if most is None else -(-most // door.processes)
        self._counted_as = door.addresses.try_open(address, share)
        if self._counted_as is None:
            door.counters.refused_connections["connections_per_address"] += 1
        return self._counted_as is not None

    def connection_lost(self, exc: Exception | None) -> None:
        listener = self._listener
        if self._counted_as is not None:
            listener.door.addresses.close(self._counted_as)
            self._counted_as = None
        if self in listener.connections:
            listener.connections.discard(self)
            listener.door.connections.add(-1, 0)
            listener.door.counters.open_connections -= 1
        self._is_closing = True
        self.deadline_s = NEVER_S
        reader = self._reader
        if self._exchange is None and reader.head is not None and reader.stage == IN_BODY and reader.fault is None:
            self._begin(reader.head)  # it left while it was sending a request: that is one record too (FC-12)
        if self._exchange is not None:
            self._exchange.on_client_gone()
        reader.close()

    def eof_received(self) -> bool:
        """The client sends no more: with an answer pending it has left, unless half-close is allowed."""
        is_secure = self.proto == b"https"  # where uvloop cannot close one side alone
        if self._exchange is not None and self._generation.limits.allow_half_close and not is_secure:
            return True
        if self._exchange is not None:
            self._exchange.on_client_gone()
        if is_secure and self._transport is not None and not self._is_closing:
            self._is_closing = True
            self._close_when_written(self._transport)
        return False

    def pause_writing(self) -> None:
        self._is_write_paused = True
        if self._exchange is not None:
            self._exchange.pause()

    def resume_writing(self) -> None:
        self._is_write_paused = False
        if self._exchange is not None:
            self._exchange.resume()
        else:
            self._pump()

    def data_received(self, data: bytes) -> None:
        if self._is_closing:
            return  # lingering: what still comes is read, so that the answer is not reset away
        if self._proxy_head is not None:
            data = self._read_proxy_head(data)
            if not data:
                return
        self._reader.feed(data)
        if self._exchange is None:
            self._pump()
        reader = self._reader
        is_early = reader.behind is not None and len(reader.behind) > _WRITE_HIGH_BYTES
        if (len(reader.ready) > _MAX_PIPELINED or is_early) and self._transport is not None:
            self._transport.pause_reading()

    def _read_proxy_head(self, data: bytes) -> bytes:
        """Take the PROXY protocol's head off the first bytes; returns what follows it."""
        assert self._proxy_head is not None
        self._proxy_head += data
        try:
            header = parse_proxy_header(self._proxy_head)
        except ProxyProtocolError:
            self.abort()
            return b""
        if header is None:
            return b""
        rest = self._proxy_head[header.length_bytes :]
        self._proxy_head = None
        if header.source is not None and self._generation.settings.trusted_proxies.trusts(self._peer):
            self._peer = header.source
            if not self._is_within_its_share():
                self.abort()
                return b""
        return rest

    # --- requests, one at a time --------------------------------------------------------------------

    def _pump(self) -> None:
        """Start the next waiting request; with none waiting, mind the clock of what is being received."""
        if self._is_pumping or self._is_write_paused:
            return  # while the last answer is not out, another one would only fill memory
        reader = self._reader
        if reader.ready:
            self._is_pumping = True
            while reader.ready and self._exchange is None and not (self._is_closing or self._is_write_paused):
                head, body = reader.ready.popleft()
                self._begin(head).start(body)
            self._is_pumping = False
            if self._exchange is not None:
                return
        transport = self._transport
        if self._exchange is not None or self._is_closing or self._is_write_paused or transport is None:
            return
        if reader.fault is not None:
            self._refuse(reader.fault)
            return
        if not transport.is_reading():
            transport.resume_reading()
        if reader.wants_continue:
            reader.wants_continue = False
            self.write(CONTINUE)
        if reader.stage != self._stage:
            self._stage = reader.stage
            timeouts = self._generation.timeouts
            limit_s = (timeouts.client_idle, timeouts.request_head, timeouts.request_body)[reader.stage]
            self.arm(self.now_s() + limit_s)

    def _begin(self, head: RequestHead) -> Exchange:
        """Open an exchange; it keeps the generation it starts under, the next may see a newer one."""
        self._generation = self._listener.generation
        self._stage = -1  # whatever is received next starts a clock of its own
        self._identify(head)
        self._listener.door.counters.open_exchanges += 1
        self._exchange = Exchange(self, self._generation, head, self.now_s())
        return self._exchange

    def exchange_done(self, keep_alive: bool) -> None:
        """The exchange has ended; go on, or close once what was written is out."""
        self._listener.door.counters.open_exchanges -= 1
        self._exchange = None
        if self._is_closing:
            return
        if not keep_alive:
            self._close()
            return
        if self._is_write_paused:
            self.arm(self.now_s() + self._generation.timeouts.client_write)
        self._pump()

    def keeps_alive(self, head: RequestHead) -> bool:
        """Whether this connection may serve another request after `head`'s."""
        return head.keep_alive and not self._listener.door.is_stopping

    def request_id(self, head: RequestHead) -> bytes:
        """The client's good X-Request-Id, or a new one."""
        return good_request_id(head.own.get(b"x-request-id")) or self._listener.request_ids.next_id()

    def _identify(self, head: RequestHead) -> None:
        """Find out who and where the client is; a head that repeats is looked up once."""
        settings = self._generation.settings
        if self._seen_from is not None and self._seen_from[0] is head and self._seen_from[1] is settings:
            return
        self._seen_from = (head, settings)
        lines = head.own.get(b"x-forwarded-for")
        others = head.own.get(b"forwarded")
        client = settings.trusted_proxies.client_address(self._peer, lines or (), others or ())
        self.address = client.address
        self.forwarded_for = client.forwarded_for.encode("latin-1", "replace")
        self.place = settings.locator.locate(client.address)

    def _refuse(self, fault: ApiError) -> None:
        """Answer a request that could not be parsed, then close: its framing cannot be trusted."""
        head = self._reader.head or RequestHead()
        head.path = head.path or head.target.partition(b"?")[0]
        head.keep_alive = False
        self._reader.fault = fault
        self._begin(head).fail(fault, "refused")

    # --- what exchanges use -------------------------------------------------------------------------

    def arm(self, deadline_s: float) -> None:
        """Set the connection's one deadline."""
        self.deadline_s = deadline_s
        if deadline_s < self.next_look_s:
            self._listener.door.deadlines.arm(self, deadline_s)

    def write(self, data: bytes) -> None:
        """Write to the client."""
        if self._transport is not None and not self._is_closing:
            self._transport.write(data)

    def writer(self) -> Callable[[bytes], None]:
        """The shortest way to write, for as long as the running exchange is not done."""
        return self.write if self._transport is None else self._transport.write

    def lend(self) -> tuple[asyncio.Transport, bytes]:
        """Give the transport to a tunnel, with what the client has sent behind its handshake."""
        behind = bytes(self._reader.behind or b"")
        self._reader.behind = bytearray()
        return cast(asyncio.Transport, self._transport), behind

    def error_body(self, error: ApiError, head: RequestHead, fields: list[Field]) -> bytes:
        """The body of `error` in the path's dialect; adds Retry-After where the error knows one."""
        if error.retry_after_s is not None:
            fields.append((b"Retry-After", retry_after_text(error.retry_after_s)))
        return error_body(error, dialect_of(head.path))

    def answer(self, status: int, body: bytes, fields: list[Field], head: RequestHead) -> None:
        """Write a whole answer of gslb's own."""
        self.write(
            local_answer(
                status, body, fields,
                date=self._listener.date(), close=not self.keeps_alive(head), sends_body=head.method != b"HEAD",
            )
        )  # fmt: skip

    def close_unclean(self) -> None:
        """Close so that the answer cannot pass for complete.

        A missing last chunk or a short length tells HTTP/1.1 clients; where only the close ends the body
        the connection is reset after what was written.
        """
        if self._transport is None or self._is_closing:
            return
        exchange = self._exchange
        if exchange is not None and (exchange.head.is_http10 or exchange.status == 101):
            sock = self._transport.get_extra_info("socket")
            if sock is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            if self.proto == b"https":  # closing would send close_notify: a whole answer's end
                self._is_closing = True
                self._abort_when_sent(0.0)
                return
        self._is_closing = True
        self._close_when_written(self._transport)

    def abort(self) -> None:
        """Drop the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    # --- ends ---------------------------------------------------------------------------------------

    def stop_now(self) -> None:
        """The grace is over: end what is running, then close."""
        if self._exchange is not None:
            self._exchange.stop()
        self._close()

    def stop_when_idle(self) -> None:
        """Shutting down: close now if nothing is asked, else after the answer (keeps_alive says so)."""
        if self._exchange is None and not self._reader.ready and self._reader.stage == IDLE:
            self._close()

    def _close(self) -> None:
        """Close, reading on for a moment so that the answer is not lost to a reset (RFC 9112 9.6)."""
        transport = self._transport
        if transport is None or self._is_closing:
            return
        self._is_closing = True
        if self._reader.fault is not None and transport.can_write_eof():
            transport.write_eof()
            self.arm(self.now_s() + _LINGER_S)
        else:
            self._close_when_written(transport)

    def _close_when_written(self, transport: asyncio.Transport) -> None:
        transport.close()
        if self.proto == b"https":
            # It waits for the client's close_notify, reading on, and that may never come (RFC 9112 9.8).
            self._abort_when_sent(_LINGER_S)
        else:
            self.arm(self.now_s() + self._generation.timeouts.client_write)  # it may never take what is left

    def _abort_when_sent(self, linger_s: float) -> None:
        """Abort in `linger_s` or once all that was written is out, within the limit for writes."""
        now_s = self.now_s()
        self._close_by_s = now_s + self._generation.timeouts.client_write
        self.arm(now_s + linger_s)

    def on_deadline(self, now_s: float) -> None:
        """The connection's deadline has passed."""
        if self._exchange is not None:
            self._exchange.on_deadline(now_s)
        elif now_s < self._close_by_s and self._transport is not None and has_unsent(self._transport):
            self.arm(now_s + _UNSENT_LOOK_S)
        elif self._is_closing or self._is_write_paused:
            self.abort()
        elif self._reader.stage != IDLE:
            self._refuse(ApiError("request_timeout", "the request did not arrive in time", is_framing=True))
        else:
            self._close()
