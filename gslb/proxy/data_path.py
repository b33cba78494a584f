"""The data path of one process: listener, pools, timers, log. Others inform its view of the fleet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gslb.config.fields import split_host_port
from gslb.config.settings import Settings
from gslb.counters import Counters
from gslb.policy.quota import ConcurrencyLimit, ConnectionLimit
from gslb.policy.rate import Bucket, RateLimit
from gslb.proxy.access_log import AccessLog
from gslb.proxy.deadlines import Deadlines
from gslb.proxy.generation import Door, Generation, build_pools, health_marks
from gslb.proxy.handover import close_for_others, inode_of
from gslb.proxy.holding import Holding, OtherWorkers, hold_rules
from gslb.proxy.listener import Listener
from gslb.proxy.pool import EndpointPool
from gslb.proxy.record import log_record
from gslb.proxy.tls_server import TlsServer
from gslb.routing.affinity import Affinity
from gslb.routing.load import InFlight
from gslb.routing.making import Making
from gslb.routing.view import FleetView
from gslb.wire.body_budget import BodyBudget

_BACKLOG = 4096


@dataclass(frozen=True, slots=True)
class Prepared:
    """A configuration that has been built and is not in force yet."""

    settings: Settings
    pools: dict[str, EndpointPool]
    generation: Generation


class DataPath:
    """Everything a request passes. Build it inside the event loop that runs it."""

    def __init__(
        self,
        settings: Settings,
        fleet: FleetView,
        counters: Counters,
        connections: InFlight,
        making: Making,
        on_doubt: Callable[[str], None],
        processes: int = 1,
        tenant_load: Callable[[str], InFlight] | None = None,
        bucket_of: Callable[[str, str], Bucket] | None = None,
        others: OtherWorkers | None = None,
    ) -> None:
        """`connections` counts client connections against the limit; `making` makes the routers; `on_doubt` gets
        the key of an endpoint that traffic made doubtful; `processes` is how many data paths share the edge's
        traffic, `tenant_load` where they count a tenant's requests together, `bucket_of` where what it asks for
        per time, `others` what they tell each other of requests they hold.

        Raises OSError when the access log cannot be opened.
        """
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._making = making
        self._settings = settings
        self._server: asyncio.Server | TlsServer | None = None
        self._housekeeping: asyncio.Task[None] | None = None
        fleet.configure(settings.endpoints, health_marks(settings))
        log = AccessLog(settings.config.observability.access_log, loop, log_record)
        self.door = Door(
            loop, fleet, counters, log, Deadlines(loop), time.time, on_doubt,
            ConcurrencyLimit(counters.tenant_running, tenant_load), RateLimit(bucket_of), ConnectionLimit(),
            BodyBudget(), connections, Holding(loop, others), making.make(Affinity), processes,
        )  # fmt: skip
        fleet.on_news = self.door.holding.room_may_have_come
        self._bound(settings)
        self._pools: dict[str, EndpointPool] = build_pools(loop, settings, {}, None)
        self.listener = Listener(Generation(self.door, settings, self._pools, making))

    # --- configurations -----------------------------------------------------------------------------

    def prepare(self, settings: Settings) -> Prepared:
        """Build what `settings` need; nothing changes."""
        if settings.server_tls == self._settings.server_tls:
            # Made of the same files: the context in use knows its clients' sessions, the new one would not.
            settings = replace(settings, server_tls=self._settings.server_tls)
        pools = build_pools(self._loop, settings, self._pools, self._settings)
        return Prepared(settings, pools, Generation(self.door, settings, pools, self._making))

    def adopt(self, prepared: Prepared) -> None:
        """Put in force what was prepared last. Cannot fail, so that it holds as a whole."""
        for key, pool in self._pools.items():
            if prepared.pools.get(key) is not pool:
                pool.close_idle()
        self._pools = prepared.pools
        self._settings = prepared.settings
        self.door.fleet.configure(prepared.settings.endpoints, health_marks(prepared.settings))
        self._bound(prepared.settings)
        self.door.rates.forget_all_but(prepared.settings.config.tenants)
        self.listener.generation = prepared.generation

    def _bound(self, settings: Settings) -> None:
        """This process's share of what the edge may hold: requests, and memory for bodies, enough for one in any
        case; and what an endpoint is believed to have cached at most."""
        door, limits = self.door, settings.config.limits
        share_bytes = limits.buffered_bytes // door.processes
        door.body_budget.limit_bytes = max(share_bytes, limits.body_bytes, limits.multipart_bytes)
        door.holding.queue.rules = hold_rules(settings, door.processes)
        door.affinity.bound(settings.config.routing.affinity.index_blocks)

    # --- life ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the timers."""
        self.door.deadlines.start()
        self._housekeeping = asyncio.create_task(self._keep_house(), name="housekeeping")

    async def listen(self, address: str) -> None:
        """Welcome clients at HOST:PORT, beside other processes that may do so (SO_REUSEPORT).

        Raises OSError naming the address when it cannot be had.
        """
        host, port = split_host_port(address)
        if self._settings.server_tls is None:
            protocol: Any = self.listener  # makes one by its methods
            self._server = await self._loop.create_server(protocol, host, port, backlog=_BACKLOG, reuse_port=True)
        else:
            self._server = TlsServer(self._loop, self.listener)
            await self._server.start(host, port)

    @property
    def counters(self) -> Counters:
        """What this process counts, as of now."""
        counters = self.door.counters
        counters.buffered_body_bytes = self.door.body_budget.held_bytes
        counters.queue_depth = len(self.door.holding.queue)
        counters.access_log_dropped = self.door.access_log.dropped
        return counters

    @property
    def port(self) -> int:
        """The data port listened on."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def inodes(self) -> list[int]:
        """What identifies this process's listening sockets."""
        return [] if self._server is None else [inode_of(sock.fileno()) for sock in self._server.sockets]

    async def stop(self, grace_s: float, *, hands_over: bool = False) -> None:
        """Stop welcoming, let running exchanges end within the grace, end the rest, write the last records.

        `hands_over`: others listen on the same port, so no connection may be lost and no request refused; those
        that have come this far are still served.
        """
        door, listener = self.door, self.listener
        door.hands_over, door.is_stopping = hands_over, True
        until_s = self._loop.time() + grace_s
        if self._server is not None:
            if hands_over:
                if isinstance(self._server, TlsServer):
                    await self._server.close_for_others()
                else:
                    await close_for_others(self._server, listener)
            self._server.close()
        listener.stop_idle(spare_fresh=hands_over)

        def is_busy() -> bool:
            return bool(door.counters.open_exchanges) or listener.is_busy(counts_unasked=hands_over)

        # Exchanges end in callbacks that know of no event; 20 ms is finer than any grace.
        while is_busy() and self._loop.time() < until_s:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        listener.stop_all()
        await asyncio.sleep(0)
        if self._housekeeping is not None:
            self._housekeeping.cancel()
        for pool in self._pools.values():
            pool.close()
        door.holding.close()
        door.deadlines.stop()
        door.access_log.close()

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            now_s = self._loop.time()
            for pool in list(self._pools.values()):
                pool.retire(now_s)
            self.door.affinity.observed(self.door.fleet.snapshot.endpoints)
