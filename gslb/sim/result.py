"""What a run comes to: counts, and times as histograms, so that memory does not grow with the run.

The same shape for every policy; the report and the JSON are made of it, and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil, exp, log

_GROWTH = 1.02
"""Buckets grow by 2 %: a quantile is at most 1 % off."""
_LOG_GROWTH = log(_GROWTH)
_PER_LOG = 1 / _LOG_GROWTH
_LEAST_MS = 0.1


class Times:
    """A histogram of times in ms with buckets of equal ratio."""

    __slots__ = ("buckets", "count", "sum_ms")

    def __init__(self) -> None:
        self.buckets: Counter[int] = Counter()
        self.count = 0
        self.sum_ms = 0.0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Times) and (self.buckets, self.sum_ms) == (other.buckets, other.sum_ms)

    __hash__ = None  # type: ignore[assignment]

    def add(self, ms: float) -> None:
        """Take in one time (below 0.1 ms counts as that)."""
        self.buckets[ceil(log(ms if ms > _LEAST_MS else _LEAST_MS) * _PER_LOG)] += 1
        self.count += 1
        self.sum_ms += ms

    def merge(self, other: Times) -> None:
        """Take in all of `other`."""
        self.buckets.update(other.buckets)
        self.count += other.count
        self.sum_ms += other.sum_ms

    def quantile(self, share: float) -> float | None:
        """The time that `share` (0..1) of all stay within; None without any."""
        wanted = share * self.count
        seen = 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= wanted:
                return exp((bucket - 0.5) * _LOG_GROWTH)
        return None

    def cumulative(self) -> Iterator[tuple[float, float]]:
        """(upper bound in ms, share within it), for drawing."""
        seen = 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            yield exp(bucket * _LOG_GROWTH), seen / self.count


@dataclass(slots=True)
class Tally:
    """What became of requests. `completed` whole answers, `shed` refused by an edge, `failed` everything else that
    got no whole answer; `good` completed with the first token inside the budget. `overdue` were still under way
    at the end of the run and had missed their budget; `unfinished` were under way and had not, and say nothing."""

    offered: int = 0
    completed: int = 0
    good: int = 0
    shed: int = 0
    failed: int = 0
    overdue: int = 0
    unfinished: int = 0
    held: int = 0
    spilled: int = 0
    """Completed elsewhere than at home."""
    crossed: int = 0
    """Completed in another region than the client's nearest edge stands in."""
    attempts: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    ttft: Times = field(default_factory=Times)
    end_to_end: Times = field(default_factory=Times)
    held_time: Times = field(default_factory=Times)
    prediction_error: Times = field(default_factory=Times)
    """|predicted - measured| / measured of the first token, in thousandths (0.12 counts as 120)."""

    def merge(self, other: Tally) -> None:
        """Add all of `other`."""
        for name in self.__slots__:
            mine, theirs = getattr(self, name), getattr(other, name)
            if isinstance(mine, Times):
                mine.merge(theirs)
            else:
                setattr(self, name, mine + theirs)

    @property
    def unended(self) -> int:
        """What had not come to an end in any way."""
        return self.offered - self.completed - self.shed - self.failed - self.overdue

    @property
    def goodput(self) -> float:
        """Share of the offered (and ended) that met their budget; 1.0 when nothing was offered."""
        ended = self.offered - self.unfinished
        return self.good / ended if ended else 1.0


@dataclass(slots=True)
class Moment:
    """One second of a run, for the timeline. Counts are of that second, gauges of its end."""

    at_s: int
    offered: int = 0
    good: int = 0
    completed: int = 0
    failed: int = 0
    shed: int = 0
    held_now: int = 0
    running: dict[str, int] = field(default_factory=dict)
    """Region -> requests in its engines."""


@dataclass(slots=True)
class RunResult:
    """One policy, one seed. `policy` is its name, with the parts of gslb that it ran `without` (`parts.labelled`).

    `by_home` counts by the region nearest to the client, `by_served` by the region that answered, `flows` (home,
    served) -> completed. `busy_share` is, by region, how much its engines computed of what they could have:
    `Engine.work_s` by time. Full batches all the time are 1, a load of 0.7 of `sim.capacity` is about 0.7. `cost`
    is price x hours of the whole fleet for the simulated time (0 when no prices are set).
    """

    scenario: str
    policy: str
    seed: int
    simulated_s: float
    total: Tally
    by_home: dict[str, Tally]
    by_served: dict[str, Tally]
    flows: Counter[tuple[str, str]]
    reasons: Counter[str]
    """Why requests were served where they were, or refused: the decisions' reasons."""
    timeline: list[Moment]
    busy_share: dict[str, float]
    cost: float
    decisions: int
    decision_s: float
    """CPU seconds of all decisions, as told by the clock the run was given."""
    wall_s: float
    notes: list[str] = field(default_factory=list)
    is_partial: bool = False
    """The run was interrupted."""
    without: tuple[str, ...] = ()
    load: float | None = None
    """Offered load as a share of what the fleet can serve, when runs at several loads are compared."""
