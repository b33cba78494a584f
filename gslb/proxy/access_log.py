"""The access log: one JSON line per exchange, formatted and written in batches.

A request notes values; lines are made of some dozens of them together. That spares the request a system call and
finds the formatting's code in the processor's caches. Much larger batches cost more again: their memory is given
back to the system and faulted in anew each time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import stat
import sys
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import orjson

_log = logging.getLogger("gslb")
_FLUSH_S: Final = 0.2
_FLUSH_RECORDS: Final = 32

Values = TypeVar("Values")


class AccessLog(Generic[Values]):
    """Appends lines to a file descriptor. `target`: stdout, stderr, off, or a path.

    Raises OSError when a path cannot be opened for appending. A log that can no longer be written drops lines
    (counted in `dropped`): requests matter more.
    """

    def __init__(
        self, target: str, loop: asyncio.AbstractEventLoop, format_record: Callable[[Values], dict[str, Any]]
    ) -> None:
        self._loop = loop
        self._format_record = format_record
        self._waiting: list[Values] = []
        self._timer: asyncio.TimerHandle | None = None
        self._owns_descriptor = target not in ("stdout", "stderr", "off")
        self.is_on = target != "off"
        self.dropped = 0
        self._descriptor = -1
        if self._owns_descriptor:
            self._descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        elif self.is_on:
            self._descriptor = (sys.stdout if target == "stdout" else sys.stderr).fileno()
        self._most_bytes = _atomic_bytes(self._descriptor)

    def write(self, values: Values) -> None:
        """Queue one record."""
        self._waiting.append(values)
        if len(self._waiting) >= _FLUSH_RECORDS:
            self.flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(_FLUSH_S, self.flush)

    def flush(self) -> None:
        """Format and write what is queued."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        lines = [orjson.dumps(self._format_record(values), option=orjson.OPT_APPEND_NEWLINE) for values in waiting]
        try:
            for piece in _pieces(lines, self._most_bytes):
                data = memoryview(piece)
                while data:
                    # On a line of its own: mypyc evaluates the bounds of a memoryview's slice twice.
                    written = os.write(self._descriptor, data)
                    data = data[written:]
        except OSError as error:
            if not self.dropped:
                _log.error("the access log cannot be written, lines are dropped and counted: %s", error.strerror)
            self.dropped += len(lines)

    def close(self) -> None:
        """Write the rest and close what was opened here."""
        if self.is_on:
            self.flush()
        if self._owns_descriptor and self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _atomic_bytes(descriptor: int) -> int:
    """How much one write may carry so that lines of several processes never mix.

    An appended write to a file is whole whatever its length; to a pipe only up to PIPE_BUF (POSIX write()), and no
    more is taken for granted of sockets and terminals.
    """
    is_file = descriptor < 0 or stat.S_ISREG(os.fstat(descriptor).st_mode)
    return sys.maxsize if is_file else select.PIPE_BUF


def _pieces(lines: list[bytes], most_bytes: int) -> list[bytes]:
    """The lines joined, as many as fit into `most_bytes` at a time; a longer one goes alone."""
    pieces: list[bytes] = []
    waiting: list[bytes] = []
    length = 0
    for line in lines:
        if waiting and length + len(line) > most_bytes:
            pieces.append(b"".join(waiting))
            waiting, length = [], 0
        waiting.append(line)
        length += len(line)
    if waiting:
        pieces.append(b"".join(waiting))
    return pieces
