"""What the benchmarks of prediction and calibration make of what they have measured."""

from __future__ import annotations

from math import ceil
from random import Random
from typing import Any

import pytest

from benchmarks.calibration import profile_of, simulated_ttfts_ms
from benchmarks.open_loop import Question, ask, body_of, capacity_per_s, open_loop, questions
from benchmarks.prediction import errors_of
from gslb.mock.settings import MockSettings
from gslb.mock.vllm import MockVllm
from gslb.routing.profiles import Profile
from gslb.sim.lengths import Independent, Lognormal
from gslb.sim.setting import EngineSpec


def record(predicted: float | None, measured: float | None, **members: Any) -> dict[str, Any]:
    return {
        "outcome": "ok", "region": "eu", "home": "eu", "held_ms": 0.0, "predicted_ttft_ms": predicted,
        "ttft_ms": measured, **members,
    }  # fmt: skip


def test_errors_are_shares_of_what_was_measured_by_kind() -> None:
    found = errors_of(
        0.8,
        [
            record(110.0, 100.0),
            record(300.0, 200.0, region="us"),
            record(1_050.0, 1_100.0, held_ms=1_000.0, region="us"),
            record(None, 50.0),
            record(50.0, None),
            record(1.0, 50.0, outcome="client_gone"),
        ],
    )
    by_kind = {one.kind: one for one in found}
    assert {kind: one.count for kind, one in by_kind.items()} == {"home": 1, "spilled": 1, "held": 1, "all": 3}
    assert by_kind["home"].median == pytest.approx(0.10)
    assert by_kind["spilled"].signed == pytest.approx(0.50)
    assert by_kind["held"].signed == pytest.approx(-50 / 1100)
    assert by_kind["held"].median_after_hold == pytest.approx(0.5)
    assert by_kind["all"].p90 == pytest.approx(0.50)


def test_a_profile_is_found_again_in_what_it_costs() -> None:
    true = Profile(12.0, 0.5, 0.0, 0.1, 0.3, 4.0)
    prefill = [
        (tokens, 4.0 * ceil(tokens / 256) + true.prefill_span_ms(0, tokens))
        for tokens in (32, 64, 128, 256, 512, 1024, 2048, 3072, 4096)
    ]
    steps = [(batch, true.decode_step_ms(batch)) for batch in (1, 2, 4, 8)]
    found = profile_of(prefill, steps, step_tokens=256)
    for name in Profile.__slots__:
        assert getattr(found, name) == pytest.approx(getattr(true, name)), name


def test_the_simulated_engine_gives_each_question_its_time() -> None:
    spec = EngineSpec("e", Profile(10.0, 0.0, 0.0, 0.1, 0.1, 5.0), slots=1)
    asked = [Question(0.0, 100, 3, ""), Question(0.010, 100, 1, ""), Question(9.0, 200, 1, "")]
    assert simulated_ttfts_ms(spec, asked) == pytest.approx([15.0, 25.0 + 15.0, 25.0])


async def test_clients_come_at_their_times_and_read_whole_streams() -> None:
    mock = MockVllm(MockSettings(models=("m",), slots=4, itl_ms=1.0, prefill_ms_per_token=0.0))
    await mock.start("127.0.0.1", 0)
    lengths = Independent(Lognormal(20, 21), Lognormal(5, 6))
    asked = questions(200.0, 0.1, lengths, Random(1))
    try:
        answers = await open_loop(mock.url, "m", asked)
        counted = await open_loop(mock.url, "m", questions(200.0, 0.05, lengths, Random(2), as_ids=True))
        refused = await ask(mock.url, body_of("unknown", asked[0]))
        rate = await capacity_per_s([mock.url], "m", 4, lengths, Random(3))
    finally:
        await mock.stop()
    assert [len(answer.token_s) for answer in answers] == [question.output_tokens for question in asked]
    assert all(answer.is_whole and answer.status == 200 for answer in (*answers, *counted))
    assert (refused.status, refused.is_whole, refused.token_s) == (404, False, [])
    assert rate > 0
