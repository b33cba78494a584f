"""Figures in words: numbers with their units, as a reader expects them. What is not known is a dash."""

from __future__ import annotations

from math import isfinite

from gslb.sim.statistics import Summary

UNKNOWN = "–"
_MINUS = "−"


def count(value: float) -> str:
    """A number of things: `12,345`."""
    return f"{value:,.0f}"


def percent(value: float | None, decimals: int = 1) -> str:
    """A share (0..1) in percent: `97.3 %`."""
    return UNKNOWN if value is None or not isfinite(value) else f"{100 * value:.{decimals}f} %"


def hundredths(value: float | None) -> str:
    """A share in percent without the sign, for a column that names it: `97.3`."""
    return percent(value).removesuffix(" %")


def milliseconds(ms: float | None) -> str:
    """Whole milliseconds without the unit, for a column that names it; one decimal below 10."""
    if ms is None or not isfinite(ms):
        return UNKNOWN
    return f"{ms:.1f}" if ms < 9.95 else f"{ms:,.0f}"


def seconds(ms: float | None) -> str:
    """Milliseconds as seconds without the unit, for a column that names it."""
    return UNKNOWN if ms is None or not isfinite(ms) else f"{ms / 1000:,.2f}"


def span(ms: float) -> str:
    """A time on an axis, in the unit that suits it: `50 ms`, `2.5 s`, `10 min`."""
    if ms < 1000:
        return f"{ms:g} ms"
    if ms < 120_000:
        return f"{ms / 1000:g} s"
    if ms < 7_200_000:
        return f"{ms / 60_000:g} min"
    return f"{ms / 3_600_000:g} h"


def points(difference: float, sign: bool = True) -> str:
    """A difference of shares in percentage points: `+1.31`; three decimals where two would say nothing."""
    value = 100 * difference
    text = f"{value:{'+' if sign else ''}.{2 if abs(value) >= 0.095 or value == 0 else 3}f}"
    return text.replace("-", _MINUS)


def interval(summary: Summary | None, unit: str = " %") -> str:
    """A share with its 95 % interval: `97.31 % ± 0.12`; without one, the share alone."""
    if summary is None:
        return UNKNOWN
    margin = summary.margin
    text = f"{100 * summary.mean:.2f}{unit}"
    return text if margin is None else f"{text} ± {100 * margin:.2f}"


def listed(names: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else ""


def plural(number: int, noun: str) -> str:
    """`1 seed`, `5 seeds`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def named(name: str) -> str:
    """A region's name; what has none says so."""
    return name or "(nowhere)"
