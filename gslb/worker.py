"""A worker: the data path in a process of its own, told everything by its supervisor over a socket pair.

    hello -> start -> ready -> listen -> listening -> (known | prepare, adopt | sync)* -> stop -> end

What it is told comes in order, so an answer to `sync` means that all before it has been done. When the supervisor
is gone the worker drains and ends: it never runs alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import uvloop

from gslb.config.load import check_text
from gslb.config.problems import REFUSALS, problems_of
from gslb.config.settings import Settings
from gslb.counters import Counters
from gslb.policy.rate import Bucket
from gslb.proxy.data_path import DataPath, Prepared
from gslb.proxy.generation import health_marks
from gslb.routing.health import Outcome
from gslb.routing.load import InFlight
from gslb.routing.making import Making
from gslb.state.channel import Channel, Message
from gslb.state.counts import told_of
from gslb.state.fleet import FollowingView
from gslb.state.shared_memory import CONNECTIONS_ROW, SharedTable, bucket_key, tenant_key

_COUNTS_EVERY_S = 1.0
_LAST_WORDS_S = 1.0
SUPERVISORS_SIGNALS = frozenset((signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
"""Blocked from a worker's first instruction on until it ignores them."""


class Worker:
    """One worker's life. `run` returns its exit code."""

    def __init__(self) -> None:
        self._channel: Channel | None = None
        self._data: DataPath | None = None
        self._fleet: FollowingView | None = None
        self._prepared: Prepared | None = None
        self._counters = Counters()
        self._table: SharedTable | None = None
        self._column = 0
        self._rows: dict[str, int] = {}
        self._grace_s = 0.0
        self._path = ""
        self._ended = asyncio.Event()
        self._is_lost = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._hears: dict[str, Callable[..., None]] = {
            "start": self._start, "listen": self._listen, "known": self._know, "prepare": self._prepare,
            "adopt": self._adopt, "sync": self._sync, "stop": self._stop,
        }  # fmt: skip

    async def run(self, sock: socket.socket) -> int:
        """Do as told until the end."""
        self._channel = await Channel.open(sock, self._on_message, self._on_lost)
        self._say("hello")
        counting = asyncio.create_task(self._push_counts(), name="push counts")
        await self._ended.wait()
        counting.cancel()
        self._say("end", counts=self._counts())
        self._channel.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await self._is_lost.wait()
        return 0

    # --- the supervisor's words ---------------------------------------------------------------------

    def _on_message(self, message: Message) -> None:
        self._hears[message.pop("say")](**message)

    def _on_lost(self) -> None:
        """The supervisor has ended without a word: finish what runs, and end too. Or all has been said."""
        self._is_lost.set()
        if self._stopping is None:
            self._stop(grace_s=self._grace_s, hands_over=False)

    def _say(self, what: str, **members: Any) -> None:
        assert self._channel is not None
        self._channel.say(what, **members)

    def _start(
        self, column: int, columns: int, table_fd: int, path: str, text: str, rows: dict[str, int],
        known: dict[str, Any],
    ) -> None:  # fmt: skip
        self._path = path
        self._column = column
        self._table = SharedTable(table_fd, columns)
        self._table.close()
        try:
            settings = self._check(text)
            self._rows = rows
            fleet = self._fleet = FollowingView(health_marks(settings), self._own_load, self._tell_outcome)
            connections = self._table.load(CONNECTIONS_ROW, column)
            self._data = DataPath(
                settings, fleet, self._counters, connections, Making(Random()), _nothing, columns,
                self._tenant_load, self._bucket, self._table.waiting(column),
            )  # fmt: skip
        except REFUSALS as error:
            self._say("failed", problems=problems_of(error, path))
            self._ended.set()
            return
        self._grace_s = settings.config.timeouts.grace
        fleet.hear(known, is_all=True)
        self._data.start()
        self._say("ready")

    def _listen(self, address: str) -> None:
        self._run(self._open(address))

    async def _open(self, address: str) -> None:
        assert self._data is not None
        try:
            await self._data.listen(address)
        except OSError as error:
            self._say("failed", problems=[f"{error.strerror or error} ({address})"])
            self._ended.set()
        else:
            self._say("listening", inodes=self._data.inodes)

    def _know(self, known: dict[str, Any]) -> None:
        assert self._fleet is not None
        self._fleet.hear(known)

    def _prepare(self, number: int, text: str) -> None:
        assert self._data is not None
        problems: list[str] = []
        try:
            self._prepared = self._data.prepare(self._check(text))
        except REFUSALS as error:
            problems = problems_of(error, self._path)
        self._say("prepared", number=number, problems=problems)

    def _adopt(self, rows: dict[str, int], known: dict[str, Any]) -> None:
        assert self._data is not None
        assert self._fleet is not None
        assert self._prepared is not None
        prepared, self._prepared = self._prepared, None
        self._rows = rows
        self._data.adopt(prepared)
        self._grace_s = prepared.settings.config.timeouts.grace
        self._fleet.hear(known, is_all=True)

    def _counts(self) -> dict[str, Any]:
        if self._fleet is not None:
            self._fleet.tell_counts()
        return told_of(self._counters if self._data is None else self._data.counters)

    def _sync(self, number: int) -> None:
        self._say("synced", number=number, counts=self._counts())

    def _stop(self, grace_s: float, hands_over: bool) -> None:
        if self._stopping is None:
            self._stopping = self._run(self._drain(grace_s, hands_over))

    # --- doing it -----------------------------------------------------------------------------------

    def _check(self, text: str) -> Settings:
        return check_text(text, self._path, os.environ, Path(self._path).parent)

    def _own_load(self, key: str) -> InFlight:
        assert self._table is not None
        return self._table.load(self._rows[key], self._column)

    def _tenant_load(self, tenant: str) -> InFlight:
        return self._own_load(tenant_key(tenant))

    def _bucket(self, tenant: str, counts: str) -> Bucket:
        assert self._table is not None
        return self._table.bucket(self._rows[bucket_key(tenant, counts)], self._column)

    def _tell_outcome(self, key: str, outcome: Outcome, now_s: float, why: str, count: int) -> None:
        # What an upstream says may hold what JSON cannot: half of a surrogate pair.
        why = why.encode("utf-8", "replace").decode()
        self._say("outcome", key=key, outcome=outcome.value, now_s=now_s, why=why, count=count)

    async def _push_counts(self) -> None:
        """Tell the counts regularly, so that little is lost with a worker that is killed."""
        while True:
            await asyncio.sleep(_COUNTS_EVERY_S)
            seen = {} if self._fleet is None else self._fleet.take_seen()
            self._say("counts", counts=self._counts(), seen=seen)

    async def _drain(self, grace_s: float, hands_over: bool) -> None:
        if self._data is not None:
            await self._data.stop(grace_s, hands_over=hands_over)
        self._ended.set()

    def _run(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _nothing(_key: str) -> None:
    """Whether an endpoint is in doubt is judged by the supervisor, which has the observer."""


async def _run(descriptor: int) -> int:
    return await Worker().run(socket.socket(fileno=descriptor))


def main() -> None:
    """`python -m gslb.worker FD`: FD is this side's end of the supervisor's socket pair."""
    # A terminal's Ctrl-C and a service manager's SIGTERM go to every process; what they mean the supervisor says.
    for number in SUPERVISORS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SUPERVISORS_SIGNALS)
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format=f"%(asctime)s %(levelname)s worker {os.getpid()}: %(message)s",
    )
    sys.exit(uvloop.run(_run(int(sys.argv[1]))))


if __name__ == "__main__":
    main()
