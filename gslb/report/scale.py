"""From figures to positions: linear and logarithmic scales with ticks at round numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, floor, isfinite, log10

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_DECADE = (1.0, 2.0, 5.0, 10.0)
_TIMES_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps `low..high` onto `start..end` in pixels (`end` may be the smaller). Others are put on the edge."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        value = min(max(value, low), high) if isfinite(value) else low
        if self.is_log:
            low, high, value = log10(low), log10(high), log10(value)
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self, about: int = 5) -> list[float]:
        """Round numbers within the scale, at most about that many of them."""
        return self._decade_ticks(about) if self.is_log else self._even_ticks(about)

    def _even_ticks(self, about: int) -> list[float]:
        step = _round_step((self.high - self.low) / about)
        first, last = ceil(self.low / step - 1e-9), floor(self.high / step + 1e-9)
        return [index * step for index in range(first, last + 1)]

    def _decade_ticks(self, about: int) -> list[float]:
        decades = range(floor(log10(self.low)), ceil(log10(self.high)) + 1)
        for factors in ((1.0, 2.0, 5.0), (1.0, 3.0), (1.0,)):
            ticks = [factor * 10.0**decade for decade in decades for factor in factors]
            within = [tick for tick in ticks if self.low * 0.999 <= tick <= self.high * 1.001]
            if len(within) <= about:
                break
        return within


def linear(values: Iterable[float], start: float, end: float, low: float | None = 0.0) -> Scale:
    """A scale that holds all `values`, up to a round number, from `low` (None: a round number below them)."""
    finite = [value for value in values if isfinite(value)] or [1.0]
    bottom = min(finite) if low is None else low
    top = max(*finite, bottom)
    if top - bottom <= 1e-9 * abs(top):
        top = bottom + (abs(bottom) or 1.0)
    step = _round_step((top - bottom) / 4)
    bottom = floor(bottom / step + 1e-9) * step if low is None else low
    return Scale(bottom, bottom + ceil((top - bottom) / step - 1e-9) * step, start, end)


def logarithmic(values: Iterable[float], start: float, end: float) -> Scale:
    """A logarithmic scale between the round numbers (1, 2 or 5 of a decade) around the positive `values`."""
    finite = [value for value in values if isfinite(value) and value > 0] or [1.0, 10.0]
    low, high = _round_below(min(finite)), _round_above(max(finite))
    return Scale(low, high if high > low else low * 10, start, end, is_log=True)


def time_step_s(duration_s: float, about: int) -> int:
    """A step that people count time in, so long that `duration_s` has at most `about` of them."""
    for step in _TIMES_S:
        if duration_s <= step * about:
            return step
    return ceil(duration_s / about / 86_400) * 86_400


def _round_step(least: float) -> float:
    decade: float = 10.0 ** floor(log10(least))
    return next(step for step in _STEPS if step * decade >= least * (1 - 1e-9)) * decade


def _round_below(value: float) -> float:
    decade: float = 10.0 ** floor(log10(value))
    return max(step for step in _DECADE if step * decade <= value * (1 + 1e-9)) * decade


def _round_above(value: float) -> float:
    decade: float = 10.0 ** floor(log10(value))
    return min(step for step in _DECADE if step * decade >= value * (1 - 1e-9)) * decade
