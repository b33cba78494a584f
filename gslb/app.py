"""The composition root: one edge, built from settings, started, reloaded and stopped."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from random import Random
from typing import Any

from gslb.admin.api import AdminServer
from gslb.admin.edge import ExplainQuery
from gslb.config.fields import split_host_port
from gslb.config.files import FileWatch
from gslb.config.load import load_config
from gslb.config.problems import ConfigErrors
from gslb.config.settings import Settings
from gslb.counters import Counters
from gslb.explain import explain, imagine
from gslb.observe.observer import Observer
from gslb.policy.quota import ConcurrencyLimit, ConnectionLimit
from gslb.proxy.access_log import AccessLog
from gslb.proxy.deadlines import Deadlines
from gslb.proxy.generation import Door, Generation, build_pools
from gslb.proxy.listener import Listener
from gslb.proxy.pool import EndpointPool
from gslb.proxy.record import log_record
from gslb.proxy.tls_server import TlsServer
from gslb.routing.health import HealthMarks
from gslb.routing.view import FleetView
from gslb.types import ForcedState
from gslb.wire.body_budget import BodyBudget

_log = logging.getLogger("gslb")
_FIRST_ROUND_S = 2.0
_HOUSEKEEPING_S = 0.5
"""A changed file is noticed at one look and trusted at the next: in force within 1 s and the time to read it."""
_NEEDS_RESTART = ("listen", "admin", "workers", "observability")


def health_marks(settings: Settings) -> HealthMarks:
    """The health machine's thresholds from the configuration."""
    health = settings.config.health
    return HealthMarks(
        fall=health.fall, rise=health.rise, passive_fall=health.passive_fall, ejection_s=health.ejection,
        window_s=health.fall * health.interval,
    )  # fmt: skip


class Edge:
    """One running gslb (an `admin.AdminEdge`). Build it inside the event loop that runs it."""

    def __init__(self, settings: Settings, environ: Mapping[str, str], dice: Random | None = None) -> None:
        """Raises OSError when the access log cannot be opened."""
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._environ = environ
        self._dice = dice or Random()
        self._settings = settings
        self._started_s = time.time()
        self._is_started = False
        self._server: asyncio.Server | TlsServer | None = None
        self._watch = FileWatch(settings.files)
        self._housekeeping: asyncio.Task[None] | None = None
        self.counters = Counters()
        self.fleet = FleetView(health_marks(settings))
        self.fleet.configure(settings.endpoints, health_marks(settings))
        self.observer = Observer(self.fleet, settings, self.counters, rng=self._dice)
        self._door = Door(
            loop, self.fleet, self.counters, AccessLog(settings.config.observability.access_log, loop, log_record),
            Deadlines(loop), time.time, self.observer.probe_now, ConcurrencyLimit(self.counters.tenant_running),
            ConnectionLimit(), BodyBudget(settings.config.limits.buffered_bytes),
        )  # fmt: skip
        self._pools: dict[str, EndpointPool] = build_pools(loop, settings, {}, None)
        self._listener = Listener(Generation(self._door, settings, self._pools, self._dice))
        self._admin = AdminServer(self)
        self.counters.config_generation = 1

    # --- life ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Observe the fleet once, then listen. Raises OSError naming the address that cannot be had."""
        config = self._settings.config
        self._door.deadlines.start()
        self.observer.start()
        self._housekeeping = asyncio.create_task(self._keep_house(), name="housekeeping")
        await self._admin.start(*split_host_port(config.admin.listen))
        if not await self.observer.first_round(_FIRST_ROUND_S):
            _log.warning("not every endpoint has answered its first probe; listening all the same")
        host, port = split_host_port(config.listen)
        if self._settings.server_tls is not None:
            self._server = TlsServer(self._loop, self._listener)
            await self._server.start(host, port)
        else:
            self._server = await self._loop.create_server(self._listener, host, port, backlog=4096)
        self._is_started = True

    @property
    def port(self) -> int:
        """The data port listened on."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def admin_port(self) -> int:
        """The admin port listened on."""
        return self._admin.port

    async def stop(self, grace_s: float | None = None) -> None:
        """Stop welcoming, let running exchanges end within the grace, end the rest, write the last records."""
        grace_s = self._settings.config.timeouts.grace if grace_s is None else grace_s
        self._door.is_stopping = True
        if self._server is not None:
            self._server.close()
        self._listener.stop_idle()
        until_s = self._loop.time() + grace_s
        # Exchanges end in callbacks that know of no event; 20 ms is finer than any grace.
        while self.counters.open_exchanges and self._loop.time() < until_s:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        self._listener.stop_all()
        await asyncio.sleep(0)
        if self._housekeeping is not None:
            self._housekeeping.cancel()
        await self.observer.stop()
        for pool in self._pools.values():
            pool.close()
        self._door.deadlines.stop()
        self._door.access_log.close()
        await self._admin.stop()

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(_HOUSEKEEPING_S)
            now_s = self._loop.time()
            for pool in list(self._pools.values()):
                pool.retire(now_s)
            if self._settings.config.watch and self._watch.look():
                self.reload()

    # --- admin.AdminEdge ----------------------------------------------------------------------------

    def settings(self) -> Settings:
        """The configuration in force."""
        return self._settings

    def now_s(self) -> float:
        """Monotonic seconds."""
        return self._loop.time()

    def is_ready(self) -> tuple[bool, Mapping[str, Any]]:
        """Ready once listening and until stopping; upstream health plays no part (DESIGN section 3)."""
        if self._door.is_stopping:
            return False, {"why": "stopping"}
        return self._is_started, {} if self._is_started else {"why": "starting"}

    def status(self) -> Mapping[str, Any]:
        """What only the edge knows of itself."""
        return {
            "version": version("gslb"),
            "uptime_s": round(time.time() - self._started_s, 1),
            "open_connections": self.counters.open_connections,
            "open_exchanges": self.counters.open_exchanges,
            "buffered_body_bytes": self._door.body_budget.held_bytes,
        }

    def explain(self, query: ExplainQuery) -> Mapping[str, Any]:
        """The decision for an imagined request, over the fleet as it is now."""
        facts = imagine(
            self._settings, query.ip, query.model, query.tenant, query.prompt_tokens, query.region,
            self.fleet.known_models,
        )  # fmt: skip
        return explain(self._listener.generation.router, facts, self.fleet.snapshot, self.now_s())

    def force(self, key: str, forced: ForcedState) -> bool:
        """The operator's hand on one endpoint."""
        return self.fleet.force(key, forced)

    def reload(self) -> list[str]:
        """Read the file again; all or nothing. The problems that kept the running configuration, if any."""
        try:
            settings = load_config(self._settings.source_path, self._environ)
        except ConfigErrors as errors:
            problems = [str(problem) for problem in errors.problems]
            self._watch.expect_refused(errors.files)
        else:
            problems = self._needs_restart(settings)
            if problems:
                self._watch.expect_refused(settings.files)
            else:
                self._apply(settings)
                self._watch.expect(settings.files)
        if problems:
            self.counters.config_reload_failures += 1
            for problem in problems:
                _log.error("reload refused: %s", problem)
        else:
            _log.info("configuration generation %d is in force", self.counters.config_generation)
        return problems

    def _needs_restart(self, settings: Settings) -> list[str]:
        changed = [
            name
            for name in _NEEDS_RESTART
            if getattr(settings.config, name) != getattr(self._settings.config, name)
        ]
        if (settings.server_tls is None) != (self._settings.server_tls is None):
            changed.append("tls.certificates")
        where = settings.source_path
        return [f"{where}: {name}: a change here needs a restart; nothing was applied" for name in changed]

    def _apply(self, settings: Settings) -> None:
        if settings.server_tls == self._settings.server_tls:
            # Made of the same files: the context in use knows its clients' sessions, the new one would not.
            settings = replace(settings, server_tls=self._settings.server_tls)
        pools = build_pools(self._loop, settings, self._pools, self._settings)
        generation = Generation(self._door, settings, pools, self._dice)
        # Nothing below can fail: from here the new generation is in force as a whole.
        for key, pool in self._pools.items():
            if pools.get(key) is not pool:
                pool.close_idle()
        self._pools = pools
        self._settings = settings
        self.fleet.configure(settings.endpoints, health_marks(settings))
        self._door.body_budget.limit_bytes = settings.config.limits.buffered_bytes
        self._listener.generation = generation
        self.observer.apply(settings)
        self.counters.config_generation += 1
