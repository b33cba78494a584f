"""The edge of one process: control plane and data path together."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from gslb.config.problems import REFUSALS, problems_of
from gslb.config.settings import Settings
from gslb.control import ControlPlane
from gslb.counters import Counters
from gslb.proxy.data_path import DataPath
from gslb.proxy.generation import health_marks
from gslb.routing.load import OwnLoad
from gslb.routing.making import Making
from gslb.routing.router import Router
from gslb.routing.view import FleetView


class Edge(ControlPlane):
    """One running gslb. Build it inside the event loop that runs it."""

    def __init__(
        self,
        settings: Settings,
        environ: Mapping[str, str],
        dice: Random | None = None,
        making: Making | None = None,
    ) -> None:
        """`making` makes the parts that decide, with its own dice (`sim.recording` records them).

        Raises OSError when the access log cannot be opened.
        """
        dice = dice or Random()
        making = making or Making(dice)
        super().__init__(settings, environ, making.make(FleetView, health_marks(settings), dice=making.dice), dice)
        self._data = DataPath(settings, self.fleet, self._own_counters, OwnLoad(), making, self.observer.probe_now)
        self._door = self._data.door
        self._listener = self._data.listener

    async def start(self) -> None:
        """Observe the fleet once, then listen. Raises OSError naming the address that cannot be had."""
        self._data.start()
        await self._observe_first()
        await self._data.listen(self._settings.config.listen)
        await self._welcome(self._data.inodes)

    async def stop(self, grace_s: float | None = None) -> None:
        """Stop welcoming, let running exchanges end within the grace, end the rest, write the last records."""
        grace_s = self._settings.config.timeouts.grace if grace_s is None else grace_s
        hands_over = self._is_followed(self._data.inodes)
        self._door.hands_over, self._door.is_stopping = hands_over, True
        await self._yield_admin()
        await self._data.stop(grace_s, hands_over=hands_over)
        await self._end()

    def reload(self) -> list[str]:
        """Read the file again; all or nothing. The problems that kept the running configuration, if any."""
        problems: list[str] = []
        try:
            settings = self._read()
            prepared = self._data.prepare(settings)
        except REFUSALS as error:
            problems = problems_of(error, self._settings.source_path)
        else:
            # Nothing here can fail: the new generation is in force as a whole.
            self._settings = prepared.settings
            self._data.adopt(prepared)
            self.observer.apply(settings)
        return self._note_reload(problems)

    async def synced(self) -> None:
        """One process knows all at once."""

    @property
    def counters(self) -> Counters:
        """All that the edge counts."""
        return self._data.counters

    @property
    def port(self) -> int:
        """The data port listened on."""
        return self._data.port

    @property
    def is_stopping(self) -> bool:
        """True once `stop` was called."""
        return self._door.is_stopping

    @property
    def _router(self) -> Router:
        return self._listener.generation.router
