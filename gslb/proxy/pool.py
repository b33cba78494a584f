"""Connections to one endpoint: kept warm, retired before the engine closes them, opened when none is idle.

vLLM closes idle connections after 5.0 s; a request written into a closing socket is a 502 to the user (FC-15).
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, Final
from urllib.parse import urlsplit

from gslb.proxy.upstream import UpstreamConnection
from gslb.wire.known_answer import KnownAnswer

_KEEP_ALIVE_MARGIN_S: Final = 0.5
"""How long before an endpoint's announced limit its connections are retired: a request may be on its way."""


class ConnectFailed(Exception):
    """No connection. `result` is the attempts label: connect_error or tls_error."""

    def __init__(self, result: str, why: str) -> None:
        super().__init__(why)
        self.result = result
        self.why = why


def _connect_failure(error: OSError, is_tls: bool) -> ConnectFailed:
    """What went wrong: with TLS a connection that breaks before it is there broke within the handshake."""
    if isinstance(error, ssl.SSLError):
        why = getattr(error, "verify_message", None) or error.reason or "refused"
        return ConnectFailed("tls_error", f"TLS: {why}")
    if is_tls and isinstance(error, (ConnectionResetError, ConnectionAbortedError)):
        return ConnectFailed("tls_error", "TLS: the handshake was broken off")
    return ConnectFailed("connect_error", error.strerror or "connection failed")


class Resolver:
    """Host name to addresses, kept for `keep_s`; a failed look-up keeps the last known addresses."""

    def __init__(self, loop: asyncio.AbstractEventLoop, host: str, port: int, keep_s: float) -> None:
        self._loop = loop
        self._host = host
        self._port = port
        self._keep_s = keep_s
        self._addresses: list[str] = []
        self._until_s = float("-inf")
        try:
            self._addresses = [str(ipaddress.ip_address(host))]
            self._until_s = float("inf")
        except ValueError:
            pass  # a name: looked up when first needed

    async def addresses(self) -> list[str]:
        """The addresses to try, in order. Raises ConnectFailed when the name was never resolved."""
        if self._loop.time() >= self._until_s:
            try:
                found = await self._loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
                self._addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
                self._until_s = self._loop.time() + self._keep_s
            except OSError as error:
                if not self._addresses:
                    raise ConnectFailed("connect_error", f"name not resolved: {error.strerror}") from None
        return self._addresses

    def doubt(self) -> None:
        """A connection failed: look the name up anew next time."""
        if self._until_s != float("inf"):
            self._until_s = float("-inf")


class EndpointPool:
    """One endpoint's connections. `tls` goes with an https URL, and only there."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        url: str,
        *,
        api_key: str | None = None,
        tls: ssl.SSLContext | None = None,
        tls_server_name: str | None = None,
        connect_s: float = 2.0,
        idle_s: float = 4.0,
        dns_s: float = 10.0,
        repeats: bool = True,
    ) -> None:
        """`repeats`: one answer's head is mostly the next one's, so that it pays to know it."""
        parts = urlsplit(url)
        if (parts.scheme == "https") != (tls is not None):
            raise ValueError("an https endpoint is spoken to over verified TLS, any other over none")
        host = parts.hostname or ""
        self._loop = loop
        self._tls = tls
        # The name to ask for and to verify: never the client's Host. An address is verified as one but not asked
        # for, and a name goes without the dot at its end (RFC 6066 section 3).
        self._server_name = None if tls is None else (tls_server_name or host).rstrip(".")
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._resolver = Resolver(loop, host, self._port, dns_s)
        self._connect_s = connect_s
        self._idle_s = idle_s
        self._idle: list[UpstreamConnection] = []
        self._all: set[UpstreamConnection] = set()
        self.opened = 0
        self.known_answer = KnownAnswer(learns=repeats)
        self.base_path = parts.path.encode("ascii")
        self.fields = b"Host: %b\r\n" % parts.netloc.encode("idna" if not parts.netloc.isascii() else "ascii")
        self.has_key = api_key is not None
        if api_key is not None:
            self.fields += b"Authorization: Bearer %b\r\n" % api_key.encode()

    def take_idle(self, now_s: float) -> UpstreamConnection | None:
        """The most recently used idle connection that is surely still open, or None."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_lost:
                continue
            if now_s < connection.idle_until_s:
                return connection
            connection.abort()
        return None

    def open(self, done: Callable[[UpstreamConnection | ConnectFailed], None]) -> asyncio.Task[None]:
        """Open a fresh connection and hand it, or the failure, to `done`. Cancel the task to give up."""
        return self._loop.create_task(self._open(done))

    async def _open(self, done: Callable[[UpstreamConnection | ConnectFailed], None]) -> None:
        result: UpstreamConnection | ConnectFailed
        try:
            async with asyncio.timeout(self._connect_s):
                result = await self._connect()
        except TimeoutError:
            result = ConnectFailed("connect_error", f"no connection within {self._connect_s:g} s")
        except ConnectFailed as failure:
            result = failure
        except Exception as error:  # whatever it is: who asked must not wait for ever
            result = ConnectFailed("connect_error", f"no connection: {type(error).__name__}")
        if isinstance(result, ConnectFailed):
            self._resolver.doubt()
        done(result)

    async def _connect(self) -> UpstreamConnection:
        failure = ConnectFailed("connect_error", "no address")
        protocol: Any = partial(UpstreamConnection, self)  # one by its methods
        for address in await self._resolver.addresses():
            connection: UpstreamConnection
            try:
                _, connection = await self._loop.create_connection(
                    protocol, address, self._port,
                    ssl=self._tls, server_hostname=self._server_name,
                )  # fmt: skip
            except OSError as error:  # ssl.SSLError is one
                failure = _connect_failure(error, self._tls is not None)
            else:
                self.opened += 1
                self._all.add(connection)
                return connection
        raise failure

    def give_back(self, connection: UpstreamConnection, announced_s: float | None) -> None:
        """An answer ended cleanly: the connection may serve again, unless it is idle for too long. The endpoint
        may have announced (Keep-Alive: timeout=N) when it closes this one."""
        idle_s = self._idle_s
        if announced_s is not None:
            idle_s = min(idle_s, announced_s - _KEEP_ALIVE_MARGIN_S)
        if idle_s <= 0:
            connection.abort()
            return
        connection.idle_until_s = self._loop.time() + idle_s
        self._idle.append(connection)

    def forget(self, connection: UpstreamConnection) -> None:
        """The connection is gone."""
        self._all.discard(connection)

    def retire(self, now_s: float) -> None:
        """Close connections idle for too long. Call about once a second."""
        keep: list[UpstreamConnection] = []
        for connection in self._idle:
            if connection.is_lost:
                continue
            if now_s < connection.idle_until_s:
                keep.append(connection)
            else:
                connection.abort()
        self._idle = keep

    def close_idle(self) -> None:
        """The pool is replaced: drop what is idle; connections under an answer end with it."""
        self._idle_s = 0.0
        self.retire(inf)

    def close(self) -> None:
        """Abort every connection."""
        for connection in list(self._all):
            connection.abort()
        self._idle.clear()
