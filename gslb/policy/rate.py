"""How much a client may ask for per time: buckets that refill evenly. Pure; time is an argument.

The generic cell rate algorithm (ITU-T I.371): a bucket is described by the moment from which it is full again.
Taking from it moves that moment on by what the amount takes to refill, and may be done as long as the moment then
lies no further ahead than a whole bucket takes to refill. No timer runs, nothing is counted per window, and how
long somebody has to wait is a subtraction.

Several processes may keep one bucket together. Each writes only cells of its own, and the moment is

    max(when each last found the bucket full, less all that was taken by then) + sum(all that each has taken)

with all amounts as nanoseconds of refill, so that a rate may change while the bucket lives on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

_LONGEST_NS = 10 * 366 * 86_400 * 10**9
"""Refills that take longer are as good as this one, and sums of them fit into 64 bits."""


@dataclass(frozen=True, slots=True)
class Rate:
    """`counts` (`requests` or `tokens`) refill one by one, each in `unit_ns`, in a bucket that holds `burst`."""

    counts: str
    unit_ns: int
    burst: int

    @staticmethod
    def of(counts: str, amount: int, per_s: float, burst: int | None = None) -> Rate:
        """`amount` per `per_s` seconds; without `burst` a bucket holds that much."""
        return Rate(counts, -(-round(per_s * 1e9) // amount), amount if burst is None else burst)

    def refill_ns(self, amount: int) -> int:
        """How long `amount` takes to refill."""
        return min(amount * self.unit_ns, _LONGEST_NS)


class Cells(Protocol):
    """Integers of 64 bits, one for each process that takes (a list, or memory that they share)."""

    def __iter__(self) -> Iterator[int]: ...
    def __getitem__(self, i: int, /) -> int: ...
    def __setitem__(self, i: int, value: int, /) -> None: ...


class Bucket:
    """One bucket: the cells of all who take from it, `column` being this process's own.

    `barrier` is entered between writing an own cell and reading those of the others, whose writes come before
    what they read.
    """

    __slots__ = ("_barrier", "_column", "_full", "_taken")

    def __init__(
        self,
        taken: Cells,
        full: Cells,
        column: int,
        barrier: AbstractContextManager[object],
    ) -> None:
        self._taken = taken
        self._full = full
        self._column = column
        self._barrier = barrier

    def full_at_ns(self) -> int:
        """The moment from which it is full; what is taken meanwhile moves it."""
        taken_ns = sum(self._taken)  # before the others: whoever takes has said first when it was full
        return taken_ns + max(self._full)

    def take(self, refill_ns: int, depth_ns: int, now_ns: int) -> int:
        """Take what refills in `refill_ns` from a bucket that refills in `depth_ns`; 0 when that is done, else how
        long until it can be.

        More than a bucket holds may be taken from a full one, which then is full again as much later. Of those
        that go for the last of it at the same moment at least one sees the others, so there is never more taken
        than there is; each may be told to wait.
        """
        taken_ns = sum(self._taken)
        if taken_ns + max(self._full) < now_ns:
            self._full[self._column] = now_ns - taken_ns
        self._taken[self._column] += refill_ns
        with self._barrier:
            pass
        wait_ns = self.full_at_ns() - now_ns - max(depth_ns, refill_ns)
        if wait_ns > 0:
            self._taken[self._column] -= refill_ns
        return max(0, wait_ns)

    def give_back(self, refill_ns: int) -> None:
        """Undo what was taken just now."""
        self._taken[self._column] -= refill_ns


def _own_bucket(_tenant: str, _counts: str) -> Bucket:
    return Bucket([0], [0], 0, nullcontext())


@dataclass(frozen=True, slots=True)
class Standing:
    """What is left of one rate: `remaining` of `limit`, and `reset_s` until all of it is there again."""

    counts: str
    limit: int
    remaining: int
    reset_s: float


@dataclass(frozen=True, slots=True)
class Taking:
    """How it went: `wait_s` is 0 when everything was taken; otherwise nothing was, `short` says of what there is
    too little, and after `wait_s` (whole milliseconds) there will be enough, if nobody else takes it."""

    standings: Sequence[Standing]
    wait_s: float = 0.0
    short: str = ""


class RateLimit:
    """The buckets of each tenant (by name, so that a reload empties or fills none)."""

    __slots__ = ("_bucket_of", "_buckets")

    def __init__(self, bucket_of: Callable[[str, str], Bucket] | None = None) -> None:
        """`bucket_of` finds the bucket of a tenant and of what it counts where several processes take from it."""
        self._bucket_of = bucket_of or _own_bucket
        self._buckets: dict[tuple[str, str], Bucket] = {}

    def take(self, tenant: str, rates: Sequence[Rate], tokens: int, now_s: float) -> Taking:
        """Take one request of `tokens` prompt tokens, at `now_s` seconds of a monotonic clock: of all rates or of
        none."""
        now_ns = round(now_s * 1e6) * 1000  # a clock's float is exact to the microsecond for longer than it runs
        done: list[tuple[Bucket, int]] = []
        for rate in rates:
            bucket = self._bucket(tenant, rate.counts)
            refill_ns = rate.refill_ns(tokens if rate.counts == "tokens" else 1)
            wait_ns = bucket.take(refill_ns, rate.refill_ns(rate.burst), now_ns)
            if wait_ns:
                for other, other_ns in done:
                    other.give_back(other_ns)
                return Taking(self._standings(tenant, rates, now_ns), -(-wait_ns // 10**6) / 1000, rate.counts)
            done.append((bucket, refill_ns))
        return Taking(self._standings(tenant, rates, now_ns))

    def forget_all_but(self, tenants: Collection[str]) -> None:
        """Only these are left after a reload."""
        self._buckets = {key: bucket for key, bucket in self._buckets.items() if key[0] in tenants}

    def _bucket(self, tenant: str, counts: str) -> Bucket:
        key = (tenant, counts)
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = self._bucket_of(tenant, counts)
        return bucket

    def _standings(self, tenant: str, rates: Sequence[Rate], now_ns: int) -> list[Standing]:
        standings = []
        for rate in rates:
            owed_ns = max(0, self._bucket(tenant, rate.counts).full_at_ns() - now_ns)
            left_ns = max(0, rate.refill_ns(rate.burst) - owed_ns)
            standings.append(Standing(rate.counts, rate.burst, left_ns // rate.unit_ns, owed_ns / 1e9))
        return standings
