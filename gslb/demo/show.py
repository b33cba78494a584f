"""The show: the story played on the stage before the crowd, once, with whoever wants to look at it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from gslb.demo.clients import Client
from gslb.demo.crowd import Crowd
from gslb.demo.stage import MakeEdge, Stage
from gslb.demo.story import Phase, tell
from gslb.demo.tally import Outage, Tally
from gslb.demo.world import SITES

_FRAME_S = 0.25


@dataclass(frozen=True, slots=True)
class Scene:
    """What can be seen at one moment. `elapsed_s` is 0 when the story begins; `spillover` counts finished
    requests by (home, served, reason), as the edge does."""

    elapsed_s: float
    duration_s: float
    phases: tuple[Phase, ...]
    phase: Phase
    tally: Tally
    open_requests: int
    loads: Mapping[str, tuple[int, int, int]]
    spillover: Mapping[tuple[str, str, str], int]


@dataclass(frozen=True, slots=True)
class Audience:
    """Who looks on: `on_phase` hears of every new phase, `on_frame` sees four scenes a second."""

    on_phase: Callable[[Phase], None] = lambda _phase: None
    on_frame: Callable[[Scene], None] = lambda _scene: None


@dataclass(frozen=True, slots=True)
class Result:
    """How it ended. `duration_s` is how long it took, `was_stopped` whether somebody had enough before the end."""

    duration_s: float
    tally: Tally
    spillover: Mapping[tuple[str, str, str], int]
    was_stopped: bool


class Show:
    """One performance of `duration_s` seconds. Raises ValueError when that is too short."""

    def __init__(self, make_edge: MakeEdge, duration_s: float, seed: int, audience: Audience) -> None:
        self._phases = tell(duration_s)
        self._duration_s = duration_s
        self._dice = Random(seed)
        self._stage = Stage(make_edge, seed)
        self._audience = audience
        self._started_s = 0.0

    async def play(self, stop: asyncio.Event) -> Result:
        """Play to the end, or until `stop` is set; then all is cleaned up. Raises OSError without free ports."""
        try:
            await self._stage.start()
            return await self._play(stop)
        finally:
            await self._stage.stop()

    async def _play(self, stop: asyncio.Event) -> Result:
        loop = asyncio.get_running_loop()
        killed = next(phase.kills for phase in self._phases if phase.kills)
        tally = Tally(self._stage.homes(), Outage(killed))
        self._started_s = loop.time()
        crowd = Crowd(Client("127.0.0.1", self._stage.edge.port, self._now_s), tally, self._dice)
        crowd.phase = self._phases[0]
        try:
            async with asyncio.TaskGroup() as group:
                told = group.create_task(self._tell(crowd, tally))
                others = [
                    group.create_task(crowd.ask_on()),
                    group.create_task(self._show(crowd, tally)),
                    group.create_task(_cancel_when(stop, told)),
                ]
                told.add_done_callback(lambda _told: [task.cancel() for task in others])
        finally:
            await crowd.leave()
        spillover = dict(self._stage.edge.counters.spillover)
        return Result(self._now_s(), tally, spillover, was_stopped=told.cancelled())

    async def _tell(self, crowd: Crowd, tally: Tally) -> None:
        """The story, phase by phase, to the last answer."""
        for phase in self._phases:
            await asyncio.sleep(phase.starts_s - self._now_s())
            crowd.phase = phase
            self._audience.on_phase(phase)
            if phase.kills is not None:
                tally.outage.started_s = self._now_s()
                self._stage.kill(phase.kills)
            if phase.revives is not None:
                await self._stage.revive(phase.revives)
                tally.outage.ended_s = self._now_s()
        await asyncio.sleep(self._duration_s - self._now_s())
        crowd.phase = None
        await crowd.finish()

    async def _show(self, crowd: Crowd, tally: Tally) -> None:
        while True:
            self._audience.on_frame(self._scene(crowd, tally))
            await asyncio.sleep(_FRAME_S)

    def _scene(self, crowd: Crowd, tally: Tally) -> Scene:
        return Scene(
            elapsed_s=self._now_s(),
            duration_s=self._duration_s,
            phases=self._phases,
            phase=crowd.phase or self._phases[-1],
            tally=tally,
            open_requests=crowd.open,
            loads={name: self._stage.load_of(name) for name in (site.name for site in SITES)},
            spillover=self._stage.edge.counters.spillover,
        )

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time() - self._started_s


async def _cancel_when(stop: asyncio.Event, task: asyncio.Task[None]) -> None:
    await stop.wait()
    task.cancel()
