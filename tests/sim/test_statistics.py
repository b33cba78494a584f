"""Means over seeds: intervals by the textbook, and what they refuse."""

from __future__ import annotations

from math import isclose
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gslb.sim.statistics import Summary, paired, share, summarise

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40)


def test_the_interval_of_five_seeds_is_students() -> None:
    got = summarise([0.90, 0.92, 0.91, 0.93, 0.89])
    # Standard deviation 0.015811, over the root of five 0.0070711, times 2.776.
    assert isclose(got.mean, 0.91)
    assert got.low is not None
    assert isclose(got.low, 0.91 - 0.019629, abs_tol=1e-6)
    assert got.margin is not None
    assert isclose(got.margin, 0.019629, abs_tol=1e-6)


@pytest.mark.parametrize(("freedom", "point"), [(1, 12.706), (10, 2.228), (11, 2.201), (20, 2.086), (60, 2.000)])
def test_students_points(freedom: int, point: float) -> None:
    # Of `n` values of which half are 1 and half -1 (one 0 when odd) the standard deviation is known.
    n = freedom + 1
    values = [1.0, -1.0] * (n // 2) + [0.0] * (n % 2)
    deviation = (2 * (n // 2) / freedom) ** 0.5
    got = summarise(values)
    assert got.margin is not None
    assert isclose(got.margin * n**0.5 / deviation, point, abs_tol=1e-3)


def test_one_seed_says_nothing_of_spread() -> None:
    got = summarise([0.5])
    assert got == Summary(0.5, None, None)
    assert got.margin is None
    assert not got.is_sure


def test_a_pair_by_pair_difference_is_sure_where_two_means_are_not() -> None:
    ours = [0.99, 0.80, 0.95, 0.70, 0.90]
    theirs = [value - 0.001 for value in ours]
    apart, together = summarise(ours), paired(ours, theirs)
    assert apart.margin is not None
    assert apart.margin > 0.1
    assert isclose(together.mean, 0.001)
    assert together.is_sure


@pytest.mark.parametrize(
    ("hits", "of", "low", "high"), [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (81, 263, 0.2553, 0.3662)]
)
def test_wilsons_interval(hits: int, of: int, low: float, high: float) -> None:
    # The last is Newcombe's worked example (1998, table I).
    got = share(hits, of)
    assert got.low is not None
    assert got.high is not None
    assert isclose(got.low, low, abs_tol=1e-4)
    assert isclose(got.high, high, abs_tol=1e-4)


@settings(deadline=None)
@given(VALUES)
def test_the_mean_lies_within_and_order_does_not_matter(values: list[float]) -> None:
    got = summarise(values)
    assert got.low is not None
    assert got.high is not None
    assert got.low <= got.mean <= got.high
    shuffled = values[:]
    Random(1).shuffle(shuffled)
    again = summarise(shuffled)
    assert isclose(again.mean, got.mean, rel_tol=1e-9, abs_tol=1e-6)


@settings(deadline=None)
@given(st.integers(0, 1000), st.integers(1, 1000))
def test_a_share_stays_a_share(hits: int, of: int) -> None:
    got = share(min(hits, of), of)
    assert got.low is not None
    assert got.high is not None
    assert 0.0 <= got.low <= got.mean + 1e-12
    assert got.mean - 1e-12 <= got.high <= 1.0


def test_nothing_and_unequal_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        summarise([])
    with pytest.raises(ValueError, match="no requests"):
        share(0, 0)
    with pytest.raises(ValueError, match=r"shorter|longer"):
        paired([1.0, 2.0], [1.0])
