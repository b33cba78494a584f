"""Learning an engine's speed: the line through what was observed, its prior, its bounds."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gslb.routing.learn import Moments, ServiceFit, prefill_work
from gslb.types import Endpoint, LoadSample
from tests.support.builders import endpoint

PRIOR: Endpoint = replace(endpoint(), prefill_ms_per_token=0.05)


def seen(pairs: list[tuple[float, float]]) -> Moments:
    moments = Moments()
    for work, wait_ms in pairs:
        moments.first_token(work, wait_ms)
    return moments


def test_work_counts_tokens_far_into_the_prompt_twice() -> None:
    assert prefill_work(2048) == 2048
    assert prefill_work(4096) == 2048 + 2 * 2048
    assert prefill_work(4096, 2048) == 2 * 2048
    assert prefill_work(4096, 3072) == 2 * 1024
    assert prefill_work(1000, 600) == 400


@given(st.integers(0, 200_000), st.integers(0, 200_000), st.integers(0, 200_000))
def test_work_of_two_parts_is_the_work_of_the_whole(a: int, b: int, c: int) -> None:
    a, b, c = sorted((a, b, c))
    assert prefill_work(c, a) == prefill_work(b, a) + prefill_work(c, b)
    assert prefill_work(c, c) == 0


def test_nothing_seen_is_the_prior() -> None:
    fit = ServiceFit(PRIOR)
    fit.absorb(Moments())
    assert (fit.rate_ms, fit.base_ms, fit.slot_hold_ms) == (0.05, 0.0, PRIOR.slot_hold_ms)


def test_it_finds_rate_and_base_of_another_engine() -> None:
    dice = Random(1)
    fit = ServiceFit(PRIOR)
    for _ in range(60):
        works = [dice.uniform(100, 4000) for _ in range(10)]
        fit.absorb(seen([(work, 20 + 0.11 * work + dice.gauss(0, 10)) for work in works]))
    assert fit.rate_ms == pytest.approx(0.11, rel=0.06)
    assert fit.base_ms + 2000 * fit.rate_ms == pytest.approx(20 + 0.11 * 2000, rel=0.05)


def test_it_follows_an_engine_that_becomes_slower() -> None:
    dice = Random(1)
    fit = ServiceFit(PRIOR)
    for factor in (1.0, 3.0):
        for _ in range(80):
            works = [dice.uniform(100, 4000) for _ in range(10)]
            fit.absorb(seen([(work, fit.without_outlier(work, factor * 0.05 * work)) for work in works]))
        assert fit.rate_ms == pytest.approx(factor * 0.05, rel=0.1)


def test_one_strange_answer_moves_little() -> None:
    fit = ServiceFit(PRIOR)
    fit.absorb(seen([(1000.0, 50.0)] * 50))
    before_ms = fit.base_ms + 1000 * fit.rate_ms
    fit.absorb(seen([(1000.0, fit.without_outlier(1000.0, 60_000.0))]))
    assert fit.base_ms + 1000 * fit.rate_ms - before_ms < 5


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(-1e6, 1e6)), max_size=50))
def test_whatever_is_seen_the_fit_stays_within_bounds(pairs: list[tuple[float, float]]) -> None:
    fit = ServiceFit(PRIOR)
    for work, wait_ms in pairs:
        fit.absorb(seen([(work, fit.without_outlier(work, wait_ms))]))
        assert 0.05 / 20.001 <= fit.rate_ms <= 0.05 * 20.001
        assert -500 <= fit.base_ms <= 500


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 1e4)), min_size=1, max_size=20))
def test_observations_count_the_same_in_one_go_as_added_up(pairs: list[tuple[float, float]]) -> None:
    """What workers saw is added up: the order within a second is lost, and does not matter."""
    forwards, backwards = ServiceFit(PRIOR), ServiceFit(PRIOR)
    forwards.absorb(seen(pairs))
    backwards.absorb(seen(pairs[::-1]))
    assert forwards.rate_ms == pytest.approx(backwards.rate_ms, rel=1e-6)
    assert forwards.base_ms == pytest.approx(backwards.base_ms, rel=1e-6, abs=1e-3)


def test_answers_tell_how_long_slots_are_held() -> None:
    fit = ServiceFit(PRIOR)
    for _ in range(300):
        moments = Moments()
        moments.answer(9000.0)
        fit.absorb(moments)
    assert fit.slot_hold_ms == pytest.approx(9000, rel=0.01)


def test_steps_come_from_two_samples_and_not_from_counters_that_began_anew() -> None:
    fit = ServiceFit(PRIOR)
    first = LoadSample(0.0, itl_sum_s=10.0, itl_count=100.0)
    fit.sampled(first, LoadSample(1.0, itl_sum_s=13.0, itl_count=200.0))
    assert fit.step_ms == pytest.approx(30.0)
    fit.sampled(first, LoadSample(2.0, itl_sum_s=0.1, itl_count=1.0))
    fit.sampled(first, LoadSample(2.0))
    fit.sampled(None, first)
    assert fit.step_ms == pytest.approx(30.0)


def test_a_reload_with_other_priors_starts_anew_and_one_without_does_not() -> None:
    fit = ServiceFit(PRIOR)
    fit.absorb(seen([(1000.0, 400.0)] * 100))
    learnt_ms = fit.rate_ms
    fit.believe(replace(PRIOR, url="http://elsewhere.invalid"))
    assert fit.rate_ms == learnt_ms
    fit.believe(replace(PRIOR, prefill_ms_per_token=0.2))
    assert fit.rate_ms == 0.2
