"""What is expected to be cached where, and how an endpoint earns or loses that trust."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gslb.routing.affinity import Affinity
from gslb.routing.hit_rate import HitRate
from gslb.routing.sessions import Sessions, Turn
from gslb.types import Facts, LoadSample
from tests.support.builders import endpoint, fleet, region, sample
from tests.support.builders import facts as builder_facts

A, B = "eu/1", "eu/2"


def facts(blocks: tuple[int, ...] = (), tokens: int = 0, session: int | None = None) -> Facts:
    return builder_facts(
        prompt_tokens=tokens or 512 * len(blocks), prefix_blocks=blocks, block_tokens=512, affinity_key=session
    )


def expected(affinity: Affinity, asked: Facts, now_s: float) -> dict[str, int]:
    """Tokens by endpoint, of those that have any."""
    found = affinity.expected(asked, now_s)
    if found is None:
        return {}
    tokens = {key: found.tokens(key) for key in (A, B) if found.tokens(key)}
    assert found.most_tokens >= max(tokens.values())
    return tokens


# --- expected ---------------------------------------------------------------------------------------


def test_a_prompt_is_expected_where_it_was_prefilled() -> None:
    affinity = Affinity()
    assert affinity.expected(facts((1, 2, 3)), 0.0) is None
    assert affinity.prefilled(A, facts((1, 2, 3)), 0.0) == 0
    assert expected(affinity, facts((1, 2, 3, 4)), 1.0) == {A: 1536}
    assert expected(affinity, facts((1, 9)), 1.0) == {A: 512}
    assert expected(affinity, facts((9, 2, 3)), 1.0) == {}


def test_never_more_than_the_prompt_has() -> None:
    affinity = Affinity()
    affinity.prefilled(A, facts((1, 2), session=5), 0.0)
    affinity.answered(A, facts((1, 2), session=5), 0, (1024, 9000, None), 1.0)
    assert expected(affinity, facts((1, 2), tokens=1000, session=5), 2.0) == {A: 1000}


def test_a_conversation_that_goes_on_has_its_answer_cached_too() -> None:
    affinity = Affinity()
    first = facts((1, 2), tokens=1200, session=5)
    affinity.prefilled(A, first, 0.0)
    affinity.answered(A, first, 0, (1180, 300, None), 4.0)
    assert expected(affinity, facts((1, 2, 3), tokens=1700, session=5), 5.0) == {A: 1500}


def test_another_conversation_of_the_same_user_has_only_the_common_blocks() -> None:
    affinity = Affinity()
    affinity.prefilled(A, facts((1, 2), tokens=1200, session=5), 0.0)
    assert expected(affinity, facts((1, 8, 9), session=5), 1.0) == {A: 512}
    assert expected(affinity, facts((7, 8, 9), session=5), 1.0) == {}


def test_a_session_whose_prompt_was_dropped_has_no_answer_cached_either() -> None:
    affinity = Affinity(limit_blocks=3)
    affinity.prefilled(A, facts((1, 2), tokens=1200, session=5), 0.0)
    affinity.prefilled(A, facts((7, 8)), 1.0)
    assert expected(affinity, facts((1, 2, 3), tokens=1700, session=5), 2.0) == {A: 512}


def test_sessions_work_without_blocks() -> None:
    affinity = Affinity()
    affinity.prefilled(A, facts(tokens=300, session=5), 0.0)
    affinity.answered(A, facts(tokens=300, session=5), 0, (300, 50, None), 1.0)
    assert expected(affinity, facts(tokens=400, session=5), 2.0) == {A: 350}
    assert expected(affinity, facts(tokens=400, session=6), 2.0) == {}
    affinity.prefilled(B, facts(tokens=400, session=5), 3.0)
    assert expected(affinity, facts(tokens=500, session=5), 4.0) == {B: 400}
    assert expected(affinity, facts(tokens=500, session=5), 4.0 + 3600) == {}


def test_requests_that_belong_nowhere_leave_nothing_behind() -> None:
    affinity = Affinity()
    assert affinity.prefilled(A, facts(tokens=4000), 0.0) == 0
    affinity.answered(A, facts(tokens=4000), 0, (4000, 10, 4000), 0.0)
    assert affinity.index.blocks == 0
    assert affinity.trust(A) == 1.0


def test_sessions_are_bounded_the_oldest_goes() -> None:
    sessions = Sessions(limit=2, age_s=10.0)
    for number in (1, 2):
        sessions.note(number, Turn(A, number, (), 0.0))
    sessions.note(1, Turn(B, 7, (), 1.0))
    sessions.note(3, Turn(A, 3, (), 2.0))
    assert len(sessions) == 2
    assert sessions.last(2, 2.0) is None
    turn = sessions.last(1, 11.0)
    assert turn is not None
    assert (turn.key, turn.tokens) == (B, 7)
    assert sessions.last(1, 11.1) is None


# --- trust ------------------------------------------------------------------------------------------


def told(affinity: Affinity, share: float, times: int, tokens: int = 2048) -> None:
    """Answers of A that found this share of what was expected."""
    asked = facts((1, 2, 3, 4), tokens=tokens)
    affinity.prefilled(A, asked, 0.0)
    for _ in range(times):
        due = affinity.prefilled(A, asked, 0.0)
        assert due == 2048
        affinity.answered(A, asked, due, (tokens, 10, int(share * due)), 0.0)


def test_a_cache_that_keeps_its_word_is_believed() -> None:
    affinity = Affinity()
    told(affinity, 1.0, 100)
    assert affinity.trust(A) == 1.0
    assert expected(affinity, facts((1, 2)), 0.0) == {A: 1024}


def test_a_cache_that_is_off_is_not() -> None:
    affinity = Affinity()
    told(affinity, 0.0, 4)
    assert 0.3 < affinity.trust(A) < 0.4  # one answer is no proof
    told(affinity, 0.0, 100)
    assert affinity.trust(A) < 0.05
    assert expected(affinity, facts((1, 2)), 0.0)[A] < 51
    assert affinity.trust(B) == 1.0


def test_a_cache_that_is_mended_is_believed_again() -> None:
    affinity = Affinity()
    told(affinity, 0.0, 100)
    told(affinity, 1.0, 150)
    assert affinity.trust(A) > 0.9


def test_half_is_half() -> None:
    affinity = Affinity()
    told(affinity, 0.5, 200)
    assert affinity.trust(A) == pytest.approx(0.52, abs=0.01)


def test_estimates_are_compared_by_share() -> None:
    affinity = Affinity()
    asked = facts((1, 2, 3, 4), tokens=2048)
    affinity.prefilled(A, asked, 0.0)
    for _ in range(50):
        due = affinity.prefilled(A, asked, 0.0)
        affinity.answered(A, asked, due, (1024, 10, 1024), 0.0)  # the engine counts half as many
    assert affinity.trust(A) == 1.0


def counters(at_s: float, hits: float | None, queries: float | None, **members: float) -> LoadSample:
    return sample(at_s, prefix_hits_total=hits, prefix_queries_total=queries, **members)


def test_counters_tell_where_answers_do_not() -> None:
    rate = HitRate()
    rate.sampled(counters(0.0, 0.0, 0.0))
    for second in range(1, 101):
        rate.prefilled(2000, 1500)
        rate.sampled(counters(second, 0.0, 0.0))  # an engine without prefix caching counts nothing
    assert rate.trust < 0.05
    for second in range(101, 301):
        rate.prefilled(2000, 1500)
        rate.sampled(counters(second, 1500.0 * second, 2000.0 * second))
    assert rate.trust > 0.85


@pytest.mark.parametrize("counted_in", [-1, 0, 1])
@pytest.mark.parametrize("every", [1, 2, 5])
def test_hits_counted_a_window_before_or_after_their_first_token_are_not_lost(counted_in: int, every: int) -> None:
    rate = HitRate()
    hits = 0.0
    for second in range(1, 200):
        if (second - counted_in) % every == 0:
            hits += 1500.0
        if second % every == 0:
            rate.prefilled(2000, 1500)
        rate.sampled(counters(second, hits, hits * 4 / 3))
    assert rate.trust == pytest.approx(1.0, abs=0.05)


def test_others_traffic_says_little_of_ours() -> None:
    rate = HitRate()
    rate.sampled(counters(0.0, 0.0, 0.0))
    for second in range(1, 11):
        rate.prefilled(2000, 1500)
        rate.sampled(counters(second, 0.0, 200_000.0 * second))
    assert rate.trust > 0.95


def test_counters_that_begin_anew_are_a_restart_and_no_negative_growth() -> None:
    rate = HitRate()
    rate.sampled(counters(0.0, 5000.0, 9000.0))
    rate.prefilled(2000, 1500)
    assert rate.sampled(counters(1.0, 10.0, 100.0))
    assert rate.trust == 1.0
    assert not rate.sampled(counters(2.0, 10.0, 100.0))
    assert rate.trust == 1.0


@pytest.mark.parametrize("name", ["prompt_tokens_total", "generation_tokens_total", "prefix_queries_total"])
def test_any_counter_that_falls_is_a_restart(name: str) -> None:
    rate = HitRate()
    assert not rate.sampled(sample(0.0, **{name: 10.0}))
    assert not rate.sampled(sample(1.0, **{name: 10.0}))
    assert not rate.sampled(sample(2.0))
    assert not rate.sampled(sample(3.0, **{name: 9.0}))  # from nothing to something is no fall
    assert rate.sampled(sample(4.0, **{name: 8.0}))


def test_absent_counters_tell_nothing_and_neither_does_an_old_sample() -> None:
    rate = HitRate()
    rate.sampled(counters(0.0, None, None))
    rate.prefilled(2000, 1500)
    rate.sampled(counters(1.0, None, None))
    rate.sampled(counters(1.0, 0.0, 0.0))
    rate.prefilled(2000, 1500)
    rate.sampled(counters(2.0, 0.0, None))
    assert rate.trust == 1.0


def test_answers_go_before_counters() -> None:
    rate = HitRate()
    rate.sampled(counters(0.0, 0.0, 0.0))
    for second in range(1, 50):
        rate.prefilled(2000, 1500)
        rate.answered(1500.0, 1500.0)
        rate.sampled(counters(second, 0.0, 0.0))
    assert rate.trust == 1.0


STEPS = st.one_of(
    st.tuples(st.just("told"), st.floats(0, 1e7), st.floats(0, 1e7)),
    st.tuples(st.just("asked"), st.integers(0, 10**6), st.integers(0, 10**6)),
    st.tuples(st.just("counted"), st.floats(0, 1e9) | st.none(), st.floats(0, 1e9) | st.none()),
)


@given(st.lists(STEPS, max_size=40))
def test_trust_is_a_share(steps: list[tuple[str, float | None, float | None]]) -> None:
    rate = HitRate()
    for second, (step, first, second_value) in enumerate(steps):
        if step == "told":
            assert first is not None
            assert second_value is not None
            rate.answered(first, second_value)
        elif step == "asked":
            rate.prefilled(int(first or 0), int(second_value or 0))
        else:
            rate.sampled(counters(float(second), first, second_value))
        assert 0.0 < rate.trust <= 1.0 + 1e-9


# --- restarts and departures ------------------------------------------------------------------------


def test_a_restart_empties_the_cache() -> None:
    view = fleet(endpoint(region("eu"), number) for number in (1, 2))
    affinity = Affinity()
    for key in (A, B):
        affinity.prefilled(key, facts((1, 2), session=5), 0.0)
        view.load_sampled(key, sample(1.0, generation_tokens_total=500.0))
    affinity.observed(view.snapshot.endpoints)
    assert expected(affinity, facts((1, 2)), 2.0) == {A: 1024, B: 1024}
    view.load_sampled(A, sample(2.0, generation_tokens_total=600.0))
    view.load_sampled(B, sample(2.0, generation_tokens_total=3.0))
    affinity.observed(view.snapshot.endpoints)
    affinity.observed(view.snapshot.endpoints)
    assert expected(affinity, facts((1, 2), session=5), 3.0) == {A: 1024}


def test_what_left_the_fleet_is_forgotten() -> None:
    view = fleet(endpoint(region("eu"), number) for number in (1, 2))
    affinity = Affinity()
    told(affinity, 0.0, 20)
    affinity.prefilled(B, facts((1, 2)), 0.0)
    affinity.observed(view.snapshot.endpoints)
    affinity.observed([one for one in view.snapshot.endpoints if one.endpoint.key != A])
    assert affinity.index.keys == [B]
    assert affinity.trust(A) == 1.0
    assert expected(affinity, facts((1, 2)), 0.0) == {B: 1024}


def test_the_engines_own_word_bounds_what_it_is_believed_to_hold() -> None:
    view = fleet(endpoint(region("eu"), number) for number in (1, 2))
    affinity = Affinity(limit_blocks=3)
    affinity.prefilled(A, facts((1, 2, 3, 4, 5)), 0.0)
    affinity.prefilled(B, facts((1, 2, 3, 4, 5)), 0.0)
    view.load_sampled(A, sample(1.0, kv_tokens=2100.0))
    affinity.observed(view.snapshot.endpoints)
    for key in (A, B):
        affinity.prefilled(key, facts((1, 2, 3, 4, 5)), 0.0)
    assert expected(affinity, facts((1, 2, 3, 4, 5)), 2.0) == {A: 4 * 512, B: 3 * 512}
