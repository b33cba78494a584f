"""The fitted constants against the table they were fitted to."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path
from statistics import median

import pytest

from gslb.routing.profiles import LONG_FROM_TOKENS, PROFILES, Profile

TABLE = Path(__file__).resolve().parents[3] / "shared" / "data" / "perf" / "splitwise_perf_model.csv"
MODELS = {"70b": "llama2-70b", "176b": "bloom-176b"}

Measured = dict[tuple[int, int], tuple[float, float]]
"""(prompt tokens, batch) -> (ms of the prompts, ms a token)."""


def measured(name: str) -> Measured:
    """The medians of one class."""
    if not TABLE.exists():
        pytest.skip("no shared data beside the checkout")
    gpu, size, tensor_parallel = name.rsplit("-", 2)
    hardware = {"h100": "h100-80gb", "a100": "a100-80gb", "h100-pcap": "h100-80gb-pcap"}[gpu]
    wanted = (MODELS[size], hardware, tensor_parallel.removeprefix("tp"))
    rows: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    with TABLE.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if (row["model"], row["hardware"], row["tensor_parallel"]) == wanted:
                at = int(row["prompt_size"]), int(row["batch_size"])
                rows[at].append((float(row["prompt_time"]), float(row["token_time"])))
    return {
        at: (median(prompt for prompt, _ in seen), median(token for _, token in seen)) for at, seen in rows.items()
    }


@pytest.mark.parametrize("name", PROFILES)
def test_decoding_steps_are_within_four_percent(name: str) -> None:
    profile = PROFILES[name]
    batches = [batch for prompt, batch in measured(name) if prompt == 512]
    for batch in batches:
        if not (name.endswith("tp2") and batch == 64):
            assert profile.decode_step_ms(batch) == pytest.approx(measured(name)[512, batch][1], rel=0.04)


@pytest.mark.parametrize("name", PROFILES)
def test_lone_prompts_from_512_tokens_are_within_fifteen_percent_and_four_in_the_median(name: str) -> None:
    profile = PROFILES[name]
    errors = []
    for (prompt, batch), (prompt_ms, _) in measured(name).items():
        if batch == 1 and prompt >= 512:
            said_ms = profile.prefill_step_ms + profile.prefill_span_ms(0, prompt)
            errors.append(abs(said_ms / prompt_ms - 1))
    assert len(errors) == 5
    assert max(errors) < 0.155
    assert median(errors) < 0.04


def test_a_span_of_a_prompt_costs_by_its_positions() -> None:
    profile = Profile(10.0, 0.1, 0.01, 1.0, 3.0)
    assert profile.prefill_span_ms(0, 100) == 100.0
    assert profile.prefill_span_ms(LONG_FROM_TOKENS - 10, LONG_FROM_TOKENS + 10) == 40.0
    assert profile.prefill_span_ms(5000, 5001) == 3.0
    assert profile.prefill_span_ms(7, 7) == 0.0
    whole = profile.prefill_span_ms(0, 3000)
    assert whole == profile.prefill_span_ms(0, 1234) + profile.prefill_span_ms(1234, 3000)


def test_a_step_grows_with_its_batch() -> None:
    assert Profile(10.0, 0.1, 0.01, 1.0, 3.0).decode_step_ms(20) == pytest.approx(16.0)
