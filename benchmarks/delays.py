"""Delays as counts in buckets that grow by 2 %: quantiles of millions of them, from several processes. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

_GROWTH = math.log(1.02)
_LEAST_NS = 1_000


class Delays:
    """Counts of delays in ns; a quantile is right within 2 %, and below 1 us nothing is told apart."""

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self.counts: dict[int, int] = dict(counts or {})

    def add(self, delay_ns: int) -> None:
        """Count one delay; a negative one counts as none."""
        bucket = 0 if delay_ns <= _LEAST_NS else math.ceil(math.log(delay_ns / _LEAST_NS) / _GROWTH)
        self.counts[bucket] = self.counts.get(bucket, 0) + 1

    @property
    def total(self) -> int:
        """How many were counted."""
        return sum(self.counts.values())

    def quantile_ms(self, share: float) -> float:
        """The delay that `share` (0..1] of all do not exceed, in ms: its bucket's upper end. NaN of none."""
        left = max(1, math.ceil(share * self.total))
        for bucket in sorted(self.counts):
            left -= self.counts[bucket]
            if left <= 0:
                return _LEAST_NS * math.exp(bucket * _GROWTH) / 1e6
        return math.nan


def merged(parts: Iterable[Mapping[str, int]]) -> Delays:
    """The sum of counts as JSON brings them, their keys as text."""
    whole = Delays()
    for part in parts:
        for bucket, count in part.items():
            whole.counts[int(bucket)] = whole.counts.get(int(bucket), 0) + count
    return whole
