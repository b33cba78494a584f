"""The control plane of an edge: one observer, one admin listener, one configuration; no request passes here.

`app.Edge` runs it together with a data path in one process, `supervisor.Supervisor` with data paths in several.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping
from importlib.metadata import version
from random import Random
from typing import Any

from gslb.admin.api import AdminServer
from gslb.admin.edge import ExplainQuery
from gslb.config.fields import split_host_port
from gslb.config.files import FileWatch
from gslb.config.load import load_config
from gslb.config.problems import ConfigErrors, NeedsRestart
from gslb.config.settings import Settings
from gslb.counters import Counters
from gslb.explain import explain, imagine
from gslb.observe.observer import Observer
from gslb.proxy.handover import is_listened_on, others_listen
from gslb.routing.router import Router
from gslb.routing.view import FleetView
from gslb.types import ForcedState

log = logging.getLogger("gslb")

_FIRST_ROUND_S = 2.0
_LOOK_S = 0.5
"""A changed file is noticed at one look and trusted at the next: in force within 1 s and the time to read it."""
_NEEDS_RESTART = ("listen", "admin", "workers", "observability")


class ControlPlane(ABC):
    """What every edge has, whatever runs its data path (an `admin.AdminEdge`)."""

    def __init__(self, settings: Settings, environ: Mapping[str, str], fleet: FleetView, dice: Random) -> None:
        self.fleet = fleet
        self._settings = settings
        self._environ = environ
        self._started_s = time.time()
        self._is_started = False
        self._own_counters = Counters()
        self._own_counters.config_generation = 1
        self.observer = Observer(fleet, settings, self._own_counters, rng=dice)
        self._admin = AdminServer(self)
        self._watch = FileWatch(settings.files)
        self._watching: asyncio.Task[None] | None = None

    # --- what differs -------------------------------------------------------------------------------

    @property
    @abstractmethod
    def counters(self) -> Counters:
        """All that the edge counts."""

    @property
    @abstractmethod
    def port(self) -> int:
        """The data port listened on."""

    @property
    @abstractmethod
    def is_stopping(self) -> bool:
        """True once `stop` was called."""

    @property
    @abstractmethod
    def _router(self) -> Router:
        """A router with the rules in force, for explanations."""

    @abstractmethod
    def reload(self) -> list[str] | Awaitable[list[str]]:
        """Read the file again; all or nothing. The problems that kept the running configuration, if any."""

    # --- life ---------------------------------------------------------------------------------------

    @property
    def admin_port(self) -> int:
        """The admin port listened on."""
        return self._admin.port

    async def _observe_first(self) -> None:
        """Observe the fleet once before anybody is welcome."""
        self.observer.start()
        if not is_listened_on(split_host_port(self._settings.config.admin.listen)[1]):
            # Otherwise another process is to be followed, and this one answers when it is ready to.
            await self._open_admin()
        if not await self.observer.first_round(_FIRST_ROUND_S):
            log.warning("not every endpoint has answered its first probe; listening all the same")

    async def _welcome(self, data_inodes: list[int]) -> None:
        """The data path listens: so does the admin API, and readiness says so."""
        self._is_started = True
        self._watching = asyncio.create_task(self._watch_files(), name="file watch")
        if not self._admin.is_listening:
            await self._open_admin()
        if others_listen(data_inodes):
            log.warning(
                "another process listens on %s too: from now on both serve; end the old one with SIGTERM",
                self._settings.config.listen,
            )

    async def _open_admin(self) -> None:
        await self._admin.start(*split_host_port(self._settings.config.admin.listen))

    def _is_followed(self, data_inodes: list[int]) -> bool:
        """True when another process serves on at the same address."""
        is_followed = others_listen(data_inodes)
        if is_followed:
            log.info("another process listens on %s: it takes over", self._settings.config.listen)
        return is_followed

    async def _yield_admin(self) -> None:
        """Where another process listens at the admin address too, it has that for itself from now on."""
        if others_listen(self._admin.inodes):
            await self._admin.stop(is_followed=True)
            log.info("%s is the other process's alone now", self._settings.config.admin.listen)

    async def _end(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        await self.observer.stop()
        await self._admin.stop()

    # --- admin.AdminEdge ----------------------------------------------------------------------------

    def settings(self) -> Settings:
        """The configuration in force."""
        return self._settings

    def now_s(self) -> float:
        """Monotonic seconds."""
        return asyncio.get_running_loop().time()

    def is_ready(self) -> tuple[bool, Mapping[str, Any]]:
        """Ready once listening and until stopping; upstream health plays no part (DESIGN section 3)."""
        if self.is_stopping:
            return False, {"why": "stopping"}
        return self._is_started, {} if self._is_started else {"why": "starting"}

    def status(self) -> Mapping[str, Any]:
        """What only the edge knows of itself."""
        counters = self.counters
        return {
            "version": version("gslb"),
            "uptime_s": round(time.time() - self._started_s, 1),
            "open_connections": counters.open_connections,
            "open_exchanges": counters.open_exchanges,
            "buffered_body_bytes": counters.buffered_body_bytes,
        }

    def explain(self, query: ExplainQuery) -> Mapping[str, Any]:
        """The decision for an imagined request, over the fleet as it is now."""
        facts = imagine(
            self._settings, query.ip, query.model, query.tenant, query.prompt_tokens, query.region,
            self.fleet.known_models,
        )  # fmt: skip
        return explain(self._router, facts, self.fleet.snapshot, self.now_s())

    def force(self, key: str, forced: ForcedState) -> bool:
        """The operator's hand on one endpoint."""
        return self.fleet.force(key, forced)

    @abstractmethod
    async def synced(self) -> None:
        """Returns once every process of this edge has done what it was told."""

    # --- configurations -----------------------------------------------------------------------------

    def _read(self) -> Settings:
        """The file as it is now. Raises ConfigErrors, also when a change would need a restart."""
        try:
            settings = load_config(self._settings.source_path, self._environ)
        except ConfigErrors as errors:
            self._watch.expect_refused(errors.files)
            raise
        self._watch.expect(settings.files)
        changed = [
            name
            for name in _NEEDS_RESTART
            if getattr(settings.config, name) != getattr(self._settings.config, name)
        ]
        if (settings.server_tls is None) != (self._settings.server_tls is None):
            changed.append("tls.certificates")
        if changed:
            self._watch.expect_refused(settings.files)
            why = "a change here needs a restart; nothing was applied"
            raise NeedsRestart([f"{settings.source_path}: {name}: {why}" for name in changed])
        return settings

    async def _watch_files(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            if self._settings.config.watch and self._watch.look():
                reloading = self.reload()
                if not isinstance(reloading, list):
                    await reloading

    def _note_reload(self, problems: list[str]) -> list[str]:
        """Count and log how a reload went; returns the problems."""
        if problems:
            self._own_counters.config_reload_failures += 1
            for problem in problems:
                log.error("reload refused: %s", problem)
        else:
            self._own_counters.config_generation += 1
            log.info("configuration generation %d is in force", self._own_counters.config_generation)
        return problems
