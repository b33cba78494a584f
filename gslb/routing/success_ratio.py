"""How an endpoint's requests ended lately: counts over a sliding window, in constant memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_SPANS: Final = 10
"""The window slides in tenths of itself: between nine tenths and the whole of it is counted."""


@dataclass(frozen=True, slots=True)
class Ends:
    """How requests ended: `good` served, `bad` failed by the endpoint, `full` turned away with a 429."""

    good: int = 0
    bad: int = 0
    full: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.good + self.bad + self.full


def together(several: Iterable[Ends]) -> Ends:
    """The sum of `several`."""
    good = bad = full = 0
    for ends in several:
        good += ends.good
        bad += ends.bad
        full += ends.full
    return Ends(good, bad, full)


class RecentEnds:
    """Ends within the last `window_s`. News may come late and out of order: each counts at its own time."""

    __slots__ = ("_span_s", "_spans")

    def __init__(self, window_s: float) -> None:
        self._span_s = window_s / _SPANS
        self._spans: dict[int, list[int]] = {}

    def add(self, at_s: float, good: int = 0, bad: int = 0, full: int = 0) -> None:
        """Count what happened at `at_s`."""
        number = int(at_s // self._span_s)
        span = self._spans.get(number)
        if span is None:
            if len(self._spans) >= _SPANS:
                oldest = min(self._spans)
                if number < oldest:
                    return
                del self._spans[oldest]
            span = self._spans[number] = [0, 0, 0]
        span[0] += good
        span[1] += bad
        span[2] += full

    def within(self, now_s: float) -> Ends:
        """What has been counted in the window that ends at `now_s`."""
        first = int(now_s // self._span_s) - _SPANS
        return together(Ends(*span) for number, span in self._spans.items() if number > first)

    def clear(self) -> None:
        """Forget everything."""
        self._spans.clear()
