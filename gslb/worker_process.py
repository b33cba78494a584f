"""One worker as its supervisor sees it: a process, a channel, and what it last told."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gslb.state.channel import Channel, Message, line_of
from gslb.worker import SUPERVISORS_SIGNALS

Told = dict[str, Any]

_EXIT_S, _LOOK_S = 3.0, 0.01
_UP_S = 60.0
"""An interpreter and its imports take less than a second, on a machine that has time for them."""


class WorkerGone(Exception):
    """The worker has ended, or does not answer. `problems`: why, where it said so."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems) or "the worker has ended")
        self.problems = problems


class WorkerProcess:
    """A running worker. `column` is its place in the shared table; `counts` what it counted when it last told.
    `on_outcome` hears how attempts ended, `on_seen` what they taught."""

    def __init__(self, column: int, on_outcome: Callable[[Told], None], on_seen: Callable[[Told], None]) -> None:
        self.column = column
        self.pid = 0
        self.started_s = time.time()
        self.counts: Told = {}
        self.inodes: list[int] = []
        self.is_listening = False
        self.problems: list[str] = []
        self._on_outcome = on_outcome
        self._on_seen = on_seen
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._is_up = asyncio.Event()
        self._is_lost = asyncio.Event()
        self._numbers = 0
        self._awaited: dict[object, asyncio.Future[Told]] = {}

    async def spawn(self, environ: Mapping[str, str], table_fd: int) -> None:
        """Start the process, in a fresh interpreter, and wait until it listens to what it is told.

        Raises OSError when the system cannot start it, WorkerGone when it does not come up.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            # The child inherits what is blocked here; the loop's own way to start processes would undo that.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, SUPERVISORS_SIGNALS)
            try:
                self._process = subprocess.Popen(  # noqa: ASYNC220 (it returns at once)
                    [sys.executable, "-P", "-m", "gslb.worker", str(theirs.fileno())],
                    stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(), table_fd),
                    env={**environ, **_import_path(environ)},
                )  # fmt: skip
            except BaseException:
                ours.close()
                raise
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.pid = self._process.pid
        try:
            self._channel = await Channel.open(ours, self._on_message, self._on_lost)
        except BaseException:
            ours.close()
            self._is_lost.set()
            raise
        try:
            async with asyncio.timeout(_UP_S):
                await self._is_up.wait()
        except TimeoutError:
            raise WorkerGone([f"worker {self.pid} has not come up within {_UP_S:g} s"]) from None

    async def ended(self) -> int:
        """Wait for the process's end; returns its exit code, negative for a signal.

        The end of its channel tells, which is why one that has lost it for long is ended.
        """
        assert self._process is not None
        await self._is_lost.wait()
        for _ in range(round(_EXIT_S / _LOOK_S)):
            if self._process.poll() is not None:
                break
            await asyncio.sleep(_LOOK_S)
        self.kill()
        return self._process.wait()

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()

    # --- talking ------------------------------------------------------------------------------------

    def tell(self, what: str, **members: Any) -> None:
        """Say something that needs no answer. A worker that has read nothing for very long is ended."""
        self.send(line_of(what, **members))

    def send(self, line: bytes) -> None:
        """The same for a message made for several workers."""
        if self._channel is not None and not self._channel.send(line):
            self.kill()

    async def ask(self, what: str, answer: str, timeout_s: float, **members: Any) -> Told:
        """Say something and wait for the message `answer`. Raises WorkerGone."""
        return await self._wait(answer, timeout_s, lambda: self.tell(what, **members))

    async def ask_numbered(self, what: str, timeout_s: float, **members: Any) -> Told:
        """The same with a number that the answer repeats, for questions that may overlap."""
        self._numbers += 1
        number = self._numbers
        return await self._wait(number, timeout_s, lambda: self.tell(what, number=number, **members))

    async def _wait(self, awaited: object, timeout_s: float, say: Callable[[], None]) -> Told:
        if self._channel is None:
            raise WorkerGone(self.problems)
        future: asyncio.Future[Told] = asyncio.get_running_loop().create_future()
        self._awaited[awaited] = future
        try:
            say()
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise WorkerGone([f"worker {self.pid} has not answered for {timeout_s:g} s"]) from None
        finally:
            self._awaited.pop(awaited, None)

    # --- what it says -------------------------------------------------------------------------------

    def _on_message(self, message: Message) -> None:
        what = message.pop("say")
        if "counts" in message:
            self.counts = message["counts"]
        if what == "hello":
            self._is_up.set()
        elif what == "outcome":
            self._on_outcome(message)
        elif what == "counts":
            self._on_seen(message["seen"])
        elif what == "failed":
            self.problems = message["problems"]
            self._give_up()
        elif what == "listening":
            self.is_listening = True
            self.inodes = message["inodes"]
        future = self._awaited.get(message.get("number", what))
        if future is not None and not future.done():
            future.set_result(message)

    def _on_lost(self) -> None:
        self._channel = None
        self._is_up.set()
        self._is_lost.set()
        self._give_up()

    def _give_up(self) -> None:
        for future in self._awaited.values():
            if not future.done():
                future.set_exception(WorkerGone(self.problems))


def _import_path(environ: Mapping[str, str]) -> dict[str, str]:
    """What lets a worker import the same gslb as this process. An installed one it finds by itself; the working
    directory is no place to import from."""
    root = str(Path(__file__).resolve().parents[1])
    if root in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return {}
    others = environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join((root, others)) if others else root}
