"""The access log: one JSON line per exchange, written in batches so that a request costs no system call."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import orjson

_FLUSH_S = 0.2
_FLUSH_BYTES = 64 * 1024


class AccessLog:
    """Appends lines to a file descriptor. `target`: stdout, stderr, off, or a path.

    Raises OSError when a path cannot be opened for appending. A log that can no longer be written drops lines
    (counted in `dropped`): requests matter more.
    """

    def __init__(self, target: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lines: list[bytes] = []
        self._size_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._owns_descriptor = target not in ("stdout", "stderr", "off")
        self.is_on = target != "off"
        self.dropped = 0
        self._descriptor = -1
        if self._owns_descriptor:
            self._descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        elif self.is_on:
            self._descriptor = (sys.stdout if target == "stdout" else sys.stderr).fileno()

    def write(self, record: dict[str, Any]) -> None:
        """Queue one record."""
        line = orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
        self._lines.append(line)
        self._size_bytes += len(line)
        if self._size_bytes >= _FLUSH_BYTES:
            self.flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(_FLUSH_S, self.flush)

    def flush(self) -> None:
        """Write what is queued."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lines, self._lines, self._size_bytes = self._lines, [], 0
        data = memoryview(b"".join(lines))
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:
            self.dropped += len(lines)

    def close(self) -> None:
        """Write the rest and close what was opened here."""
        if self.is_on:
            self.flush()
        if self._owns_descriptor and self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
