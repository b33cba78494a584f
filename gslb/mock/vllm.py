"""A stand-in for a vLLM OpenAI server: same bytes on the wire, an engine model behind, faults on demand.

`MockVllm(MockSettings(models=["m"], slots=4))`, then `await start()` (127.0.0.1 and a free port), requests to
`url`, `set_faults(Fault(reset_after_events=2, count=1))` when something shall break, `await stop()`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from zlib import crc32

from gslb.mock import metrics
from gslb.mock.connection import Connection, RequestRecord
from gslb.mock.driver import EngineDriver
from gslb.mock.engine import Engine
from gslb.mock.exchange import Exchange
from gslb.mock.faults import Fault, FaultBook
from gslb.mock.settings import MockSettings, WanTable

POLL_S = 0.002


class _NoLoop:
    """The time of a mock that was never started: it stands still, and nothing can be timed in it."""

    def time(self) -> float:
        return 0.0

    def call_at(self, when: float, callback: Callable[..., Any]) -> asyncio.TimerHandle:
        raise RuntimeError(f"start() the mock first: nothing runs at {when} s ({callback})")


class MockVllm:
    """One mock server. Use from inside a running event loop, from one thread.

    For tests: `requests` (the last ones in), `connections_accepted`, `open_connections`, `aborted` (exchanges
    whose client left before the end), `closings` (connection id, loop time of its end), `driver` (the load).
    """

    def __init__(self, settings: MockSettings | None = None) -> None:
        self.settings = settings or MockSettings()
        self.host = "127.0.0.1"
        self.port = 0
        self.requests: deque[RequestRecord] = deque(maxlen=self.settings.request_log_size)
        self.requests_total = 0
        self.connections_accepted = 0
        self.aborted = 0
        self.closings: deque[tuple[int, float]] = deque(maxlen=self.settings.request_log_size)
        self.book = FaultBook()
        self.is_silenced = False
        self.is_draining = False
        self.is_closing_idle = False
        self.driver = EngineDriver(_NoLoop(), [Engine(self.settings)])
        self._connections: dict[int, Connection] = {}
        self._server: asyncio.Server | None = None
        self._tls: ssl.SSLContext | None = None
        self._reopening: asyncio.Task[None] | None = None
        self._last_id = 0
        self._started_unix_s = 0.0
        self._is_started = False
        self._is_refusing = False
        self._wan_read = (tuple(self.settings.wan), self.settings.wan_default_ms)
        self._wan_table = WanTable(*self._wan_read)

    # Life.

    async def start(self, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        """Listen (port 0: a free one, then in `port`) with fresh engines. Raises OSError if it cannot."""
        if self._is_started:
            raise RuntimeError("this mock is running already: stop() or kill() it first")
        self.host, self.port, self._tls = host, port, tls
        self.is_silenced = self.is_draining = self.is_closing_idle = False
        engines = [Engine(self.settings) for _ in range(self.settings.engines)]
        self.driver = EngineDriver(asyncio.get_running_loop(), engines)
        self._started_unix_s = time.time()
        pending, self._reopening = self._reopening, None
        if pending is not None:
            await pending
        self._is_started = True
        try:
            await self._listen()
        except OSError:
            self._is_started = False
            raise
        self._apply_faults()

    async def stop(self, drain_s: float = 0.0) -> None:
        """Stop listening, let what runs finish for up to `drain_s` seconds, then close all with FIN."""
        self._shut()
        self.is_closing_idle = True
        self._close_idle()
        await self._until_idle(drain_s)
        for connection in list(self._connections.values()):
            connection.cut(is_reset=False)
        self.driver.close()
        await self.wait_until(lambda: not self._connections, timeout_s=5)

    def kill(self) -> None:
        """Die at once: the port refuses, every connection is reset, the engines are gone."""
        self._shut()
        for connection in list(self._connections.values()):
            connection.cut(is_reset=True)
        self.driver.close()

    async def restart(self) -> None:
        """Come (back) up on the same address with empty engines and counters at zero; faults stay."""
        self.kill()
        await self.wait_until(lambda: not self._connections, timeout_s=5)
        await self.start(self.host, self.port, self._tls)

    async def terminate(self) -> None:
        """What SIGTERM does; returns when the process would end.

        With `shutdown_timeout_s` 0 (vLLM's default) the port refuses at once, running requests get neither a
        byte nor a close any more, and it is over when their clients have left. Above 0 running requests finish
        while new ones are accepted and answered 500, at most that long.
        """
        if self.settings.shutdown_timeout_s > 0:
            self.is_draining = True
            await self._until_idle(self.settings.shutdown_timeout_s)
            await self.stop()
            return
        self._shut()
        self.is_silenced = True
        self._close_idle()
        await self.wait_until(lambda: not self._connections, timeout_s=float("inf"))
        self.driver.close()

    async def _until_idle(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await self.wait_until(lambda: not self.busy_connections, timeout_s)

    @property
    def url(self) -> str:
        """`http://host:port` (https with TLS)."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self._tls is None else 'https'}://{host}:{self.port}"

    @property
    def is_listening(self) -> bool:
        """True while connections are accepted."""
        return self._server is not None

    # Faults.

    @property
    def faults(self) -> tuple[Fault, ...]:
        """The faults that stand now; a counted one carries what is left of its count."""
        return tuple(self.book.standing)

    @faults.setter
    def faults(self, wanted: tuple[Fault, ...] | list[Fault]) -> None:
        self.set_faults(*wanted)

    def set_faults(self, *wanted: Fault) -> None:
        """Replace the standing faults by copies of `wanted` (none: all is well). The first that fits hits."""
        self.book.standing = [replace(fault) for fault in wanted]
        self._apply_faults()

    def _apply_faults(self) -> None:
        if not self._is_started:
            return
        self.driver.set_frozen(self.book.has("stall"))
        if self.book.has("refuse"):
            self._close_listener()
            self._is_refusing = True
        elif self._is_refusing:
            self._is_refusing = False
            if self._reopening is not None and not self._reopening.done():
                return  # it is under way and looks again when it is there
            self._reopening = asyncio.get_running_loop().create_task(self._reopen())

    # What tests look at.

    @property
    def open_connections(self) -> int:
        """Connections that are open now."""
        return len(self._connections)

    @property
    def busy_connections(self) -> int:
        """Connections with a request that is not answered to the end."""
        return sum(1 for connection in self._connections.values() if connection.exchange is not None)

    async def wait_until(self, predicate: Callable[[], bool], timeout_s: float = 5.0) -> None:
        """Return once `predicate()` holds. Raises TimeoutError telling the server's state if it does not."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        # Polling: a predicate may look at anything, so there is no one event to wait for.
        while not predicate():
            if loop.time() >= deadline_s:
                raise TimeoutError(f"not within {timeout_s} s; the mock's state: {self.state()}")
            await asyncio.sleep(POLL_S)

    def state(self) -> dict[str, Any]:
        """Counters and load as plain values (also GET /mock/state)."""
        return {
            "identity": self.settings.identity,
            "is_listening": self.is_listening,
            "running": self.driver.running,
            "waiting": self.driver.waiting,
            "kv_usage": self.driver.kv_usage,
            "requests_total": self.requests_total,
            "connections_accepted": self.connections_accepted,
            "open_connections": self.open_connections,
            "aborted": self.aborted,
            "faults": [fault.as_json() for fault in self.faults],
        }

    def metrics_text(self) -> bytes:
        """The body of /metrics."""
        settings = self.settings
        readings = [
            metrics.EngineReading(engine.running, engine.waiting, engine.kv_usage, engine.stats)
            for engine in self.driver.engines
        ]
        config = (
            ("block_size", str(settings.block_size)),
            ("enable_prefix_caching", "True"),
            ("num_gpu_blocks", str(settings.kv_blocks)),
        )
        return metrics.render(readings, settings.models[0], self._started_unix_s, settings.metrics_dialect, config)

    # What connections and exchanges use.

    def connection_opened(self, connection: Connection) -> None:
        """Count `connection` and give it its number; one that comes too late is reset."""
        self.connections_accepted += 1
        connection.connection_id = self.connections_accepted
        self._connections[connection.connection_id] = connection
        if self._is_refusing or not self._is_started:
            connection.reset_now()

    def connection_closed(self, connection: Connection) -> None:
        """Forget `connection`."""
        self._connections.pop(connection.connection_id, None)
        self.closings.append((connection.connection_id, asyncio.get_running_loop().time()))

    def make_exchange(self, connection: Connection, record: RequestRecord) -> Exchange:
        """Log `record` and make what answers it, at the distance of the client that it comes from."""
        if record.target.startswith("/mock/"):
            return Exchange(self, connection, record, 0.0)
        self.requests.append(record)
        self.requests_total += 1
        client = (record.header("x-forwarded-for") or "").partition(",")[0].strip() or connection.peer
        return Exchange(self, connection, record, self.half_rtt_s(client))

    def half_rtt_s(self, address: str) -> float:
        """One way's time from `address`, in seconds, by the settings' table."""
        wan = (tuple(self.settings.wan), self.settings.wan_default_ms)
        if wan != self._wan_read:
            self._wan_read, self._wan_table = wan, WanTable(*wan)
        return self._wan_table.rtt_ms(address) * self.settings.time_scale / 2e3

    def next_id(self) -> int:
        """A number no other request of this server has."""
        self._last_id += 1
        return self._last_id

    def hex_id(self, number: int) -> str:
        """Sixteen hex digits for request `number`, the same for the same seed."""
        return f"{crc32(b'%d' % number, self.settings.seed & 0xFFFFFFFF):08x}{number & 0xFFFFFFFF:08x}"

    def unix_s(self) -> float:
        """The wall clock, for `date` and `created`."""
        return time.time()

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self), self.host, self.port, ssl=self._tls, backlog=2048
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def _reopen(self) -> None:
        await self._listen()
        if self._is_refusing or not self._is_started:
            self._close_listener()

    def _shut(self) -> None:
        # A reopening under way is not cancelled: its socket might listen already. It sees this and closes it.
        self._is_started = self._is_refusing = False
        self._close_listener()

    def _close_listener(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def _close_idle(self) -> None:
        for connection in list(self._connections.values()):
            if connection.exchange is None:
                connection.close()
