"""One client connection of the mock: HTTP/1.1 in, ordered and delayed bytes out."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, cast

import httptools

from gslb.mock.driver import DelayedWire
from gslb.mock.http1 import INVALID_REQUEST_BODY, head
from gslb.mock.realtime import Echo

if TYPE_CHECKING:
    from gslb.mock.exchange import Exchange
    from gslb.mock.vllm import MockVllm


class RequestRecord(NamedTuple):
    """One request as it came in: names as sent, values without the white space around them."""

    method: str
    target: str
    headers: list[tuple[bytes, bytes]]
    body: bytes
    connection_id: int
    http_version: str
    at_s: float

    def header(self, name: str) -> str | None:
        """The first value of header `name` in any case, or None."""
        wanted = name.lower().encode()
        return next((value.decode("latin-1") for key, value in self.headers if key.lower() == wanted), None)


class Connection(asyncio.Protocol):
    """Parses requests, answers them one after the other, keeps the far end's distance."""

    def __init__(self, server: MockVllm) -> None:
        self.server = server
        self.connection_id = 0
        self.peer = ""
        self.is_lost = False
        self.is_write_paused = False
        self.is_refused = False
        self.exchange: Exchange | None = None
        self.echo: Echo | None = None
        """Set once this connection is a WebSocket."""
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._wire = DelayedWire(self._loop)
        self._parser = httptools.HttpRequestParser(self)
        self._idle_timer: asyncio.TimerHandle | None = None
        self._pending: deque[RequestRecord] = deque()
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._peer_half_rtt_s = 0.0

    # The transport's calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not checked by isinstance: other loops' transports are not asyncio's subclasses.
        self._transport = cast(asyncio.Transport, transport)
        peername = transport.get_extra_info("peername")
        self.peer = str(peername[0]) if isinstance(peername, tuple) else ""
        self._peer_half_rtt_s = self.server.half_rtt_s(self.peer)
        self.server.connection_opened(self)

    def connection_lost(self, _exc: Exception | None) -> None:
        self.is_lost = True
        self._cancel_idle()
        self._wire.clear()
        self._pending.clear()
        self.server.connection_closed(self)
        if self.exchange is not None:
            exchange = self.exchange
            if exchange.half_rtt_s > 0:
                self._loop.call_later(exchange.half_rtt_s, exchange.abandon)
            else:
                exchange.abandon()

    def pause_writing(self) -> None:
        self.is_write_paused = True
        if self.echo is not None and self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self.is_write_paused = False
        if self.echo is not None and self._transport is not None:
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        self._cancel_idle()
        if self.is_refused:
            return
        if self.echo is not None:
            self._converse(self.echo, data)
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # An upgrade is ignored; what follows its head is not read as a body (as httptools has it).
            return
        except httptools.HttpParserError:
            self.refuse_invalid()

    def _converse(self, echo: Echo, data: bytes) -> None:
        answers = echo.feed(data)
        if self.exchange is None:
            return
        if answers:
            self.exchange.say(answers)
        if echo.is_closed:
            self.exchange.hang_up()
            self.exchange = None

    # The parser's calls.

    def on_message_begin(self) -> None:
        self._target = b""
        self._headers = []
        self._body = []

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        for name, value in self._headers:
            if name.lower() == b"expect" and value.lower() == b"100-continue":
                self.write(b"HTTP/1.1 100 Continue\r\n\r\n", self._peer_half_rtt_s)

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        record = RequestRecord(
            self._parser.get_method().decode("ascii"),
            self._target.decode("latin-1"),
            self._headers,
            b"".join(self._body),
            self.connection_id,
            self._parser.get_http_version(),
            self._loop.time(),
        )
        self._pending.append(record)
        self._begin_next()

    # What an exchange uses.

    def write(self, data: bytes, delay_s: float) -> None:
        """Send `data` so that it leaves in `delay_s` seconds, after everything sent before."""
        if self.is_lost or self.server.is_silenced:
            return
        if delay_s <= 0 and self._wire.is_empty:
            self._write_now(data)
        else:
            self._wire.put(delay_s, lambda: self._write_now(data))

    def close(self, delay_s: float = 0.0) -> None:
        """End with a FIN once everything sent has left."""
        self._wire.put(delay_s, self._close_now)

    def reset(self, delay_s: float = 0.0) -> None:
        """End with a RST, after what was sent before."""
        self._wire.put(delay_s, self.reset_now)

    def cut(self, is_reset: bool) -> None:
        """The server goes: end at once, and whatever was being answered with it."""
        if self.exchange is not None:
            self.exchange.drop()
        if is_reset:
            self.reset_now()
        else:
            self.close()

    def reset_now(self) -> None:
        """End with a RST at once; what has not left is lost."""
        if self._transport is None or self.is_lost:
            return
        raw = self._transport.get_extra_info("socket")
        if raw is not None:
            # Zero linger makes the kernel send RST on close. It belongs to the open socket, so a duplicate
            # descriptor can set it, which works with every loop's transports.
            with socket.socket(fileno=os.dup(raw.fileno())) as twin:
                twin.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def exchange_done(self, is_closing: bool, delay_s: float) -> None:
        """The current exchange has sent everything; go on with the next, or wait for one, or close."""
        if self.server.is_silenced:
            return
        self.exchange = None
        if is_closing or self.server.is_closing_idle:
            self.close(delay_s)
        elif self._pending:
            self._begin_next()
        else:
            self._idle_timer = self._loop.call_later(self.server.settings.keep_alive_s, self.close, delay_s)

    def refuse_invalid(self) -> None:
        """Answer what is no HTTP, and close."""
        self.is_refused = True
        headers = ((b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close"))
        self.write(head(400, headers, self.server.unix_s()) + INVALID_REQUEST_BODY, self._peer_half_rtt_s)
        self.close(self._peer_half_rtt_s)

    def _begin_next(self) -> None:
        if self.exchange is not None or not self._pending or self.is_lost:
            return
        self.exchange = exchange = self.server.make_exchange(self, self._pending.popleft())
        if exchange.half_rtt_s > 0:
            self._loop.call_later(exchange.half_rtt_s, exchange.begin)
        else:
            exchange.begin()

    def _write_now(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _close_now(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _cancel_idle(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
