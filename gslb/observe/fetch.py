"""One GET to an endpoint, with everything that can go wrong named: what probes, scrapes and model reads share.

It goes over connections of the data path's own kind (`proxy.pool`, `proxy.upstream`), and by callbacks as there:
twelve endpoints are asked twenty times a second, and with a comfortable HTTP client (1.5 to 2 ms of CPU each,
measured) that cost as much as a tenth of a busy edge's requests. Connections are retired before the 5 s after
which vLLM closes them, so on a kept one the time from request to response head is the round trip plus next to
nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
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


Done = Callable[[Answer | FetchFailed], None]


class Get:
    """One GET under way (an `upstream.Asker`). It tells how it ended once, unless it is cancelled before."""

    __slots__ = (
        "_connection", "_done", "_head", "_is_kept", "_is_over", "_limit_bytes", "_opening", "_path", "_pieces",
        "_pool", "_rtt_ms", "_sent_s", "_size_bytes", "_timeout_s", "_timer",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pool: EndpointPool,
        path: str,
        timeout_s: float,
        limit_bytes: int,
        done: Done,
    ) -> None:
        self._pool = pool
        self._path = path
        self._timeout_s = timeout_s
        self._limit_bytes = limit_bytes
        self._done = done
        self._is_over = False
        self._timer = loop.call_later(timeout_s, self._on_timeout)
        self._opening: asyncio.Task[None] | None = None
        self._connection: UpstreamConnection | None = None
        self._is_kept = False
        self._sent_s = 0.0
        self._head: ResponseHead | None = None
        self._rtt_ms: float | None = None
        self._pieces: list[bytes] = []
        self._size_bytes = 0
        connection = pool.take_idle(loop.time())
        if connection is None:
            self._open()
        else:
            self._is_kept = True
            self._send(connection)

    def cancel(self) -> None:
        """Give up; nobody is told."""
        self._is_over = True
        self._timer.cancel()
        if self._opening is not None:
            self._opening.cancel()
        if self._connection is not None:
            self._connection.abort()

    # --- its connection -----------------------------------------------------------------------------

    def _open(self) -> None:
        self._connection = None
        self._opening = self._pool.open(self._on_opened)

    def _on_opened(self, result: UpstreamConnection | ConnectFailed) -> None:
        self._opening = None
        if isinstance(result, ConnectFailed):
            self._end(FetchFailed(result.result, f"no connection: {result.why}"))
        elif self._is_over:
            result.abort()
        else:
            self._send(result)

    def _send(self, connection: UpstreamConnection) -> None:
        self._connection = connection
        pool = self._pool
        request = b"GET %b%b HTTP/1.1\r\n%bAccept-Encoding: identity\r\nUser-Agent: gslb-observer\r\n\r\n" % (
            pool.base_path, self._path.encode("ascii"), pool.fields,
        )  # fmt: skip
        self._sent_s = time.perf_counter()  # an event loop's own clock may stand still within one turn of it
        connection.send(self, request, b"")

    # --- upstream.Asker -----------------------------------------------------------------------------

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
            self._fail("too_large", f"the answer is longer than {self._limit_bytes} bytes")
        elif is_complete and self._head is not None:
            self._connection = None  # it may serve others now
            self._end(Answer(self._head.status, b"".join(self._pieces), self._rtt_ms))

    def on_switch(self, head: ResponseHead, behind: bytes) -> bool:
        """Nobody asked for another protocol."""
        return False

    def on_lost(self, error: Exception | None) -> None:
        """The connection ended first."""
        if self._is_kept and self._connection is not None and not self._connection.has_answered:
            # One that died unseen proves nothing about the endpoint (FC-15): a fresh one does.
            self._is_kept = False
            self._open()
        else:
            self._fail("reset", "the connection was closed before an answer")

    def on_garbled(self, what: str) -> None:
        """What came is no HTTP answer."""
        self._fail("protocol_error", f"not a whole HTTP answer: {what}")

    # --- ends ---------------------------------------------------------------------------------------

    def _on_timeout(self) -> None:
        self._fail("timeout", f"no answer within {self._timeout_s:g} s")

    def _fail(self, reason: str, message: str) -> None:
        if not self._is_over:
            self.cancel()
            self._done(FetchFailed(reason, message))

    def _end(self, result: Answer | FetchFailed) -> None:
        if not self._is_over:
            self._is_over = True
            self._timer.cancel()
            self._done(result)


class Fetcher:
    """Connections to all endpoints, apart from those that carry requests.

    Make it inside a running loop; `close` it there.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pools: dict[Target, EndpointPool] = {}

    def get(self, target: Target, path: str, timeout_s: float, limit_bytes: int, done: Done) -> Get:
        """GET `path` (which begins with a slash) below the target's URL. Redirects are answers, not followed.

        The endpoint's own key, if any, goes along. `done` gets the answer, or why there is none, later.
        """
        return Get(self._loop, self._pool(target), path, timeout_s, limit_bytes, done)

    def start_over(self) -> None:
        """Use fresh connections from now on: a reload may have renewed CA files or removed endpoints."""
        for pool in self._pools.values():
            pool.close_idle()
        self._pools.clear()

    def close(self) -> None:
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
                repeats=False,
            )  # fmt: skip
        return pool
