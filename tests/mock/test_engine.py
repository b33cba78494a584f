"""The engine model: exact times where they can be told by hand, properties everywhere else."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gslb.mock.engine import STEPS_PER_ADVANCE, Engine, PrefixCache, QueueFull, Token, Work
from gslb.mock.settings import MockSettings


def engine_of(**numbers: float | int | None) -> Engine:
    plain: dict[str, float | int | None] = {
        "slots": 4,
        "prefill_ms_per_token": 1.0,
        "itl_ms": 10.0,
        "itl_per_seq_ms": 1.0,
    }
    return Engine(MockSettings(**{**plain, **numbers}))  # type: ignore[arg-type]


def run(engine: Engine) -> list[tuple[float, Token]]:
    """Every token with the time of its event, in ms (rounded to the microsecond)."""
    timeline = []
    while (due_s := engine.next_event_s()) is not None:
        timeline += [(round(due_s * 1e3, 3), token) for token in engine.advance(due_s)]
    return timeline


def times_of(timeline: list[tuple[float, Token]], work_id: int) -> list[float]:
    return [at_ms for at_ms, token in timeline if token.work_id == work_id]


def test_lone_request_waits_its_prefill_then_itl_for_each_token() -> None:
    engine = engine_of()
    engine.submit(Work(1, prompt_tokens=100, output_tokens=3), 0.0)
    assert times_of(run(engine), 1) == [100.0, 110.0, 120.0]


def test_last_token_carries_the_reason_and_the_count() -> None:
    engine = engine_of()
    engine.submit(Work(1, 10, 2, finish_reason="stop"), 0.0)
    assert [token for _, token in run(engine)] == [Token(1, 1, 0, None), Token(1, 2, 0, "stop")]


def test_step_grows_with_the_batch() -> None:
    engine = engine_of()
    for work_id in (1, 2, 3):
        engine.submit(Work(work_id, 1, 20), 0.0)
    times = times_of(run(engine), 2)
    gaps = {round(later - earlier, 3) for earlier, later in itertools.pairwise(times[1:10])}
    assert gaps == {12.0}


def test_prefill_of_one_delays_the_tokens_of_another() -> None:
    engine = engine_of(itl_per_seq_ms=0.0)
    engine.submit(Work(1, 1, 4), 0.0)
    engine.advance(0.001)
    engine.submit(Work(2, 500, 1), 0.002)
    timeline = run(engine)
    # The step under way ends at 11 ms; the next holds 500 prompt tokens besides one decode.
    assert times_of(timeline, 1) == [11.0, 521.0, 531.0]
    assert times_of(timeline, 2) == [521.0]


def test_long_prompts_are_cut_into_steps_of_the_token_budget() -> None:
    engine = engine_of(max_batched_tokens=100)
    engine.submit(Work(1, 250, 1), 0.0)
    assert engine.next_event_s() == pytest.approx(0.100)
    assert times_of(run(engine), 1) == [250.0]
    assert engine.stats.step_tokens.count == 3


def test_prefill_backlog_is_served_in_order() -> None:
    engine = engine_of(max_batched_tokens=100, itl_ms=0.0, itl_per_seq_ms=0.0)
    engine.submit(Work(1, 100, 1), 0.0)
    engine.submit(Work(2, 100, 1), 0.0)
    engine.submit(Work(3, 100, 1), 0.0)
    timeline = run(engine)
    assert [(at_ms, token.work_id) for at_ms, token in timeline] == [(100.0, 1), (200.0, 2), (300.0, 3)]


def test_waiting_request_gets_the_slot_that_frees() -> None:
    engine = engine_of(slots=1)
    engine.submit(Work(1, 10, 2), 0.0)
    engine.submit(Work(2, 10, 1), 0.0)
    assert (engine.running, engine.waiting) == (1, 1)
    timeline = run(engine)
    assert times_of(timeline, 1) == [10.0, 20.0]
    assert times_of(timeline, 2) == [30.0]
    assert engine.stats.queue_s.total == pytest.approx(0.020)


def test_queue_limit_refuses_and_counts() -> None:
    engine = engine_of(slots=1, queue_limit=1)
    engine.submit(Work(1, 10, 2), 0.0)
    engine.submit(Work(2, 10, 2), 0.0)
    with pytest.raises(QueueFull):
        engine.submit(Work(3, 10, 2), 0.0)
    assert engine.stats.rejected == 1
    assert {token.work_id for _, token in run(engine)} == {1, 2}


def test_abort_frees_the_slot_at_once() -> None:
    engine = engine_of(slots=1)
    engine.submit(Work(1, 1000, 2), 0.0)
    engine.submit(Work(2, 10, 1), 0.0)
    assert engine.abort(1, 0.5)
    assert (engine.running, engine.waiting) == (1, 0)
    # Nothing is left of the first step, so the next one begins with the abort.
    assert times_of(run(engine), 2) == [510.0]
    assert engine.stats.success == dict.fromkeys(engine.stats.success, 0) | {"length": 1}


def test_abort_of_the_unknown_is_no_error() -> None:
    assert not engine_of().abort(7, 0.0)


def test_shared_prefix_is_not_computed_again() -> None:
    engine = engine_of(itl_ms=0.0)
    engine.submit(Work(1, 100, 1, blocks=(11, 12, 13, 14, 15, 16)), 0.0)
    run(engine)
    engine.submit(Work(2, 100, 1, blocks=(11, 12, 13, 99)), 1.0)
    ((_, token),) = run(engine)
    assert token.cached_tokens == 48
    assert engine.stats.prefix_queries == 200
    assert engine.stats.prefix_hits == 48
    assert engine.stats.prompt_tokens == 200
    assert engine.stats.ttft_s.total == pytest.approx(0.100 + 0.052)


def test_last_prompt_token_is_always_computed() -> None:
    engine = engine_of()
    engine.submit(Work(1, 32, 1, blocks=(1, 2)), 0.0)
    run(engine)
    engine.submit(Work(2, 32, 1, blocks=(1, 2)), 1.0)
    ((_, token),) = run(engine)
    assert token.cached_tokens == 16


def test_cache_forgets_the_oldest_and_keeps_chain_beginnings() -> None:
    cache = PrefixCache(3)
    cache.add([1, 2, 3, 4])
    assert len(cache) == 3
    assert cache.leading([1, 2, 3, 4]) == 3
    cache.add([9])
    assert len(cache) == 3
    assert cache.leading([9]) == 1
    assert cache.leading([5]) == 0


def test_kv_use_rises_with_tokens_and_falls_at_the_end() -> None:
    engine = engine_of(kv_blocks=10, itl_ms=10.0)
    engine.submit(Work(1, 16, 17), 0.0)
    assert engine.kv_usage == pytest.approx(0.1)
    engine.advance(0.016)
    assert engine.kv_usage == pytest.approx(0.2)
    run(engine)
    assert engine.kv_usage == 0.0


def test_prompt_that_does_not_fit_the_kv_cache_waits_though_slots_are_free() -> None:
    engine = engine_of(kv_blocks=10)
    engine.submit(Work(1, 100, 2), 0.0)
    engine.submit(Work(2, 100, 1), 0.0)
    assert (engine.running, engine.waiting) == (1, 1)
    assert len(run(engine)) == 3


def test_frozen_engine_counts_but_makes_nothing_and_does_not_catch_up() -> None:
    engine = engine_of()
    engine.submit(Work(1, 10, 3), 0.0)
    engine.freeze(0.004)
    engine.submit(Work(2, 10, 1), 1.0)
    assert engine.next_event_s() is None
    assert engine.advance(5.0) == []
    assert engine.running == 2
    engine.thaw(10.004)
    assert engine.next_event_s() == pytest.approx(10.010)
    assert len(run(engine)) == 4


def test_work_without_output_ends_with_its_prefill() -> None:
    engine = engine_of()
    engine.submit(Work(1, 10, 0, finish_reason="stop"), 0.0)
    assert run(engine) == [(10.0, Token(1, 0, 0, "stop"))]
    assert engine.stats.generation_tokens == 0
    assert engine.stats.success["stop"] == 1


def test_engine_without_durations_lets_its_driver_breathe() -> None:
    engine = engine_of(prefill_ms_per_token=0.0, itl_ms=0.0, itl_per_seq_ms=0.0)
    engine.submit(Work(1, 5, STEPS_PER_ADVANCE + 10), 0.0)
    assert len(engine.advance(0.0)) == STEPS_PER_ADVANCE
    assert engine.next_event_s() == 0.0
    assert len(engine.advance(0.0)) == 10


@pytest.mark.parametrize("work", [Work(1, 0, 1), Work(1, 1, -1)])
def test_impossible_work_is_refused(work: Work) -> None:
    with pytest.raises(ValueError, match="work 1"):
        engine_of().submit(work, 0.0)


def test_id_in_use_is_refused() -> None:
    engine = engine_of()
    engine.submit(Work(1, 1, 1), 0.0)
    with pytest.raises(ValueError, match="already"):
        engine.submit(Work(1, 1, 1), 0.0)


works = st.tuples(st.integers(1, 300), st.integers(0, 12), st.lists(st.integers(0, 20), max_size=8))


@given(
    asked=st.lists(works, min_size=1, max_size=20),
    slots=st.integers(1, 5),
    kv_blocks=st.integers(1, 60),
    budget=st.integers(1, 200),
)
def test_everything_finishes_in_order_and_nothing_leaks(
    asked: list[tuple[int, int, list[int]]], slots: int, kv_blocks: int, budget: int
) -> None:
    engine = engine_of(slots=slots, kv_blocks=kv_blocks, max_batched_tokens=budget)
    for work_id, (prompt_tokens, output_tokens, blocks) in enumerate(asked):
        engine.submit(Work(work_id, prompt_tokens, output_tokens, blocks[: prompt_tokens // 16]), 0.0)
        assert engine.running <= slots
    firsts: list[int] = []
    made = dict.fromkeys(range(len(asked)), 0)
    while (due_s := engine.next_event_s()) is not None:
        assert engine.running <= slots
        for token in engine.advance(due_s):
            if token.made <= 1:
                firsts.append(token.work_id)
            made[token.work_id] = token.made
    assert firsts == list(range(len(asked))), "first tokens come in order of arrival"
    assert made == {work_id: output for work_id, (_, output, _) in enumerate(asked)}
    assert (engine.running, engine.waiting, engine.kv_usage) == (0, 0, 0.0)
    assert engine.stats.generation_tokens == sum(output for _, output, _ in asked)
    assert engine.stats.prompt_tokens == sum(prompt for prompt, _, _ in asked) == engine.stats.prefix_queries
    assert engine.stats.e2e_s.count == len(asked) == sum(engine.stats.success.values())
    assert len(engine.cache) <= kv_blocks


@dataclass
class Fate:
    """What the machine knows of one request."""

    output_tokens: int
    made: int = 0
    is_over: bool = False


class EngineMachine(RuleBasedStateMachine):
    """Submits, aborts, freezes and time in any order: the counts always add up."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = engine_of(slots=3, queue_limit=4, kv_blocks=40, max_batched_tokens=64)
        self.now_s = 0.0
        self.fates: dict[int, Fate] = {}
        self.rejected = 0

    @rule(prompt_tokens=st.integers(1, 200), output_tokens=st.integers(0, 6))
    def submit(self, prompt_tokens: int, output_tokens: int) -> None:
        work_id = len(self.fates) + self.rejected
        was_waiting = self.engine.waiting
        try:
            self.engine.submit(Work(work_id, prompt_tokens, output_tokens), self.now_s)
        except QueueFull:
            assert was_waiting == 4
            self.rejected += 1
        else:
            self.fates[work_id] = Fate(output_tokens)

    @precondition(lambda self: self.fates)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        work_id = data.draw(st.sampled_from(sorted(self.fates)))
        fate = self.fates[work_id]
        before = self.engine.running + self.engine.waiting
        assert self.engine.abort(work_id, self.now_s) is not fate.is_over
        assert self.engine.running + self.engine.waiting == before - (not fate.is_over)
        fate.is_over = True

    @rule(by_ms=st.integers(0, 300))
    def advance(self, by_ms: int) -> None:
        self.now_s += by_ms / 1e3
        for token in self.engine.advance(self.now_s):
            fate = self.fates[token.work_id]
            assert not fate.is_over, "no token after the end"
            assert token.made == fate.made + min(1, fate.output_tokens)
            fate.made = token.made
            fate.is_over = token.finish_reason is not None
            assert fate.is_over is (fate.made >= fate.output_tokens)

    @rule(for_ms=st.integers(0, 50))
    def freeze_a_while(self, for_ms: int) -> None:
        self.engine.freeze(self.now_s)
        self.now_s += for_ms / 1e3
        assert self.engine.advance(self.now_s) == []
        self.engine.thaw(self.now_s)

    @invariant()
    def adds_up(self) -> None:
        alive = sum(1 for fate in self.fates.values() if not fate.is_over)
        assert self.engine.running + self.engine.waiting == alive
        assert self.engine.running <= 3
        assert self.engine.waiting <= 4
        assert (self.engine.next_event_s() is None) is (alive == 0), "work there is gets done"
        assert 0.0 <= self.engine.kv_usage <= 1.0
        assert alive or self.engine.kv_usage == 0.0
        assert self.engine.stats.rejected == self.rejected


TestEngineMachine = EngineMachine.TestCase
