"""Scales hold what they were made for, and their ticks are round and few."""

from __future__ import annotations

from math import inf, isclose, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gslb.report.scale import Scale, linear, logarithmic, time_step_s

FIGURES = st.lists(st.floats(1e-3, 1e9), min_size=1, max_size=20)


@settings(deadline=None)
@given(FIGURES, st.booleans())
def test_a_linear_scale_holds_its_values(values: list[float], is_from_zero: bool) -> None:
    scale = linear(values, 0.0, 100.0, low=0.0 if is_from_zero else None)
    slack = 1e-6 * max(values)
    assert scale.low <= min(values) + slack
    assert scale.high >= max(values) - slack
    ticks = scale.ticks(5)
    assert 2 <= len(ticks) <= 6
    assert ticks == sorted(set(ticks))
    assert all(scale.low - slack <= tick <= scale.high + slack for tick in ticks)


@settings(deadline=None)
@given(FIGURES)
def test_a_log_scale_holds_its_values(values: list[float]) -> None:
    scale = logarithmic(values, 0.0, 100.0)
    assert scale.low <= min(values) * 1.001
    assert scale.high >= max(values) * 0.999
    ticks = scale.ticks(7)
    assert ticks
    assert ticks == sorted(set(ticks))


@settings(deadline=None)
@given(FIGURES, st.booleans())
def test_greater_values_are_never_drawn_lower(values: list[float], is_log: bool) -> None:
    scale = logarithmic(values, 0.0, 100.0) if is_log else linear(values, 0.0, 100.0)
    drawn = [scale(value) for value in sorted(values)]
    assert drawn == sorted(drawn)
    assert all(-1e-6 <= at <= 100 + 1e-6 for at in drawn)


def test_what_lies_outside_or_is_no_number_is_put_on_the_edge() -> None:
    scale = Scale(0.0, 10.0, 50.0, 0.0)
    assert scale(-5) == 50.0
    assert scale(50) == 0.0
    assert scale(nan) == 50.0
    assert scale(inf) == 50.0


@pytest.mark.parametrize("values", [[], [nan], [0.0], [0.0, 0.0], [7.0]])
def test_a_scale_of_nothing_still_has_a_length(values: list[float]) -> None:
    for scale in (linear(values, 0, 1), linear(values, 0, 1, low=None), logarithmic(values, 0, 1)):
        assert scale.low < scale.high


def test_equal_shares_get_a_scale() -> None:
    scale = linear([1.0, 1.0], 0, 100, low=None)
    assert scale.low < 1.0 + 1e-9 <= scale.high + 1e-8


@pytest.mark.parametrize(
    ("duration_s", "step"),
    [(3, 1), (60, 10), (300, 60), (600, 120), (3600, 600), (86_400, 21_600), (9e5, 172_800)],
)
def test_time_steps_are_those_people_count_in(duration_s: float, step: int) -> None:
    assert time_step_s(duration_s, 6) == step


def test_round_ticks_of_a_log_scale() -> None:
    assert logarithmic([12, 4000], 0, 1).ticks(9) == [10, 20, 50, 100, 200, 500, 1000, 2000, 5000]
    few = logarithmic([12, 4000], 0, 1).ticks(4)
    assert all(any(isclose(tick, want) for want in (10, 100, 1000)) for tick in few)
