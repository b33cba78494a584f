"""Learning an engine's speed: the line through what was observed, its prior, its bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gslb.routing.learn import DRAIN_SHARE, STEPS_TO_FIRST, Kin, Moments, ServiceFit, kin_key, prefill_work
from gslb.types import Endpoint, LoadSample
from tests.support.builders import endpoint

PRIOR: Endpoint = replace(endpoint(), prefill_ms_per_token=0.05)
Seen = list[tuple[float, float, float]]
"""(work, ahead, wait in ms)"""


def seen(observations: Seen) -> Moments:
    moments = Moments()
    for work, ahead, wait_ms in observations:
        moments.first_token(work, ahead, wait_ms, Kin(PRIOR).weigh(work, ahead))
    return moments


def fit_of(prior: Endpoint = PRIOR) -> ServiceFit:
    return ServiceFit(Kin(prior))


def noted(fit: ServiceFit, work: float, ahead: float, wait_ms: float) -> Moments:
    """One first token as `fit` would have it counted."""
    moments = Moments()
    fit.note(moments, work, ahead, wait_ms)
    return moments


def expected_ms(fit: ServiceFit, work: float, ahead: float = 0.0) -> float:
    return fit.base_ms + fit.rate_ms * work + fit.drain_ms * ahead


def learn(fits: list[ServiceFit], truth: Callable[[ServiceFit, float, float], float], rounds: int) -> None:
    """Each of `fits` sees ten first tokens a round."""
    dice = Random(1)
    for _ in range(rounds):
        for fit in fits:
            moments = Moments()
            for _ in range(10):
                work, ahead = dice.uniform(100, 4000), dice.choice((0.0, 0.0, 0.0, dice.uniform(0, 8000)))
                wait_ms = truth(fit, work, ahead) + dice.gauss(0, 10)
                fit.note(moments, work, ahead, wait_ms)
            fit.absorb(moments)
    for fit in fits:
        fit.follow_kin()


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
    fit = fit_of(replace(PRIOR, step_ms=30.0))
    fit.absorb(Moments())
    assert fit.beliefs == pytest.approx((STEPS_TO_FIRST * 30.0, 0.05, DRAIN_SHARE * 0.05, PRIOR.slot_hold_ms))


def test_it_finds_base_rate_and_drain_of_another_engine() -> None:
    fit = fit_of()
    learn([fit], lambda _, work, ahead: 20 + 0.11 * work + 0.07 * ahead, 100)
    assert fit.rate_ms == pytest.approx(0.11, rel=0.06)
    assert fit.drain_ms == pytest.approx(0.07, rel=0.1)
    assert expected_ms(fit, 2000) == pytest.approx(20 + 0.11 * 2000, rel=0.03)


def test_it_follows_an_engine_that_becomes_slower() -> None:
    fit = fit_of()
    for factor in (1.0, 3.0):
        learn([fit], lambda _, work, ahead: factor * (10 + 0.05 * work + 0.03 * ahead), 80)  # noqa: B023 (called now)
        assert expected_ms(fit, 2000) == pytest.approx(factor * 110, rel=0.1)


def test_a_slow_one_among_kin_is_slow_alone_and_soon() -> None:
    kin = Kin(PRIOR)
    fits = [ServiceFit(kin) for _ in range(8)]
    learn(fits, lambda _, work, ahead: 30 + 0.05 * work + 0.03 * ahead, 20)
    learn(fits, lambda fit, work, ahead: (4 if fit is fits[0] else 1) * (30 + 0.05 * work + 0.03 * ahead), 10)
    assert expected_ms(fits[0], 1000) > 2.5 * 80
    assert all(expected_ms(fit, 1000) == pytest.approx(80, rel=0.15) for fit in fits[1:])


def test_equals_are_believed_to_be_equal() -> None:
    """Differences by chance would send requests to whoever looks quickest, which is nobody."""
    kin = Kin(PRIOR)
    fits = [ServiceFit(kin) for _ in range(20)]
    learn(fits, lambda _, work, ahead: 30 + 0.05 * work + 0.03 * ahead, 20)
    waits_ms = [expected_ms(fit, 1000) for fit in fits]
    assert max(waits_ms) - min(waits_ms) < 12


def test_who_was_never_asked_is_like_its_kin() -> None:
    kin = Kin(PRIOR)
    used, unused = ServiceFit(kin), ServiceFit(kin)
    learn([used], lambda _, work, ahead: 30 + 0.15 * work + 0.1 * ahead, 50)
    moments = Moments()
    for _ in range(100):
        moments.answer(9000.0)
    used.absorb(moments)
    assert unused.rate_ms == 0.05
    assert unused.follow_kin()
    assert not unused.follow_kin(), "nothing new since"
    assert expected_ms(unused, 1000) == pytest.approx(180, rel=0.1)
    assert unused.slot_hold_ms == pytest.approx(9000, rel=0.1)


def test_one_that_others_overrun_looks_slow_for_long_prompts_too() -> None:
    """What an edge sees of another's load is that short prompts wait: it must not send its long ones there."""
    kin = Kin(PRIOR)
    fits = [ServiceFit(kin) for _ in range(8)]
    learn(fits, lambda _, work, ahead: 30 + 0.05 * work + 0.03 * ahead, 20)
    for _ in range(40):
        fits[0].absorb(noted(fits[0], 500.0, 0.0, 400.0))
    fits[1].follow_kin()
    assert expected_ms(fits[0], 10_000) > 1.5 * expected_ms(fits[1], 10_000)


@pytest.mark.parametrize("seed", range(4))
def test_where_prompts_are_long_short_ones_bad_luck_does_not_become_the_rate(seed: int) -> None:
    """Mooncake's trace: half of what was believed cached is gone and takes its full time. The prompts that are
    known to be long still tell what a token takes."""
    dice = Random(seed)
    fit = fit_of()
    for _ in range(400):
        work = dice.expovariate(1 / 12_000)
        fit.absorb(noted(fit, dice.choice((work, 50.0)), 0.0, 40 + 0.05 * work))
    assert 0.03 < fit.rate_ms < 0.06


def test_one_strange_answer_moves_little() -> None:
    fit = fit_of()
    fit.absorb(seen([(1000.0, 0.0, 50.0)] * 50))
    before_ms = expected_ms(fit, 1000)
    fit.absorb(noted(fit, 1000.0, 0.0, 60_000.0))
    assert expected_ms(fit, 1000) - before_ms < 5


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(-1e6, 1e6)), max_size=50))
def test_whatever_is_seen_the_fit_stays_within_bounds(observations: Seen) -> None:
    fit = fit_of()
    for work, ahead, wait_ms in observations:
        fit.absorb(noted(fit, work, ahead, wait_ms))
        assert 0.05 / 400.1 <= fit.rate_ms <= 0.05 * 400.1
        assert 0.0 <= fit.drain_ms <= fit.rate_ms
        assert -500 * 20 <= fit.base_ms <= 500 * 20


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 1e5), st.floats(0, 1e4)), min_size=1, max_size=20))
def test_observations_count_the_same_in_one_go_as_added_up(observations: Seen) -> None:
    """What workers saw is added up: the order within a second is lost, and does not matter."""
    forwards, backwards = fit_of(), fit_of()
    forwards.absorb(seen(observations))
    parts = Moments()
    for observation in observations[::-1]:
        parts.add(Moments.from_told(seen([observation]).told()))
    backwards.absorb(parts)
    assert forwards.beliefs == pytest.approx(backwards.beliefs, rel=1e-6, abs=1e-3)


def test_answers_tell_how_long_slots_are_held() -> None:
    fit = fit_of()
    for _ in range(300):
        moments = Moments()
        moments.answer(9000.0)
        fit.absorb(moments)
    assert fit.slot_hold_ms == pytest.approx(9000, rel=0.01)


def test_steps_come_from_two_samples_and_not_from_counters_that_began_anew() -> None:
    kin = Kin(PRIOR)
    fit = ServiceFit(kin)
    first = LoadSample(0.0, itl_sum_s=10.0, itl_count=100.0)
    kin.sampled(first, LoadSample(1.0, itl_sum_s=13.0, itl_count=200.0))
    assert fit.follow_kin()
    assert fit.base_ms == pytest.approx(STEPS_TO_FIRST * 30.0)
    kin.sampled(first, LoadSample(2.0, itl_sum_s=0.1, itl_count=1.0))
    kin.sampled(first, LoadSample(2.0))
    kin.sampled(None, first)
    assert not fit.follow_kin()


def test_declared_steps_are_not_made_longer_by_steps_that_compute_prompts() -> None:
    """Mooncake's trace: gaps between tokens are long where others' prompts are, and base_ms began at 300 ms."""
    kin = Kin(replace(PRIOR, step_ms=30.0))
    base_ms = kin.base_ms
    kin.sampled(LoadSample(0.0, itl_sum_s=10.0, itl_count=100.0), LoadSample(1.0, itl_sum_s=40.0, itl_count=200.0))
    assert kin.base_ms == base_ms


def test_a_reload_with_other_priors_starts_anew_and_one_without_does_not() -> None:
    fit = fit_of()
    fit.absorb(seen([(1000.0, 0.0, 400.0)] * 100))
    learnt_ms = fit.rate_ms
    assert kin_key(replace(PRIOR, url="http://elsewhere.invalid")) == kin_key(PRIOR)
    assert kin_key(replace(PRIOR, capacity=7)) == kin_key(PRIOR), "a cap says nothing of speed"
    fit.believe(fit.kin)
    assert fit.rate_ms == learnt_ms
    other = replace(PRIOR, prefill_ms_per_token=0.2)
    assert kin_key(other) != kin_key(PRIOR)
    fit.believe(Kin(other))
    assert fit.rate_ms == 0.2
