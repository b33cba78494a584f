"""The edge of several processes: one control plane here, the data path in workers that share the listening port.

    supervisor: observer, admin API, signals, health of endpoints        floor of truth
       |  socket pair each: configuration, what is known -> ; <- outcomes, counts
    worker, worker, ...: the data path                                   in-flight counts in one shared table

A worker that dies is replaced; its column of the table is cleared first, so that only its own requests are lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Coroutine, Mapping
from random import Random
from typing import Any

from gslb.config.fields import split_host_port
from gslb.config.problems import REFUSALS, problems_of
from gslb.config.settings import Settings
from gslb.control import ControlPlane, log
from gslb.counters import Counters
from gslb.proxy.generation import health_marks, routing_rules
from gslb.proxy.handover import HANDSHAKE_S
from gslb.routing.health import Outcome
from gslb.routing.learn import Moments
from gslb.routing.load import InFlight, guests_key
from gslb.routing.router import Router
from gslb.state import counts
from gslb.state.channel import line_of
from gslb.state.fleet import LeadingView, changes, told_of
from gslb.state.shared_memory import Rows, SharedTable, TableFull, bucket_key, tenant_key
from gslb.worker_process import Told, WorkerGone, WorkerProcess

_READY_S = 60.0
_PREPARE_S = 30.0
_SYNC_S = 2.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
"""Before a worker is replaced that died soon after its start: doubled each time."""
_SOON_S = 30.0
_LEAVE_S = 3.0
"""What a worker gets beyond the grace to write its last records."""


class StartFailed(Exception):
    """The edge cannot start; the message says why."""


class Supervisor(ControlPlane):
    """One gslb of several processes. Build it inside the event loop that runs it."""

    def __init__(
        self, settings: Settings, environ: Mapping[str, str], workers: int, dice: Random | None = None
    ) -> None:
        """Raises OSError where shared memory cannot be had, TableFull for too many endpoints."""
        self._loop = asyncio.get_running_loop()
        self._dice = dice or Random()
        self._table = SharedTable.create(workers)
        self._rows = Rows(self._table)
        self._rows_now = self._rows.assign(_counted(settings))
        self._rows.adopt(self._rows_now)
        self._changed: set[str] = set()
        self._told: dict[str, Told] = {}
        self._workers: dict[int, WorkerProcess] = {}
        self._departed = Counters()
        self._keepers: list[asyncio.Task[None]] = []
        self._tasks: set[asyncio.Task[list[str]]] = set()
        self._configuring = asyncio.Lock()
        self._reserved: socket.socket | None = None
        self._address = settings.config.listen
        self._is_stopping = False
        self.restarts = 0
        marks = health_marks(settings)
        fleet = LeadingView(marks, own_load_of=self._own_load, on_change=self._on_change, dice=self._dice)
        fleet.configure(settings.endpoints, marks)
        super().__init__(settings, environ, fleet, self._dice)
        self._explainer = self._router_of(settings)

    # --- life ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the workers and observe the fleet, then let them listen.

        Raises StartFailed when a worker cannot, OSError for the admin address.
        """
        try:
            self._reserve_port()
            async with self._configuring:
                first = (self._start_worker(column) for column in range(self._table.columns))
                await _all_of(self._observe_first(), *first)
                workers = list(self._workers.values())
                await _all_of(*(self._let_listen(worker) for worker in workers))
            self._keepers = [
                asyncio.create_task(self._keep(worker), name=f"worker {worker.column}") for worker in workers
            ]
            await self._welcome(self._inodes())
        except (OSError, WorkerGone) as error:
            await self.stop(0)
            if isinstance(error, WorkerGone):
                raise StartFailed(str(error)) from error
            raise

    async def stop(self, grace_s: float | None = None) -> None:
        """Let every worker stop as an edge of one process does, then end."""
        grace_s = self._settings.config.timeouts.grace if grace_s is None else grace_s
        self._is_stopping = True
        for task in self._keepers:
            task.cancel()  # or one would replace a worker now, which nobody would tell to stop
        await asyncio.gather(*self._keepers, return_exceptions=True)
        hands_over = self._is_followed(self._inodes())
        await self._yield_admin()
        leaving = [asyncio.create_task(worker.ended()) for worker in self._workers.values()]
        for worker in self._workers.values():
            worker.tell("stop", grace_s=grace_s, hands_over=hands_over)
        if leaving:
            await asyncio.wait(leaving, timeout=grace_s + HANDSHAKE_S + _LEAVE_S)
        self.kill()
        await asyncio.gather(*leaving, return_exceptions=True)
        await self._end()
        if self._reserved is not None:
            self._reserved.close()
        self._table.close()

    def kill(self) -> None:
        """End all workers at once."""
        for worker in self._workers.values():
            worker.kill()

    def _reserve_port(self) -> None:
        """With port 0 the system chooses one, which all workers then share; it is held by a socket that is bound
        and never listens."""
        host, port = split_host_port(self._address)
        if port:
            return
        family, *_, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        self._reserved = socket.socket(family, socket.SOCK_STREAM)
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._reserved.bind(address)
        shown = f"[{host}]" if ":" in host else host
        self._address = f"{shown}:{self._reserved.getsockname()[1]}"

    # --- workers ------------------------------------------------------------------------------------

    async def _start_worker(self, column: int, *, alone: bool = False) -> WorkerProcess:
        """A worker that is ready to listen. `alone`: one that comes later, between configurations.

        Raises WorkerGone.
        """
        worker = WorkerProcess(column, self._on_outcome, self._on_seen)
        try:
            await worker.spawn(self._environ, self._table.fd)
            async with self._configuring if alone else contextlib.nullcontext():
                known = self._all_known()
                self._workers[column] = worker
                await worker.ask(
                    "start", "ready", _READY_S,
                    column=column, columns=self._table.columns, table_fd=self._table.fd,
                    path=self._settings.source_path, text=self._settings.source_text, rows=self._rows_now,
                    known=known,
                )  # fmt: skip
        except OSError as error:
            raise WorkerGone([f"a worker cannot be started: {error}"]) from error
        except BaseException:
            await self._bury(worker)
            raise
        return worker

    async def _let_listen(self, worker: WorkerProcess) -> None:
        await worker.ask("listen", "listening", _READY_S, address=self._address)

    async def _keep(self, worker: WorkerProcess) -> None:
        """Replace the worker whenever it ends, until this edge stops."""
        pause_s = 0.0
        while True:
            code = await worker.ended()
            await self._bury(worker)
            if self._is_stopping:
                return
            log.error("worker %d has ended (%s); it is replaced", worker.pid, _how(code))
            if time.time() - worker.started_s > _SOON_S:
                pause_s = 0.0
            worker, pause_s = await self._replace(worker.column, pause_s)

    async def _replace(self, column: int, pause_s: float) -> tuple[WorkerProcess, float]:
        """A new worker that listens, and the pause to make should it die soon."""
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(max(2 * pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            self.restarts += 1
            try:
                worker = await self._start_worker(column, alone=True)
                await self._let_listen(worker)
            except WorkerGone as gone:
                log.error("a worker could not be replaced, next try in %g s: %s", pause_s, gone)
                if column in self._workers:
                    await self._bury(self._workers[column])
            else:
                return worker, pause_s

    async def _bury(self, worker: WorkerProcess) -> None:
        """Make sure that a worker has ended; keep its counts, and release all that it had under way."""
        worker.kill()
        if worker.pid:
            await worker.ended()
        if self._workers.get(worker.column) is worker:
            del self._workers[worker.column]
            counts.add(self._departed, worker.counts, gauges=False)
            self._table.clear_column(worker.column)

    def _inodes(self) -> list[int]:
        return [inode for worker in self._workers.values() for inode in worker.inodes]

    # --- one knowledge ------------------------------------------------------------------------------

    def _own_load(self, key: str) -> InFlight:
        return self._table.load(self._rows_now[key])

    def _on_change(self, key: str) -> None:
        if not self._changed:
            self._loop.call_soon(self._flush)
        self._changed.add(key)

    def _flush(self) -> None:
        """Tell the workers what has changed."""
        changed, self._changed = self._changed, set()
        news: dict[str, Told] = {}
        for key in changed:
            known = self.fleet.known(key)
            if known is not None:
                told = told_of(known)
                news[key] = changes(self._told.get(key, {}), told)
                self._told[key] = told
        if news:
            line = line_of("known", known=news)
            for worker in self._workers.values():
                worker.send(line)

    def _all_known(self) -> dict[str, Told]:
        """All that is known now, which the workers have been told."""
        self._flush()
        self._told = {key: told_of(one) for key in self._rows_now if (one := self.fleet.known(key)) is not None}
        return self._told

    def _on_outcome(self, told: Told) -> None:
        key = told["key"]
        if self.fleet.outcome(key, Outcome(told["outcome"]), told["now_s"], told["why"], told["count"]):
            self.observer.probe_now(key)

    def _on_seen(self, seen: Told) -> None:
        for key, numbers in seen.items():
            self.fleet.learnt_elsewhere(key, Moments.from_told(numbers))

    async def synced(self) -> None:
        """Wait until the workers have done what they were told and have told their counts, two seconds at most."""
        self._flush()
        asked = (worker.ask_numbered("sync", _SYNC_S) for worker in list(self._workers.values()))
        await asyncio.gather(*asked, return_exceptions=True)

    # --- configurations -----------------------------------------------------------------------------

    def reload(self) -> asyncio.Task[list[str]]:
        """Read the file again; all workers or none. The problems that kept the running configuration, if any."""
        return self._run(self._reload())

    async def _reload(self) -> list[str]:
        async with self._configuring:
            try:
                settings = self._read()
                rows = self._rows.assign(_counted(settings))
                explainer = self._router_of(settings)
            except (*REFUSALS, TableFull) as error:
                problems = problems_of(error, self._settings.source_path)
            else:
                problems = await self._prepare_all(settings)
            if not problems:
                self._adopt(settings, rows, explainer)
                await self.synced()
            return self._note_reload(problems)

    async def _prepare_all(self, settings: Settings) -> list[str]:
        """Let every worker build the configuration from the same text; the problems, each once."""
        asked = [
            worker.ask_numbered("prepare", _PREPARE_S, text=settings.source_text)
            for worker in self._workers.values()
        ]
        problems: dict[str, None] = {}
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, WorkerGone):
                # One that has died is replaced after this, with what is then in force; one that hangs must not
                # be left behind.
                problems.update(dict.fromkeys(answer.problems))
            elif isinstance(answer, BaseException):
                raise answer
            else:
                problems.update(dict.fromkeys(answer["problems"]))
        return list(problems)

    def _adopt(self, settings: Settings, rows: dict[str, int], explainer: Router) -> None:
        self._rows.adopt(rows)
        self._rows_now = rows
        self._settings = settings
        self._explainer = explainer
        self.fleet.configure(settings.endpoints, health_marks(settings))
        known = self._all_known()
        for worker in self._workers.values():
            worker.tell("adopt", rows=rows, known=known)
        self.observer.apply(settings)

    def _router_of(self, settings: Settings) -> Router:
        return Router(routing_rules(settings), settings.residency.deny_reason, self._dice)

    def _run(self, work: Coroutine[Any, Any, list[str]]) -> asyncio.Task[list[str]]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- admin.AdminEdge ----------------------------------------------------------------------------

    @property
    def counters(self) -> Counters:
        """The sums over all workers, those that are gone included, and what is counted here."""
        total = Counters()
        total.config_generation = self._own_counters.config_generation
        total.config_reload_failures = self._own_counters.config_reload_failures
        for part in (self._own_counters, self._departed):
            counts.add(total, counts.told_of(part))
        for worker in self._workers.values():
            counts.add(total, worker.counts)
        return total

    @property
    def port(self) -> int:
        """The data port that all workers listen on."""
        return split_host_port(self._address)[1]

    @property
    def is_stopping(self) -> bool:
        """True once `stop` was called."""
        return self._is_stopping

    @property
    def _router(self) -> Router:
        return self._explainer

    def is_ready(self) -> tuple[bool, Mapping[str, Any]]:
        """As of one process; and at least one worker listens."""
        is_ready, detail = super().is_ready()
        if is_ready and not any(worker.is_listening for worker in self._workers.values()):
            return False, {"why": "no worker is running"}
        return is_ready, detail

    def status(self) -> Mapping[str, Any]:
        """What only the edge knows of itself, its workers included."""
        workers = [
            {
                "pid": worker.pid,
                "is_listening": worker.is_listening,
                "uptime_s": round(time.time() - worker.started_s, 1),
                **{gauge: worker.counts.get(gauge, 0) for gauge in counts.GAUGES},
            }
            for _, worker in sorted(self._workers.items())
        ]
        return {**super().status(), "workers": workers, "worker_restarts": self.restarts}


async def _all_of(*works: Coroutine[Any, Any, object]) -> None:
    """Wait until all have ended, however; then raise the first failure there was."""
    for answer in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(answer, BaseException):
            raise answer


def _counted(settings: Settings) -> list[str]:
    """What the workers count together: requests of each endpoint and each tenant, foreign ones of each region,
    what a tenant asks for per time."""
    tenants = settings.config.tenants
    endpoints = [endpoint.key for endpoint in settings.endpoints]
    guests = [guests_key(name) for name in settings.config.regions]
    buckets = [bucket_key(name, counts) for name, tenant in tenants.items() for counts in tenant.rate.amounts]
    return endpoints + [tenant_key(name) for name in tenants] + guests + buckets


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
