"""The TLS listener: accepts connections, shakes hands within a limit, then hands them to the proxy.

It accepts by itself rather than through `create_server(ssl=...)`, because that one
- gives every connection the context it was made with: here each new handshake takes the one in force, so that a
  renewed certificate needs no new listener, and open connections keep what they began with;
- knows nothing of handshakes under way: here they count as connections;
- expects TLS from the first byte, where a PROXY header may come before it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from functools import partial
from typing import Any

from gslb.geo.proxy_protocol import V2_MOST_BYTES, ProxyHeader, ProxyProtocolError, parse_proxy_header
from gslb.proxy.handover import HANDSHAKE_S, accept_all, refuse_handshakes
from gslb.proxy.listener import Listener

_log = logging.getLogger("gslb")

_BACKLOG = 4096
_ACCEPTS_AT_ONCE = 64
"""So that a flood of connections does not keep the streams waiting."""
_PAUSE_S = 1.0
"""Without a free file descriptor there is nothing to do but wait for one."""


class TlsServer:
    """Listens once started, until closed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, listener: Listener) -> None:
        self._loop = loop
        self._listener = listener
        self._handshakes: set[asyncio.Task[None]] = set()
        self.sockets: list[socket.socket] = []

    async def start(self, host: str, port: int) -> None:
        """Listen on every address that `host` stands for. Raises OSError naming one that cannot be had."""
        flags = socket.AI_PASSIVE
        found = await self._loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=flags)
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                sock = socket.socket(family, socket.SOCK_STREAM)
                self.sockets.append(sock)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.setblocking(False)
                try:
                    sock.bind(address)
                except OSError as error:
                    raise OSError(error.errno, error.strerror, f"{host}:{port}") from None
                sock.listen(_BACKLOG)
        except OSError:
            self.close()
            raise
        self._watch()

    def close(self) -> None:
        """Accept no more, and give up handshakes under way: they have asked for nothing yet."""
        for sock in self.sockets:
            self._loop.remove_reader(sock)
            sock.close()
        self.sockets.clear()
        for handshake in list(self._handshakes):
            handshake.cancel()

    async def close_for_others(self) -> None:
        """Stop listening on a port where others do: every connection that came its way is taken, its handshake
        goes on."""
        for sock in self.sockets:
            refuse_handshakes(sock)
        await asyncio.sleep(HANDSHAKE_S)
        for sock in self.sockets:
            self._loop.remove_reader(sock)
            for connection in accept_all(sock):
                self._shake_hands(connection)
            sock.close()
        self.sockets.clear()
        if self._handshakes:
            await asyncio.wait(self._handshakes)

    @property
    def handshakes(self) -> int:
        """Handshakes under way."""
        return len(self._handshakes)

    def _watch(self) -> None:
        for sock in self.sockets:
            self._loop.add_reader(sock, self._accept, sock)

    def _accept(self, listening: socket.socket) -> None:
        listener = self._listener
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                sock, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.error("no connection can be accepted for %g s: %s", _PAUSE_S, error.strerror)
                for each in self.sockets:
                    self._loop.remove_reader(each)
                self._loop.call_later(_PAUSE_S, self._watch)
                return
            if (
                len(self._handshakes) + listener.door.connections.requests
                >= listener.generation.limits.connections
            ):
                listener.door.counters.refused_connections["connections"] += 1
                sock.close()
                continue
            sock.setblocking(False)
            self._shake_hands(sock)

    def _shake_hands(self, sock: socket.socket) -> None:
        handshake = self._loop.create_task(self._welcome(sock))
        self._handshakes.add(handshake)
        handshake.add_done_callback(self._handshakes.discard)

    async def _welcome(self, sock: socket.socket) -> None:
        """One connection up to the end of its handshake, with the configuration that is in force now."""
        generation = self._listener.generation
        timeouts = generation.timeouts
        tls = generation.settings.server_tls
        assert tls is not None
        try:
            async with asyncio.timeout(timeouts.tls_handshake):
                source = ""
                if generation.settings.config.geo.proxy_protocol:
                    header = await self._take_proxy_header(sock)
                    peer = str(sock.getpeername()[0])
                    if header.source is not None and generation.settings.trusted_proxies.trusts(peer):
                        source = header.source
                protocol: Any = partial(self._listener.secure, source)  # one by its methods
                await self._loop.connect_accepted_socket(
                    protocol, sock, ssl=tls.context,
                    ssl_handshake_timeout=timeouts.tls_handshake, ssl_shutdown_timeout=timeouts.client_write,
                )  # fmt: skip
        except (OSError, TimeoutError, ProxyProtocolError):
            # A scanner, a client that trusts nobody here, plain HTTP: closed and counted, not worth a line.
            generation.door.counters.tls_handshake_failures += 1
            sock.close()
        except asyncio.CancelledError:
            sock.close()
            raise

    async def _take_proxy_header(self, sock: socket.socket) -> ProxyHeader:
        """Read the PROXY header and not a byte more: what follows is for the handshake.

        Raises ProxyProtocolError for other bytes and OSError when the connection ends.
        """
        head = b""
        while True:
            await self._readable(sock)
            try:
                coming = sock.recv(V2_MOST_BYTES, socket.MSG_PEEK)
            except (BlockingIOError, InterruptedError):
                continue
            if not coming:
                raise ConnectionResetError
            header = parse_proxy_header(head + coming)
            sock.recv(len(coming) if header is None else header.length_bytes - len(head))
            if header is not None:
                return header
            head += coming

    async def _readable(self, sock: socket.socket) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(sock, _set, ready)
        try:
            await ready
        finally:
            self._loop.remove_reader(sock)


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
