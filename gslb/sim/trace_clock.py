"""A trace's times as seconds since its first row, and whether they can be true."""

from __future__ import annotations

from math import isfinite

_EPOCH_UNITS = ((1e9, 1e10, 1.0), (1e12, 1e13, 1e-3), (1e15, 1e16, 1e-6), (1e18, 1e19, 1e-9))
"""Between (from, to) a number is a date since 1970 in units of so many seconds: from 2001 to 2286."""
_UNIT_JUMPS = (1e3, 1e6, 1e9)
_SETTLED_S = 10.0


def _epoch_unit_s(value: float) -> float | None:
    return next((unit_s for low, high, unit_s in _EPOCH_UNITS if low <= value < high), None)


class TraceClock:
    """Turns a file's times into seconds since its first row.

    Numbers are in `unit_s` unless the first one can only be a date since 1970, whose unit its size tells. Times
    may stand still but not go back. A time is taken for one of another unit when it goes back to about a
    thousandth, or when, after 10 s of trace, it jumps to 1,000 to 1,500 times the one before it (or the same for
    a million and more).
    """

    def __init__(self, unit_s: float) -> None:
        self._unit_s = unit_s
        self._first: float | None = None
        self._last = 0.0
        self._is_date = False

    def seconds(self, value: float) -> float:
        """Seconds since the first row. Raises ValueError, in words, for a time that cannot be true here."""
        if not isfinite(value) or value < 0:
            raise ValueError(f"{value:g} is no time: it must be a number from 0 on")
        if self._first is None:
            epoch_unit_s = _epoch_unit_s(value)
            self._is_date = epoch_unit_s is not None
            self._unit_s = epoch_unit_s or self._unit_s
            self._first = self._last = value
        if value < self._last:
            hint = _changed_unit(self._last, value, 0.5, 2.0)
            raise ValueError(f"{value:.15g} comes after {self._last:.15g}: {hint or 'times must not go back'}")
        if self._last * self._unit_s >= _SETTLED_S:
            hint = _changed_unit(value, self._last, 0.99, 1.5)
            if hint is None and not self._is_date and _epoch_unit_s(value) is not None:
                hint = "before this line times are counted from a start, from here on they are dates"
            if hint is not None:
                raise ValueError(f"{value:.15g} comes after {self._last:.15g}: {hint}")
        self._last = value
        return (value - self._first) * self._unit_s


def _changed_unit(larger: float, smaller: float, low: float, high: float) -> str | None:
    for jump in _UNIT_JUMPS:
        if smaller > 0 and low * jump <= larger / smaller <= high * jump:
            return f"the unit changes here by {jump:.0f}: one file, one unit"
    return None
