"""Policies times seeds, each a run of its own, on as many processes as there are CPUs.

A process makes the world once and runs what it is handed, one after another; the parent hands out and collects.
Ctrl-C is the parent's alone: it asks the processes for what they have, and returns it.
"""

from __future__ import annotations

import gc
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType

from gslb.config.scenario import CheckedScenario
from gslb.sim.result import RunResult
from gslb.sim.setting import Setting
from gslb.simulate.setting import rules_for, setting_of

RunWorld = Callable[[Setting, str, int, Callable[[], float], Callable[[float], bool]], RunResult]
"""`sim.world.run`: setting, policy, seed, a clock of CPU seconds, and what is called with the share (0..1) that is
done and answers whether to go on."""

_PATIENCE_S = 5.0
"""How long processes may take to hand over what they have after Ctrl-C."""
_LOOK_S = 0.2


class RunFailed(Exception):
    """A run ended in an error of the simulator itself; the text is its traceback."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run."""

    policy: str
    seed: int
    load: float | None = None
    """Share of capacity that is asked; None: what the scenario says."""
    without: frozenset[str] = frozenset()
    """Parts of gslb that are taken away (`gslb.sim.parts`)."""


@dataclass(frozen=True)
class Trial:
    """What all runs share. It must be picklable: `run` is a module's function, and the world is made from the
    scenario in each process."""

    checked: CheckedScenario
    run: RunWorld
    trace: Path | None = None

    def setting(self, load: float | None = None) -> Setting:
        """The world at a load. Raises what `setting_of` raises."""
        return setting_of(self.checked, self.trace, load)


class _Runner:
    """Runs jobs of a trial in this process."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._settings: dict[float | None, Setting] = {}

    def run(self, job: Job, on_progress: Callable[[float], bool]) -> RunResult:
        setting = self._settings.get(job.load)
        if setting is None:
            setting = self._settings[job.load] = self._trial.setting(job.load)
        ruled = replace(setting, rules=rules_for(self._trial.checked, job.policy), without=job.without)
        with _no_garbage():
            result = self._trial.run(ruled, job.policy, job.seed, time.process_time, on_progress)
        result.load = job.load
        return result


@contextmanager
def _no_garbage() -> Iterator[None]:
    """A run leaves no cycles of objects behind; looking for them over and over costs it a tenth of its time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Interrupt:
    """Whether Ctrl-C was pressed. The second time raises KeyboardInterrupt as usual."""

    def __init__(self) -> None:
        self.is_set = False

    def on_signal(self, _number: int, _frame: FrameType | None) -> None:
        """The handler of SIGINT."""
        if self.is_set:
            raise KeyboardInterrupt
        self.is_set = True


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """While this lasts Ctrl-C is noted instead of ending the program."""
    interrupt = Interrupt()
    before = signal.signal(signal.SIGINT, interrupt.on_signal)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)


OnProgress = Callable[[int, float], None]
"""Called with a job's index and the share (0..1) of it that is done."""


def run_all(
    trial: Trial, jobs: Sequence[Job], processes: int, on_progress: OnProgress, interrupt: Interrupt
) -> list[RunResult]:
    """Every job's result in the order of `jobs`; after an interrupt those that are done and what there is of those
    under way. Raises RunFailed."""
    if processes == 1 or len(jobs) == 1:
        return _run_here(trial, jobs, on_progress, interrupt)
    return _Crew(trial, jobs, on_progress, interrupt).work(min(processes, len(jobs)))


def _run_here(trial: Trial, jobs: Sequence[Job], on_progress: OnProgress, interrupt: Interrupt) -> list[RunResult]:
    runner = _Runner(trial)
    results = []
    for index, job in enumerate(jobs):
        if interrupt.is_set:
            break

        def tell(share: float, index: int = index) -> bool:
            on_progress(index, share)
            return not interrupt.is_set

        results.append(runner.run(job, tell))
        on_progress(index, 1.0)
    return results


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    pipe: Connection
    job: int | None = None


class _Crew:
    """The processes of one `run_all`."""

    def __init__(self, trial: Trial, jobs: Sequence[Job], on_progress: OnProgress, interrupt: Interrupt) -> None:
        self._trial = trial
        self._jobs = jobs
        self._on_progress = on_progress
        self._interrupt = interrupt
        self._next = 0
        self._results: dict[int, RunResult] = {}
        self._workers: dict[Connection, _Worker] = {}

    def work(self, processes: int) -> list[RunResult]:
        """Run everything on so many processes."""
        try:
            for _ in range(processes):
                self._hand_out(self._hire())
            while self._workers and not self._interrupt.is_set:
                self._listen(_LOOK_S)
            self._collect()
        except KeyboardInterrupt:
            pass  # the second Ctrl-C: what is there must do
        finally:
            for worker in self._workers.values():
                worker.process.kill()
                worker.process.join()
        return [self._results[index] for index in sorted(self._results)]

    def _hire(self) -> _Worker:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, self._trial), daemon=True)
        with _deaf():
            process.start()
        theirs.close()
        worker = self._workers[ours] = _Worker(process, ours)
        return worker

    def _hand_out(self, worker: _Worker) -> None:
        """Give `worker` the next job, or let it go when there is none."""
        if self._next == len(self._jobs) or self._interrupt.is_set:
            worker.pipe.close()
            del self._workers[worker.pipe]
            worker.process.join()
            return
        worker.job = self._next
        self._next += 1
        worker.pipe.send(self._jobs[worker.job])

    def _listen(self, timeout_s: float) -> None:
        for pipe in wait(list(self._workers), timeout_s):
            assert isinstance(pipe, Connection)
            worker = self._workers[pipe]
            assert worker.job is not None
            try:
                told = pipe.recv()
            except (EOFError, ConnectionResetError):  # reset: it has not even read its job
                worker.process.join()
                code = worker.process.exitcode
                raise RunFailed(f"a process of the simulation ended by itself, with exit code {code}") from None
            if isinstance(told, RunResult):
                self._results[worker.job] = told
                self._on_progress(worker.job, 1.0)
                self._hand_out(worker)
            elif isinstance(told, str):
                raise RunFailed(told)
            else:
                self._on_progress(worker.job, told)

    def _collect(self) -> None:
        """Ask those under way for what they have."""
        for worker in self._workers.values():
            worker.pipe.send(None)
        deadline_s = time.monotonic() + _PATIENCE_S
        while self._workers and time.monotonic() < deadline_s:
            self._listen(_LOOK_S)


@contextmanager
def _deaf() -> Iterator[None]:
    """Processes started meanwhile ignore Ctrl-C from their first instruction on: a terminal sends it to all."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _serve(pipe: Connection, trial: Trial) -> None:
    """A worker process: jobs come in, shares done and results go out. Anything that comes in during a run means
    that it shall stop."""
    try:
        runner = _Runner(trial)

        def tell(share: float) -> bool:
            pipe.send(share)
            return not pipe.poll()

        while (job := pipe.recv()) is not None:
            pipe.send(runner.run(job, tell))
    except (EOFError, BrokenPipeError):
        pass  # the parent has no more jobs, or is gone
    except Exception:
        pipe.send(traceback.format_exc())
