"""Laws of the simulated engine, and its equality with a naive one that visits every sequence in every step."""

from __future__ import annotations

from collections.abc import Sequence as Listing
from math import inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gslb.native import is_native
from gslb.routing.profiles import PROFILES, Profile
from gslb.sim.engine import Engine
from gslb.sim.sequence import Sequence
from gslb.sim.setting import EngineSpec
from tests.sim.naive_engine import Job, play

PLAIN = Profile(10.0, 0.5, 0.0, 0.1, 0.2, prefill_step_ms=5.0)

pytestmark = pytest.mark.skipif(is_native(), reason="a compiled class is not inherited from by one that is not")


def spec(**members: object) -> EngineSpec:
    members.setdefault("profile", PLAIN)
    return EngineSpec("e", **members)  # type: ignore[arg-type]


class Named(Sequence):
    """A sequence that says which job it is."""

    def __init__(
        self,
        owner: int,
        prompt: int,
        output: int,
        blocks: tuple[int, ...] = (),
        block_tokens: int = 0,
        answer_blocks: tuple[int, ...] = (),
    ) -> None:
        super().__init__(prompt, output, blocks, block_tokens, answer_blocks)
        self.owner = owner


class Record:
    """Writes down what the engine tells (a `Listener`)."""

    def __init__(self) -> None:
        self.first: dict[object, float] = {}
        self.end: dict[object, float] = {}

    def first_token(self, sequence: Named, now_s: float) -> None:
        assert sequence.owner not in self.first
        self.first[sequence.owner] = now_s

    def finished(self, sequence: Named, now_s: float) -> None:
        assert sequence.owner in self.first
        assert sequence.owner not in self.end
        self.end[sequence.owner] = now_s


class Drive:
    """An engine with its time."""

    def __init__(self, engine_spec: EngineSpec) -> None:
        self.record = Record()
        self.engine: Engine[Named] = Engine(engine_spec, self.record)
        self.sequences: dict[int, Named] = {}

    def until(self, at_s: float) -> None:
        """Do all that is due by `at_s`."""
        while self.engine.due_s <= at_s + 1e-9 and self.engine.due_s < inf:
            self.engine.advance(self.engine.due_s)
            self.check()

    def submit(
        self,
        name: int,
        at_s: float,
        prompt: int,
        output: int,
        blocks: tuple[int, ...] = (),
        block_tokens: int = 0,
        answer_blocks: tuple[int, ...] = (),
    ) -> None:
        self.until(at_s)
        self.sequences[name] = Named(name, prompt, output, blocks, block_tokens, answer_blocks)
        self.engine.submit(self.sequences[name], at_s)
        self.check()

    def abort(self, name: int, at_s: float) -> None:
        self.until(at_s)
        self.engine.abort(self.sequences[name], at_s)
        self.check()

    def check(self) -> None:
        """What holds at any moment."""
        engine = self.engine
        assert engine.memory.held_tokens >= 0
        assert engine.memory.held_tokens + engine.memory.idle_tokens <= engine.spec.kv_tokens
        assert 0 <= engine.running <= engine.spec.slots
        assert 0 <= engine.decoders <= engine.running
        assert engine.waiting >= 0


def serve(engine_spec: EngineSpec, jobs: Listing[Job], aborts: dict[int, float]) -> Drive:
    drive = Drive(engine_spec)
    events = sorted([(j.at_s, 0, j.name) for j in jobs] + [(at_s, 1, name) for name, at_s in aborts.items()])
    by_name = {job.name: job for job in jobs}
    for at_s, is_abort, name in events:
        if is_abort:
            drive.abort(name, at_s)
        else:
            job = by_name[name]
            drive.submit(name, at_s, job.prompt, job.output, job.blocks, job.block_tokens)
    drive.until(1e9)
    return drive


# --- by hand --------------------------------------------------------------------------------------


def test_a_lone_request_takes_its_prefill_then_a_step_a_token() -> None:
    drive = Drive(spec())
    drive.submit(1, 1.0, prompt=100, output=5)
    drive.until(100)
    assert drive.record.first[1] == pytest.approx(1.0 + 0.015)
    assert drive.record.end[1] == pytest.approx(1.015 + 4 * 0.0105)
    assert drive.engine.memory.held_tokens == 0
    assert drive.engine.generation_tokens == 5


def test_a_newcomer_joins_at_the_next_step_and_slows_the_others_by_its_prefill() -> None:
    drive = Drive(spec())
    drive.submit(1, 0.0, prompt=100, output=100)
    at_s = 0.015 + 10 * 0.0105 + 0.004  # in the eleventh decoding step
    drive.submit(2, at_s, prompt=200, output=1)
    drive.until(100)
    joins_s = 0.015 + 11 * 0.0105
    assert drive.record.first[2] == pytest.approx(joins_s + 0.0105 + 0.020)
    assert drive.record.end[2] == drive.record.first[2]
    assert drive.record.end[1] == pytest.approx(0.015 + 99 * 0.0105 + 0.020)


def test_long_prompts_go_in_chunks_and_later_positions_cost_more() -> None:
    drive = Drive(spec(step_tokens=2048))
    drive.submit(1, 0.0, prompt=4096, output=1)
    drive.until(100)
    assert drive.record.first[1] == pytest.approx(0.005 + 0.2048 + 0.005 + 0.4096)


def test_slots_bound_who_runs_and_the_queue_is_first_come_first_served() -> None:
    drive = Drive(spec(slots=2))
    for name in range(5):
        drive.submit(name, 0.0, prompt=10, output=10)
    assert (drive.engine.running, drive.engine.waiting) == (1, 4)  # the first step had begun with the first one
    drive.until(100)
    order = sorted(drive.record.first, key=lambda name: (drive.record.first[name], name))
    assert order == [0, 1, 2, 3, 4]


def test_memory_that_runs_out_sends_the_newest_back() -> None:
    drive = Drive(spec(kv_tokens=300))
    drive.submit(1, 0.0, prompt=100, output=150)
    drive.submit(2, 0.0, prompt=100, output=150)
    drive.until(100)
    assert drive.engine.preemptions == 1
    assert drive.record.end[1] < drive.record.end[2]
    assert drive.engine.generation_tokens == 300


def test_what_can_never_fit_is_told_beforehand() -> None:
    engine: Engine[Named] = Engine(spec(kv_tokens=1000), Record())
    assert engine.fits(900, 100)
    assert not engine.fits(901, 100)


def test_a_prefix_is_computed_once() -> None:
    drive = Drive(spec())
    blocks = tuple(range(10))
    drive.submit(1, 0.0, prompt=1000, output=1, blocks=blocks, block_tokens=100)
    drive.submit(2, 1.0, prompt=1000, output=1, blocks=blocks, block_tokens=100)
    drive.until(100)
    # The last token is always computed, so the last block is.
    assert drive.sequences[2].cached_tokens == 900
    assert drive.record.first[2] == pytest.approx(1.0 + 0.005 + 0.010)
    assert drive.engine.memory.idle_tokens == 1000
    assert (drive.engine.prefix_hits, drive.engine.prefix_queries) == (900, 2000)


def test_an_answer_is_kept_behind_its_prompt() -> None:
    """As vLLM does it: whole blocks, without the last token, from which nothing was computed."""
    drive = Drive(spec())
    drive.submit(
        1, 0.0, prompt=950, output=251, blocks=tuple(range(9)), block_tokens=100, answer_blocks=(9, 10, 11)
    )
    drive.until(50)
    assert drive.engine.memory.idle_tokens == 1200
    drive.submit(2, 60.0, prompt=1300, output=1, blocks=tuple(range(13)), block_tokens=100)
    drive.until(100)
    assert drive.sequences[2].cached_tokens == 1200


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 90), st.integers(1, 150)), max_size=30))
@settings(deadline=None)
def test_conversations_with_kept_answers_stay_within_the_memory(turns: list[tuple[int, int, int]]) -> None:
    drive = Drive(spec(kv_tokens=1500, slots=4))
    said: dict[int, int] = {}
    for name, (talk, question, answer) in enumerate(turns):
        prompt = said.get(talk, 0) + question
        if prompt + answer > 1400:
            prompt = question
        said[talk] = prompt + answer
        blocks = tuple(range(1000 * talk, 1000 * talk + (said[talk] - 1) // 16))
        first = prompt // 16
        drive.submit(name, 0.4 * name, prompt, answer, blocks[:first], 16, blocks[first:])
    drive.until(1000)
    assert len(drive.record.end) == len(turns)
    assert drive.engine.memory.held_tokens == 0


def test_without_a_prefix_cache_nothing_is_kept() -> None:
    drive = Drive(spec(has_prefix_cache=False))
    for name in (1, 2):
        blocks = tuple(range(12))
        drive.submit(
            name, float(name), prompt=1000, output=201, blocks=blocks[:10], block_tokens=100,
            answer_blocks=blocks[10:],
        )  # fmt: skip
    drive.until(100)
    assert drive.sequences[2].cached_tokens == 0
    assert drive.engine.memory.idle_tokens == 0


def test_the_least_recently_used_prefix_gives_way_and_its_end_before_its_beginning() -> None:
    drive = Drive(spec(kv_tokens=2000))
    for name, first_block in enumerate((0, 100, 0, 200)):
        blocks = tuple(range(first_block, first_block + 8))
        drive.submit(name, float(name), prompt=800, output=1, blocks=blocks, block_tokens=100)
    drive.submit(9, 9.0, prompt=801, output=1, blocks=tuple(range(100, 108)), block_tokens=100)
    drive.until(100)
    assert drive.sequences[2].cached_tokens == 700
    # The prompt of 1 was the oldest when that of 3 needed 400 tokens: half of it went, its end first.
    assert drive.sequences[9].cached_tokens == 400


def test_hung_it_takes_in_and_makes_nothing_then_goes_on_where_it_stood() -> None:
    calm, hung = Drive(spec()), Drive(spec())
    for drive in (calm, hung):
        drive.submit(1, 0.0, prompt=100, output=100)
        drive.until(0.5)
    hung.engine.hang(0.5)
    assert hung.engine.due_s == inf
    made = hung.engine.generation_tokens
    assert made == 1 + int((0.5 - 0.015) / 0.0105)
    hung.submit(2, 0.6, prompt=100, output=1)
    assert hung.engine.generation_tokens + hung.engine.made_in_jump(9.0) == made
    assert (hung.engine.running, hung.engine.waiting) == (1, 1)
    hung.engine.recover(10.5)
    for drive in (calm, hung):
        drive.until(100)
    # The newcomer's prefill shares a step with the first.
    assert hung.record.end[1] == pytest.approx(calm.record.end[1] + 10.0 + 0.010)


def test_dead_it_loses_everything_and_may_start_again() -> None:
    drive = Drive(spec(slots=1))
    for name in (1, 2):
        drive.submit(name, 0.0, prompt=100, output=100, blocks=(1,), block_tokens=50)
    lost = drive.engine.die()
    assert [sequence.owner for sequence in lost] == [1, 2]
    assert drive.engine.due_s == inf
    assert (drive.engine.running, drive.engine.waiting, drive.engine.memory.held_tokens) == (0, 0, 0)
    assert drive.engine.memory.idle_tokens == 0
    drive.submit(3, 1.0, prompt=100, output=1, blocks=(1,), block_tokens=50)
    drive.until(100)
    assert drive.sequences[3].cached_tokens == 0
    assert drive.record.first[3] == pytest.approx(1.015)


def test_slowed_down_its_next_steps_last_longer() -> None:
    drive = Drive(spec())
    drive.submit(1, 0.0, prompt=100, output=11)
    drive.until(0.015)
    drive.engine.slow_down(4.0, 0.0155)
    drive.until(100)
    assert drive.record.end[1] == pytest.approx(0.015 + 0.0105 + 9 * 0.042)


def test_a_sample_sees_into_a_jump() -> None:
    drive = Drive(spec(kv_tokens=1000))
    drive.submit(1, 0.0, prompt=100, output=100)
    now_s = 0.015 + 20.5 * 0.0105
    drive.until(now_s)
    assert drive.engine.generation_tokens + drive.engine.made_in_jump(now_s) == 21
    assert drive.engine.memory.held_tokens + drive.engine.made_in_jump(now_s) == 120


def test_work_is_what_full_batches_would_have_taken() -> None:
    drive = Drive(spec(slots=20))
    drive.submit(1, 0.0, prompt=100, output=5)
    drive.until(50)
    token_s = 0.020 / 20  # a step of twenty
    assert drive.engine.work_s(50.0) == pytest.approx(0.010 + 4 * token_s)
    drive.submit(2, 50.0, prompt=100, output=1000)
    drive.until(51.0)
    # Of the second from 50.0 the prompt's step takes 15 ms, the others 10.5 ms each.
    assert drive.engine.work_s(51.0) == pytest.approx(0.020 + (4 + 93) * token_s)


def test_an_engine_that_is_always_full_is_busy_all_the_time_however_slow() -> None:
    drive = Drive(spec(slots=8))
    for number in range(200):
        drive.submit(number, 0.0, prompt=100, output=50)
    drive.until(5.0)
    full = drive.engine.work_s(5.0) / 5.0
    assert 0.95 < full <= 1.0
    drive.engine.slow_down(4.0, 5.0)
    drive.until(9.0)
    assert (drive.engine.work_s(9.0) - 5.0 * full) / 4.0 == pytest.approx(full / 4, rel=0.1)


# --- by dice --------------------------------------------------------------------------------------


@st.composite
def workloads(draw: st.DrawFn) -> tuple[EngineSpec, list[Job], dict[int, float]]:
    kv_tokens = draw(st.sampled_from((400, 900, 100_000)))
    engine_spec = spec(
        profile=draw(st.sampled_from((PLAIN, PROFILES["h100-70b-tp8"]))),
        slots=draw(st.integers(1, 6)),
        kv_tokens=kv_tokens,
        step_tokens=draw(st.sampled_from((64, 256, 8192))),
        has_prefix_cache=draw(st.booleans()),
    )
    jobs: list[Job] = []
    at_s = 0.0
    for name in range(draw(st.integers(1, 14))):
        # Arrivals off the steps' marks: on one, a rounding decides which step a request joins.
        at_s += draw(st.sampled_from((0.0, 0.0031417, 0.0471239, 0.6180339)))
        prompt = draw(st.integers(1, 250))
        root = draw(st.integers(0, 3)) * 1000
        blocks = tuple(range(root, root + -(-prompt // 16))) if draw(st.booleans()) else ()
        jobs.append(Job(name, at_s, prompt, draw(st.integers(1, 120)), blocks, 16 if blocks else 0))
    gone = draw(st.lists(st.integers(0, len(jobs) - 1), max_size=3, unique=True))
    aborts = {name: jobs[name].at_s + draw(st.sampled_from((0.0012345, 0.0577215, 0.9159655))) for name in gone}
    return engine_spec, jobs, aborts


def copies(jobs: Listing[Job]) -> list[Job]:
    return [Job(j.name, j.at_s, j.prompt, j.output, j.blocks, j.block_tokens) for j in jobs]


@settings(max_examples=300, deadline=None)
@given(workloads())
def test_jumping_comes_to_the_same_as_going_step_by_step(
    workload: tuple[EngineSpec, list[Job], dict[int, float]],
) -> None:
    engine_spec, jobs, aborts = workload
    slow = copies(jobs)
    naive = play(engine_spec, slow, aborts)
    drive = serve(engine_spec, jobs, aborts)
    for job in slow:
        assert drive.record.first.get(job.name) == pytest.approx(job.first_s), job
        assert drive.record.end.get(job.name) == pytest.approx(job.end_s), job
        if job.first_s is not None:
            assert drive.sequences[job.name].cached_tokens == job.cached
    assert drive.engine.preemptions == naive.preemptions
    assert drive.engine.memory.idle_tokens == naive.idle_tokens()


@settings(max_examples=100, deadline=None)
@given(workloads())
def test_no_token_is_lost_and_nothing_is_left_behind(
    workload: tuple[EngineSpec, list[Job], dict[int, float]],
) -> None:
    engine_spec, jobs, aborts = workload
    drive = serve(engine_spec, jobs, aborts)
    engine = drive.engine
    assert (engine.running, engine.waiting, engine.decoders, engine.memory.held_tokens) == (0, 0, 0, 0)
    assert engine.due_s == inf
    whole = {job.name for job in jobs} - set(aborts)
    assert whole <= set(drive.record.end)
    assert engine.finished == len(drive.record.end)
    if not aborts:
        assert engine.generation_tokens == sum(job.output for job in jobs)
        assert engine.prompt_tokens == sum(job.prompt for job in jobs)


def test_a_long_run_of_chat_equals_the_naive_engine() -> None:
    dice = Random(7)
    engine_spec = EngineSpec("e", PROFILES["h100-70b-tp8"], slots=16, kv_tokens=9_000, step_tokens=2048)
    at_s = 0.0
    jobs = []
    for name in range(300):
        at_s += dice.expovariate(4.0)
        prompt = int(dice.lognormvariate(6.5, 0.8)) + 1
        jobs.append(Job(name, at_s, min(prompt, 4000), int(dice.lognormvariate(4.0, 0.8)) + 1))
    slow = copies(jobs)
    naive = play(engine_spec, slow, {})
    drive = serve(engine_spec, jobs, {})
    assert naive.preemptions
    assert {name: round(at_s, 6) for name, at_s in drive.record.end.items()} == {
        job.name: round(job.end_s or 0.0, 6) for job in slow
    }
