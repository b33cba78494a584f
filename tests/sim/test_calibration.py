"""The simulated engine against the mock's: two programs of the same model, written apart, under equal parameters.

The mock adds its time per sequence for each sequence of a step but one, prompts included; the profile for each
that decodes. So they are close, not equal. Memory is ample: where it runs out the mock goes on, the simulator
preempts.
"""

from __future__ import annotations

from random import Random

import pytest

from gslb.mock.engine import Engine as MockEngine
from gslb.mock.engine import Work
from gslb.mock.settings import MockSettings
from gslb.native import is_native
from gslb.routing.profiles import Profile
from gslb.sim.setting import EngineSpec
from tests.sim.naive_engine import Job
from tests.sim.test_engine import serve

pytestmark = pytest.mark.skipif(is_native(), reason="a compiled class is not inherited from by one that is not")

_BLOCK = 16


def profile_of(mock: MockSettings) -> Profile:
    """The mock's speed as a profile."""
    per_token = mock.prefill_ms_per_token
    return Profile(mock.itl_ms - mock.itl_per_seq_ms, mock.itl_per_seq_ms, 0.0, per_token, per_token)


def spec_of(mock: MockSettings) -> EngineSpec:
    """The mock as an engine of the simulator."""
    return EngineSpec(
        "mock", profile_of(mock), slots=mock.slots, kv_tokens=mock.kv_blocks * mock.block_size,
        block_tokens=mock.block_size, step_tokens=mock.max_batched_tokens,
    )  # fmt: skip


def chat(count: int, per_s: float, seed: int, sessions: int = 0) -> list[Job]:
    """`count` requests of chat; with `sessions` their prompts begin like those of the same session."""
    dice = Random(seed)
    at_s = 0.0
    jobs = []
    for name in range(count):
        at_s += dice.expovariate(per_s)
        prompt = min(6000, int(dice.lognormvariate(6.5, 0.8)) + 1)
        output = min(800, int(dice.lognormvariate(4.5, 0.8)) + 1)
        blocks: tuple[int, ...] = ()
        if sessions:
            root = dice.randrange(sessions) * 10_000
            blocks = tuple(range(root, root + prompt // _BLOCK))
        jobs.append(Job(name, at_s, prompt, output, blocks, _BLOCK))
    return jobs


def mock_ttfts_s(mock: MockSettings, jobs: list[Job]) -> list[float]:
    """What the mock's engine makes of them."""
    engine = MockEngine(mock)
    ttfts: list[float] = []

    def advance(until_s: float) -> None:
        while (due_s := engine.next_event_s()) is not None and due_s <= until_s:
            first = [token.work_id for token in engine.advance(due_s) if token.made == 1]
            ttfts.extend(due_s - jobs[work_id].at_s for work_id in first)

    for job in jobs:
        advance(job.at_s)
        engine.submit(Work(job.name, job.prompt, job.output, job.blocks), job.at_s)
    advance(float("inf"))
    return ttfts


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


@pytest.mark.parametrize(
    ("case", "per_s", "sessions", "members"),
    [
        ("light", 2.0, 0, {}),
        ("busy", 10.0, 0, {}),
        ("full", 8.0, 0, {"slots": 24}),
        ("small steps", 8.0, 0, {"max_batched_tokens": 512}),
        ("shared prefixes", 12.0, 20, {}),
    ],
)
def test_first_tokens_come_when_the_mock_says(
    case: str, per_s: float, sessions: int, members: dict[str, int]
) -> None:
    mock = MockSettings(itl_ms=12.0, itl_per_seq_ms=0.2, prefill_ms_per_token=0.05, kv_blocks=65_536, **members)
    jobs = chat(1500, per_s, seed=11, sessions=sessions)
    theirs = mock_ttfts_s(mock, jobs)
    first_s = serve(spec_of(mock), jobs, {}).record.first
    ours = [first_s[job.name] - job.at_s for job in jobs]
    assert len(theirs) == len(ours) == len(jobs)
    for share in (0.5, 0.9):
        assert quantile(ours, share) == pytest.approx(quantile(theirs, share), rel=0.10), (case, share)
