"""What the workers of one edge count together: a table in anonymous memory.

A row per endpoint, a column per worker; a cell holds three 64-bit integers (requests, pending prompt tokens, since
when the first of these is prefilled) and has one writer, its worker, so that nothing is ever locked and a worker
that dies leaves a wrong count only in its own column, which the supervisor then clears. Reading a count sums its
row.

Rows from ROWS on are the buckets of limits per time (`policy.rate`). What a worker has taken from one stays taken
when it dies.

The memory has no name: it goes with the last process that has it mapped, also after SIGKILL.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from math import inf
from threading import Lock
from typing import Final

from gslb.policy.rate import Bucket
from gslb.routing.load import Ticket

ROWS: Final = 8192
"""Endpoints, tenants and regions at once, and two rows of the workers' own; and as many buckets. Pages never
touched take no memory."""
CONNECTIONS_ROW: Final = 0
WAITING_ROW: Final = 1
_OWN_ROWS = frozenset((CONNECTIONS_ROW, WAITING_ROW))
_CELL_BYTES: Final = 8
_FIELDS: Final = 3
_BUCKET: Final = "bucket"


def tenant_key(tenant: str) -> str:
    """The key of the row where a tenant's requests are counted; no endpoint's key has a blank."""
    return f"tenant {tenant}"


def bucket_key(tenant: str, counts: str) -> str:
    """The key of the row where a tenant's bucket is kept."""
    return f"{_BUCKET} {counts} {tenant}"


def _is_bucket(key: str) -> bool:
    return key.startswith(f"{_BUCKET} ")


class TableFull(Exception):
    """More endpoints than the table has rows; the message says what to do."""


class SharedTable:
    """The table, mapped into this process. `fd` is what another process attaches by."""

    def __init__(self, fd: int, columns: int) -> None:
        """Map the memory behind `fd`. Raises OSError or ValueError when it is no table of that many columns."""
        self.fd = fd
        self.columns = columns
        self._cells = memoryview(mmap.mmap(fd, _size_bytes(columns))).cast("q")
        # Nobody contends for it: taking it is the strongest memory barrier Python offers; see `SharedLoad`.
        self.barrier = Lock()

    @classmethod
    def create(cls, columns: int) -> SharedTable:
        """A new table, all zero. Raises OSError where the system has no anonymous shared memory (memfd)."""
        if not hasattr(os, "memfd_create"):
            raise OSError("several workers need Linux's memfd_create: set `workers: 1`")
        fd = os.memfd_create("gslb-counts")
        os.ftruncate(fd, _size_bytes(columns))
        return cls(fd, columns)

    def load(self, row: int, column: int | None = None) -> SharedLoad:
        """The counts of `row`, written in `column`; None: only to be read here."""
        requests, tokens, since_us = self._fields(row)
        return SharedLoad(requests, tokens, since_us, column, self.barrier)

    def bucket(self, row: int, column: int) -> Bucket:
        """The bucket of `row`, written in `column`."""
        taken, full, _ = self._fields(row)
        return Bucket(taken, full, column, self.barrier)

    def waiting(self, column: int) -> SharedWaiting:
        """Since when requests wait, told in `column`."""
        return SharedWaiting(self._fields(WAITING_ROW)[0], column)

    def clear_column(self, column: int) -> None:
        """Forget what a worker had under way. Only once that worker is gone."""
        cells = self._cells
        step = self.columns
        for i in range(column, ROWS * _FIELDS * step, step):
            if cells[i]:
                cells[i] = 0

    def clear_row(self, row: int) -> None:
        """Make all of `row` zero. Only where no worker writes."""
        for field in self._fields(row):
            for i in range(self.columns):
                field[i] = 0

    def is_idle(self, row: int) -> bool:
        """True when no worker has anything under way in `row`; nobody ever has in a bucket's."""
        requests, tokens, _ = self._fields(row)
        return row >= ROWS or not (any(requests) or any(tokens))

    def _fields(self, row: int) -> tuple[memoryview, memoryview, memoryview]:
        """All workers' cells of `row`, field by field."""
        columns = self.columns
        first = row * columns * _FIELDS
        second, third, end = first + columns, first + 2 * columns, first + 3 * columns
        return self._cells[first:second], self._cells[second:third], self._cells[third:end]

    def close(self) -> None:
        """Close the descriptor; the memory stays mapped as long as a count of it is in use here."""
        os.close(self.fd)


def _size_bytes(columns: int) -> int:
    return 2 * ROWS * columns * _FIELDS * _CELL_BYTES


class SharedLoad:
    """An endpoint's own load over all workers (a `routing.load.InFlight`)."""

    __slots__ = ("_barrier", "_column", "_requests", "_since_us", "_tokens")

    def __init__(
        self, requests: memoryview, tokens: memoryview, since_us: memoryview, column: int | None, barrier: Lock
    ) -> None:
        self._requests = requests
        self._tokens = tokens
        self._since_us = since_us
        self._column = column
        self._barrier = barrier

    @property
    def requests(self) -> int:
        """Requests under way, all workers' together."""
        return sum(self._requests)

    @property
    def pending_tokens(self) -> int:
        """Prompt tokens of those without a first token, all workers' together."""
        return sum(self._tokens)

    @property
    def prefill_since_s(self) -> float:
        """When the first of the pending prompts got its turn, as far as all workers have seen."""
        return max(self._since_us) / 1e6

    def add(self, requests: int, pending_tokens: int) -> None:
        """Change this worker's counts. Only where a column was given."""
        assert self._column is not None, "these counts are another process's"
        self._requests[self._column] += requests
        self._tokens[self._column] += pending_tokens

    def prefilled(self, pending_tokens: int, now_s: float) -> None:
        """A prompt of this worker's is done that had so many."""
        self.add(0, -pending_tokens)
        assert self._column is not None
        self._since_us[self._column] = int(now_s * 1e6)

    def open_ticket(self, uncached_tokens: int, capacity: int | None = None, now_s: float = 0.0) -> Ticket | None:
        """Count one more request; None, and nothing counted, when that would be more than `capacity`.

        First this worker counts itself in, then it looks at the sum and steps back when that is too much. Of two
        workers that go for the last place at least one sees the other, so the capacity is never exceeded; both may
        step back, and then each decides again.
        """
        if uncached_tokens and self._column is not None and not any(self._tokens):
            self._since_us[self._column] = int(now_s * 1e6)
        self.add(1, uncached_tokens)
        if capacity is not None:
            # The own count must be seen by the others before theirs are read: a store, then a load of something
            # else, which processors may swap. A lock's atomic instruction is a full barrier on x86; on ARM it
            # orders less, but a store is out long before the interpreter has come to the load.
            with self._barrier:
                pass
            if sum(self._requests) > capacity:
                self.add(-1, -uncached_tokens)
                return None
        return Ticket(self, uncached_tokens)


class SharedWaiting:
    """Since when each worker's longest held request waits (`proxy.holding.OtherWorkers`). A cell holds monotonic
    microseconds, which are the same in all processes of a machine; 0: nothing is held."""

    __slots__ = ("_column", "_since_us")

    def __init__(self, since_us: memoryview, column: int) -> None:
        self._since_us = since_us
        self._column = column

    def tell(self, since_s: float) -> None:
        """This worker's has waited since then (inf: it holds none)."""
        self._since_us[self._column] = 0 if since_s == inf else int(since_s * 1e6)

    def since_s(self) -> float:
        """Since when the longest held of all other workers' requests waits; inf: they hold none."""
        told = (since_us for i, since_us in enumerate(self._since_us) if since_us and i != self._column)
        return min(told, default=inf) / 1e6


class Rows:
    """Which row counts for which endpoint key: given by the supervisor, kept as long as the key is in use.

    A configuration is tried first: `assign` changes nothing until `adopt`.
    """

    def __init__(self, table: SharedTable) -> None:
        self._table = table
        self._rows: dict[str, int] = {}
        self._leaving: dict[str, int] = {}
        """Rows of endpoints that a reload removed: their last answers may still run."""

    def assign(self, keys: Iterable[str]) -> dict[str, int]:
        """A row for each key: the one it has or had, else one that nobody counts in. Raises TableFull."""
        for key, row in list(self._leaving.items()):
            if self._table.is_idle(row):
                del self._leaving[key]
        wanted = dict.fromkeys(keys)
        taken = {*_OWN_ROWS, *self._rows.values(), *self._leaving.values()}
        free = (row for row in range(ROWS) if row not in taken)
        free_buckets = (row for row in range(ROWS, 2 * ROWS) if row not in taken)
        rows = {key: row for key, row in {**self._leaving, **self._rows}.items() if key in wanted}
        for key in wanted:
            if key in rows:
                continue
            if (unused := next(free_buckets if _is_bucket(key) else free, None)) is None:
                raise TableFull(
                    f"{len(wanted)} endpoints, tenants, regions and rates, and {len(taken) - len(_OWN_ROWS)} "
                    f"counted already: workers share {ROWS - len(_OWN_ROWS)} counts and {ROWS} rates. Wait for "
                    "answers of removed endpoints to end, restart, or set `workers: 1`"
                )
            rows[key] = unused
        return rows

    def adopt(self, rows: dict[str, int]) -> None:
        """`rows` (of `assign`) are in force."""
        for key, row in rows.items():
            if _is_bucket(key) and key not in self._rows:
                self._table.clear_row(row)  # it may have been another tenant's
        self._leaving.update({key: row for key, row in self._rows.items() if key not in rows})
        for key in rows:
            self._leaving.pop(key, None)
        self._rows = rows
