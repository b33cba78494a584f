"""What several seeds say together: a mean, and how far off it may be.

Policies are compared on equal seeds, so the difference of each pair is what counts: what a seed's dice do to both
drops out of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

_Z = 1.959964
"""The normal distribution's 97.5 % point."""
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Student's 97.5 % points for 1 to 10 degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A mean and its 95 % confidence interval. The ends are None where one value alone says nothing of spread."""

    mean: float
    low: float | None
    high: float | None

    @property
    def margin(self) -> float | None:
        """How far the wider end is from the mean, for writing mean ± margin; None without an interval."""
        if self.low is None or self.high is None:
            return None
        return max(self.high - self.mean, self.mean - self.low)

    @property
    def is_sure(self) -> bool:
        """True when zero lies outside the interval: for a difference, it is not chance."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def summarise(values: Sequence[float]) -> Summary:
    """The mean of one figure over seeds, with Student's interval.

    Raises ValueError without a value."""
    if not values:
        raise ValueError("no values: there is no mean of nothing")
    mean = sum(values) / len(values)
    freedom = len(values) - 1
    if not freedom:
        return Summary(mean, None, None)
    variance = sum((value - mean) ** 2 for value in values) / freedom
    margin = _student(freedom) * sqrt(variance / len(values))
    return Summary(mean, mean - margin, mean + margin)


def paired(ours: Sequence[float], theirs: Sequence[float]) -> Summary:
    """The mean of `ours - theirs`, value by value (the same seed at the same position).

    Raises ValueError if the two differ in length or are empty."""
    return summarise([mine - other for mine, other in zip(ours, theirs, strict=True)])


def share(hits: int, of: int) -> Summary:
    """A share of counted requests with Wilson's interval (1927): what can be said from a single seed.

    It takes the requests as independent. Those of one burst are not, so the truth is wider; several seeds tell.
    Raises ValueError when `of` is zero."""
    if of <= 0:
        raise ValueError("no requests: there is no share of nothing")
    mean, pull = hits / of, _Z * _Z / of
    middle = (mean + pull / 2) / (1 + pull)
    margin = _Z * sqrt(mean * (1 - mean) / of + pull / (4 * of)) / (1 + pull)
    return Summary(mean, max(0.0, middle - margin), min(1.0, middle + margin))


def _student(freedom: int) -> float:
    """Student's 97.5 % point: from the table, beyond it by expansion around the normal one (Abramowitz and Stegun
    26.7.5; off by less than 0.001 from 11 on)."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    first = (_Z**3 + _Z) / 4
    second = (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / 96
    third = (3 * _Z**7 + 19 * _Z**5 + 17 * _Z**3 - 15 * _Z) / 384
    return _Z + first / freedom + second / freedom**2 + third / freedom**3
