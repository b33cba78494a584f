"""One GET to an endpoint, with everything that can go wrong named: what probes, scrapes and model reads share.

Connections are kept alive for less than the 5 s after which vLLM closes them, so that a kept one is alive when it
is used; on a kept one the time from request to response head is the round trip plus next to nothing.
"""

from __future__ import annotations

import ssl
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import aiohttp

_KEPT_S = 4.0
_DNS_KEPT_S = 10
_READ_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Target:
    """Where an endpoint is and how to talk to it. `ca_file` and `server_name` matter for https only."""

    url: str
    api_key: str | None = field(default=None, repr=False)
    server_name: str | None = None
    ca_file: str | None = None


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


class _Timing:
    """When one request went out, and on what kind of connection. `perf_counter` seconds: an event loop's own
    clock may stand still within one turn of the loop."""

    __slots__ = ("is_kept", "sent_s")

    def __init__(self) -> None:
        self.is_kept = False
        self.sent_s = time.perf_counter()


class Fetcher:
    """A pool of connections to all endpoints. Make it inside a running loop; `close` it there."""

    def __init__(self) -> None:
        self._contexts: dict[str, ssl.SSLContext] = {}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEPT_S, ttl_dns_cache=_DNS_KEPT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "identity", "User-Agent": "gslb-observer"},
            trace_configs=[_timing_trace()],
        )

    async def get(self, target: Target, path: str, timeout_s: float, limit_bytes: int) -> Answer:
        """GET `path` (which begins with a slash) below the target's URL. Redirects are answers, not followed.

        The endpoint's own key, if any, goes along. Raises FetchFailed; never anything of the HTTP client's.
        """
        timing = _Timing()
        headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
        try:
            async with self._session.get(
                target.url + path,
                headers=headers,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=timeout_s),
                ssl=self._context(target),
                server_hostname=target.server_name,
                trace_request_ctx=timing,
            ) as response:
                rtt_ms = (time.perf_counter() - timing.sent_s) * 1000 if timing.is_kept else None
                return Answer(response.status, await _read(response, limit_bytes), rtt_ms)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _named(error, timeout_s) from error

    def reread_certificates(self) -> None:
        """Read CA files anew at their next use: a reload may have renewed them."""
        self._contexts.clear()

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    def _context(self, target: Target) -> ssl.SSLContext | bool:
        if target.ca_file is None:
            return True  # verified against the system's authorities
        context = self._contexts.get(target.ca_file)
        if context is None:
            try:
                context = ssl.create_default_context(cafile=target.ca_file)
            except OSError as error:
                raise FetchFailed("tls_error", f"tls_ca_file {target.ca_file} cannot be used: {error}") from error
            self._contexts[target.ca_file] = context
        return context


def _timing_trace() -> aiohttp.TraceConfig:
    trace = aiohttp.TraceConfig()

    async def kept(_session: Any, context: SimpleNamespace, _params: Any) -> None:
        context.trace_request_ctx.is_kept = True

    async def fresh(_session: Any, context: SimpleNamespace, _params: Any) -> None:
        context.trace_request_ctx.is_kept = False

    async def sent(_session: Any, context: SimpleNamespace, _params: Any) -> None:
        context.trace_request_ctx.sent_s = time.perf_counter()

    trace.on_connection_reuseconn.append(kept)
    trace.on_connection_create_start.append(fresh)
    trace.on_request_headers_sent.append(sent)
    return trace


async def _read(response: aiohttp.ClientResponse, limit_bytes: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in response.content.iter_chunked(_READ_BYTES):
        size += len(piece)
        if size > limit_bytes:
            raise FetchFailed("too_large", f"the answer is longer than {limit_bytes} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def _named(error: Exception, timeout_s: float) -> FetchFailed:
    """The HTTP client's exception in our words. Order matters: its classes overlap."""
    match error:
        case TimeoutError():
            return FetchFailed("timeout", f"no answer within {timeout_s:g} s")
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientSSLError() | ssl.SSLError():
            return FetchFailed("tls_error", f"TLS failed: {error}")
        case aiohttp.ClientConnectorError():
            return FetchFailed("connect_error", f"no connection: {error.os_error.strerror or error.os_error}")
        case aiohttp.ServerDisconnectedError() | OSError():
            return FetchFailed("reset", "the connection was closed before an answer")
        case _:
            return FetchFailed("protocol_error", f"not a whole HTTP answer: {type(error).__name__}")
