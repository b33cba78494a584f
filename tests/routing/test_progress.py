"""Forward progress: what stands still, and all that only looks like it (FC-19, FC-20)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gslb.routing.progress import Progress, Sign, patience_s
from gslb.types import LoadSample

BOUND_S = 10.0


def told(at_s: float, generated: float | None = 500.0, **members: float | None) -> LoadSample:
    """A scrape: 2 requests run; 800 prompt tokens and `generated` others have been counted."""
    plain = LoadSample(at_s, 2.0, 0.0, 0.3, prompt_tokens_total=800.0, generation_tokens_total=generated)
    return replace(plain, **members)  # type: ignore[arg-type]


def signs(progress: Progress, samples: Iterable[LoadSample]) -> list[Sign]:
    return [progress.take(sample, BOUND_S) for sample in samples]


def test_fc19_running_requests_and_no_token_stand_still() -> None:
    progress = Progress()
    found = signs(progress, (told(float(second)) for second in range(13)))
    assert found == [Sign.NONE] + [Sign.STILL] * 12
    assert progress.still_s == 12.0


@pytest.mark.parametrize("counter", ["prompt_tokens_total", "generation_tokens_total"])
def test_either_counter_moves_it(counter: str) -> None:
    progress = Progress()
    signs(progress, (told(float(second)) for second in range(12)))
    assert progress.take(told(12.0, **{counter: 9000.0}), BOUND_S) is Sign.MOVED
    assert progress.still_s == 0.0


def test_an_idle_engine_does_not_stand_still() -> None:
    progress = Progress()
    found = signs(progress, (told(float(second), running=0.0) for second in range(20)))
    assert set(found) == {Sign.IDLE}
    assert progress.still_s == 0.0


def test_the_first_request_after_an_idle_time_starts_the_clock() -> None:
    progress = Progress()
    signs(progress, (told(float(second), running=0.0) for second in range(20)))
    signs(progress, (told(float(second)) for second in range(20, 24)))
    assert progress.still_s == 3.0


def test_one_long_prompt_in_chunks_fills_the_cache() -> None:
    """vLLM counts a prompt at its first token; until then its KV use tells that it is worked on."""
    progress = Progress()
    found = signs(progress, (told(float(second), kv_usage=second / 50) for second in range(30)))
    assert found[1:] == [Sign.MOVED] * 29


def test_arrivals_at_a_hung_engine_are_no_progress() -> None:
    """They may take cache too, before the engine has done anything for them."""
    progress = Progress()
    samples = [told(float(second), running=2.0 + second, kv_usage=second / 50) for second in range(13)]
    assert signs(progress, samples)[1:] == [Sign.STILL] * 12


def test_a_restarted_engine_starts_the_clock_anew() -> None:
    progress = Progress()
    signs(progress, (told(float(second)) for second in range(12)))
    assert progress.take(told(12.0, 0.0, prompt_tokens_total=0.0), BOUND_S) is Sign.NONE
    assert progress.still_s == 0.0


@pytest.mark.parametrize(
    "absent", [("running",), ("prompt_tokens_total", "generation_tokens_total")], ids=["running", "counters"]
)
def test_what_is_absent_is_never_judged(absent: tuple[str, ...]) -> None:
    progress = Progress()
    members = dict.fromkeys(absent)
    assert set(signs(progress, (told(float(s), **members) for s in range(30)))) == {Sign.NONE}
    assert progress.still_s == 0.0


def test_one_counter_is_enough_and_its_coming_or_going_starts_anew() -> None:
    progress = Progress()
    signs(progress, (told(float(second), prompt_tokens_total=None) for second in range(5)))
    assert progress.still_s == 4.0
    assert progress.take(told(5.0), BOUND_S) is Sign.NONE
    assert progress.take(told(6.0, prompt_tokens_total=None), BOUND_S) is Sign.NONE


def test_after_a_gap_in_the_samples_it_starts_anew() -> None:
    """Scrapes failed meanwhile: the requests that run now may be others."""
    progress = Progress()
    signs(progress, (told(float(second)) for second in range(9)))
    assert progress.take(told(18.1), BOUND_S) is Sign.NONE
    assert progress.still_s == 0.0


def test_two_samples_alone_say_nothing() -> None:
    progress = Progress()
    signs(progress, (told(0.0), told(9.9)))
    assert progress.still_s == 0.0
    progress.take(told(19.8), BOUND_S)
    assert progress.still_s == 19.8


def test_a_whole_answer_is_progress_whatever_the_counters_say() -> None:
    progress = Progress()
    signs(progress, (told(float(second)) for second in range(10)))
    progress.succeeded(8.5)
    assert progress.still_s == 0.5
    progress.take(told(10.0), BOUND_S)
    assert progress.still_s == 1.5


def test_prompts_of_our_own_are_given_their_time_up_to_a_bound() -> None:
    assert patience_s(10.0, 0, 0.1) == 10.0
    assert patience_s(10.0, 100_000, 0.1) == 20.0
    assert patience_s(10.0, 100_000_000, 0.1) == 30.0


@given(
    st.lists(
        st.tuples(
            st.floats(0.1, 4.0), st.sampled_from([0.0, 1.0, 2.0, None]), st.integers(0, 1),
            st.sampled_from([0.1, 0.2, None]),
        ),
        min_size=1,
    )
)  # fmt: skip
def test_what_it_calls_still_is(samples: list[tuple[float, float | None, int, float | None]]) -> None:
    """For as long as it says, every sample had requests running and the same counters."""
    progress, now_s, generated = Progress(), 0.0, 0.0
    past: list[LoadSample] = []
    for passed_s, running, made, kv_usage in samples:
        now_s += passed_s
        generated += made
        past.append(told(now_s, generated, running=running, kv_usage=kv_usage))
        progress.take(past[-1], BOUND_S)
        since_s = now_s - progress.still_s
        if progress.still_s:
            lately = [one for one in past if one.at_s >= since_s - 1e-9]
            assert len(lately) >= 3
            assert all(one.running and one.generation_tokens_total == generated for one in lately)
