"""One GET to an endpoint, with everything that can go wrong named: what probes, scrapes and model reads share.

It goes over connections of the data path's own kind (`proxy.pool`, `proxy.upstream`): twelve endpoints are asked
twenty times a second, and with a comfortable HTTP client (1.5 to 2 ms of CPU each, measured) that cost as much
as a tenth of a busy edge's requests. Connections are retired before the 5 s after which vLLM closes them, so on
a kept one the time from request to response head is the round trip plus next to nothing.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from gslb.proxy.pool import ConnectFailed, EndpointPool
from gslb.proxy.upstream import UpstreamConnection
from gslb.tls.contexts import ClientTls
from gslb.wire.http1 import ResponseHead


@dataclass(frozen=True, slots=True)
class Target:
    """Where an endpoint is and how to talk to it. `tls` and `server_name` are for https only."""

    url: str
    api_key: str | None = field(default=None, repr=False)
    server_name: str | None = None
    tls: ClientTls | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. `rtt_ms` is the time from request to response head, if the connection was a kept one."""

    status: int
    body: bytes
    rtt_ms: float | None


class FetchFailed(Exception):
    """No usable answer. `reason` is a short label (`timeout`, `connect_error`, `tls_error`, `reset`,
    `protocol_error`, `too_large`, `status_NNN`), the message one sentence for operators."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class _Get:
    """One GET under way (an `upstream.Asker`). `done` gets the Answer or the FetchFailed."""

    def __init__(self, connection: UpstreamConnection, limit_bytes: int, done: asyncio.Future[Answer]) -> None:
        self._connection = connection
        self._limit_bytes = limit_bytes
        self._done = done
        self._sent_s = time.perf_counter()  # an event loop's own clock may stand still within one turn of it
        self._is_kept = connection.is_reused
        self._head: ResponseHead | None = None
        self._rtt_ms: float | None = None
        self._pieces: list[bytes] = []
        self._size_bytes = 0

    def on_head(self, head: ResponseHead) -> None:
        """The round trip is over."""
        self._head = head
        if self._is_kept:
            self._rtt_ms = (time.perf_counter() - self._sent_s) * 1000

    def on_payload(self, payload: bytes, is_complete: bool) -> None:
        """A piece of the body."""
        self._pieces.append(payload)
        self._size_bytes += len(payload)
        if self._size_bytes > self._limit_bytes:
            self._connection.abort()
            self._fail("too_large", f"the answer is longer than {self._limit_bytes} bytes")
        elif is_complete and self._head is not None and not self._done.done():
            self._done.set_result(Answer(self._head.status, b"".join(self._pieces), self._rtt_ms))

    def on_switch(self, head: ResponseHead, behind: bytes) -> bool:
        """Nobody asked for another protocol."""
        return False

    def on_lost(self, error: Exception | None) -> None:
        """The connection ended first."""
        self._fail("reset", "the connection was closed before an answer")

    def on_garbled(self, what: str) -> None:
        """What came is no HTTP answer."""
        self._fail("protocol_error", f"not a whole HTTP answer: {what}")

    def _fail(self, reason: str, message: str) -> None:
        if not self._done.done():
            self._done.set_exception(FetchFailed(reason, message))


class Fetcher:
    """Connections to all endpoints, apart from those that carry requests.

    Make it inside a running loop; `close` it there.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pools: dict[Target, EndpointPool] = {}

    async def get(self, target: Target, path: str, timeout_s: float, limit_bytes: int) -> Answer:
        """GET `path` (which begins with a slash) below the target's URL. Redirects are answers, not followed.

        The endpoint's own key, if any, goes along. Raises FetchFailed and nothing else.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self._get(self._pool(target), path, limit_bytes)
        except TimeoutError:
            raise FetchFailed("timeout", f"no answer within {timeout_s:g} s") from None
        except ConnectFailed as failure:
            raise FetchFailed(failure.result, f"no connection: {failure.why}") from None

    async def _get(self, pool: EndpointPool, path: str, limit_bytes: int) -> Answer:
        connection = pool.take_idle(self._loop.time())
        if connection is not None:
            try:
                return await self._ask(connection, path, limit_bytes)
            except FetchFailed as failure:
                if failure.reason != "reset" or connection.has_answered:
                    raise
        # A kept connection that died unseen proves nothing about the endpoint (FC-15): a fresh one does.
        return await self._ask(await self._connect(pool), path, limit_bytes)

    async def _ask(self, connection: UpstreamConnection, path: str, limit_bytes: int) -> Answer:
        pool = connection.pool
        done: asyncio.Future[Answer] = self._loop.create_future()
        request = b"GET %b%b HTTP/1.1\r\n%bAccept-Encoding: identity\r\nUser-Agent: gslb-observer\r\n\r\n" % (
            pool.base_path, path.encode("ascii"), pool.fields,
        )  # fmt: skip
        connection.send(_Get(connection, limit_bytes, done), request, b"")
        try:
            return await done
        except asyncio.CancelledError:
            connection.abort()
            raise

    async def _connect(self, pool: EndpointPool) -> UpstreamConnection:
        opened: asyncio.Future[UpstreamConnection | ConnectFailed] = self._loop.create_future()

        def done(result: UpstreamConnection | ConnectFailed) -> None:
            if not opened.done():
                opened.set_result(result)
            elif isinstance(result, UpstreamConnection):
                result.abort()

        task = pool.open(done)
        try:
            result = await opened
        except asyncio.CancelledError:
            task.cancel()
            raise
        if isinstance(result, ConnectFailed):
            raise result
        return result

    def start_over(self) -> None:
        """Use fresh connections from now on: a reload may have renewed CA files or removed endpoints."""
        for pool in self._pools.values():
            pool.close_idle()
        self._pools.clear()

    async def close(self) -> None:
        """Close all connections."""
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()

    def _pool(self, target: Target) -> EndpointPool:
        pool = self._pools.get(target)
        if pool is None:
            tls = None if target.tls is None else target.tls.context
            pool = self._pools[target] = EndpointPool(
                self._loop, target.url, api_key=target.api_key, tls=tls, tls_server_name=target.server_name,
                connect_s=60.0,  # the GET's own time limit is the shorter one
            )  # fmt: skip
        return pool
