"""Load signals in every dialect of vLLM's /metrics; what is absent stays absent (FC-22)."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gslb.wire.vllm_metrics import NoLoadSignal, Scrape, parse_vllm_metrics

CAPTURES = Path(__file__).parents[3] / "shared" / "vllm-captures"

CURRENT = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 12.0
vllm:num_requests_running{engine="1",model_name="m"} 5.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="1",model_name="m"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 300.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 90.0
vllm:prefix_cache_queries_created{engine="0",model_name="m"} 1.7960059868242705e+09
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 30.0
vllm:external_prefix_cache_hits_total{engine="0",model_name="m"} 7.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 1000.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local"} 77.0
vllm:generation_tokens_total{engine="0",model_name="m"} 2000.0
vllm:generation_tokens_total{engine="1",model_name="m"} 1.5e+03
"""


def parse(text: bytes, own: int = 0) -> Scrape:
    return parse_vllm_metrics(text, 7.0, own)


def test_current_names_over_two_engines() -> None:
    scrape = parse(CURRENT, own=4)
    sample = scrape.sample
    assert scrape.bad_lines == 0
    assert (sample.at_s, sample.own_running_then) == (7.0, 4)
    assert (sample.running, sample.waiting, sample.kv_usage) == (17.0, 3.0, 0.75)
    assert (sample.prefix_queries_total, sample.prefix_hits_total) == (90.0, 30.0)
    assert (sample.prompt_tokens_total, sample.generation_tokens_total) == (1000.0, 3500.0)


CACHE_INFO = b'vllm:cache_config_info{_block_size_resolved="True",block_size="16",%bmamba_block_size="None"} 1.0\n'


@pytest.mark.parametrize(
    ("told", "tokens"),
    [
        (b'kv_cache_size_tokens="4096",num_gpu_blocks="300",', 4096.0),
        (b'num_gpu_blocks="300",', 4800.0),
        (b'num_gpu_blocks="None",num_gpu_blocks_override="7",', None),
        (b'num_cpu_blocks="300",', None),
        (b"", None),
    ],
)
def test_the_size_of_the_cache(told: bytes, tokens: float | None) -> None:
    line = CACHE_INFO % told
    assert parse(CURRENT + line).sample.kv_tokens == tokens
    both = parse(line + CURRENT + line).sample.kv_tokens  # one line for each engine
    assert both == (None if tokens is None else 2 * tokens)
    assert parse(CURRENT).sample.kv_tokens is None
    for cut in range(len(line)):
        assert parse(CURRENT + line[:cut] + b"\n").sample.kv_tokens in (None, 4800.0, tokens)


@pytest.mark.parametrize("prefix", [b"vllm:", b"ray_vllm_", b"ray_vllm:"])
@pytest.mark.parametrize("total", [b"", b"_total"])
def test_retired_names_and_prefixes(prefix: bytes, total: bytes) -> None:
    lines = [
        b"num_requests_running 2",
        b"num_requests_waiting 1",
        b"gpu_cache_usage_perc 0.5",
        b"gpu_prefix_cache_hits" + total + b" 3",
        b"gpu_prefix_cache_queries" + total + b" 4",
        b"prompt_tokens" + total + b" 5",
        b"generation_tokens" + total + b" 6",
    ]
    sample = parse(b"".join(prefix + line + b"\n" for line in lines)).sample
    assert (sample.running, sample.waiting, sample.kv_usage) == (2.0, 1.0, 0.5)
    assert (sample.prefix_hits_total, sample.prefix_queries_total) == (3.0, 4.0)
    assert (sample.prompt_tokens_total, sample.generation_tokens_total) == (5.0, 6.0)


def test_new_name_wins_and_is_not_added_to_the_old() -> None:
    sample = parse(
        b"vllm:num_requests_running 1\nvllm:gpu_cache_usage_perc 0.9\nvllm:kv_cache_usage_perc 0.2\n"
        b"vllm:gpu_prefix_cache_hits_total 9\nvllm:prefix_cache_hits_total 2\n"
        b"vllm:prompt_tokens 8\nvllm:prompt_tokens_total 8\n"
    ).sample
    assert (sample.kv_usage, sample.prefix_hits_total, sample.prompt_tokens_total) == (0.2, 2.0, 8.0)


def test_old_name_serves_when_the_new_one_is_not_a_number() -> None:
    text = b"vllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc NaN\nvllm:gpu_cache_usage_perc 0.3\n"
    assert parse(text).sample.kv_usage == 0.3


def test_absent_is_none_never_zero() -> None:
    sample = parse(b"vllm:num_requests_waiting 0\n").sample
    assert sample.waiting == 0.0
    assert sample.running is None
    assert sample.kv_usage is None
    assert sample.prompt_tokens_total is None
    assert sample.prefix_hits_total is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "empty"),
        (b"\n \n", "empty"),
        (b"\n<!doctype html><html>sign in</html>\n", "html"),
        (b"# TYPE sglang:num_running_reqs gauge\nsglang:num_running_reqs 40\n", "no_vllm_metrics"),
        (b'vllm:num_requests_waiting_by_reason{reason="capacity"} 7\n', "no_load_metrics"),
        (b"vllm:kv_cache_usage_perc 0.1\nvllm:prompt_tokens_total 5\n", "no_load_metrics"),
        (b"vllm:num_requests_running NaN\nvllm:num_requests_waiting NaN\n", "nan"),
        (b"vllm:num_requests_running +Inf\n", "nan"),
        (b"vllm:num_requests_running -1\n", "nan"),
        (b"\x00\xff\xfe garbage\n", "no_vllm_metrics"),
    ],
)
def test_nothing_usable_has_a_reason(text: bytes, reason: str) -> None:
    with pytest.raises(NoLoadSignal) as caught:
        parse(text)
    assert caught.value.reason == reason
    assert str(caught.value)


def test_one_engine_that_says_nan_does_not_hide_the_other() -> None:
    text = b'vllm:num_requests_running{engine="0"} NaN\nvllm:num_requests_running{engine="1"} 4\n'
    assert parse(text).sample.running == 4.0


@pytest.mark.parametrize(
    "cut",
    [
        b"vllm:num_requests_wai",
        b"vllm:num_requests_waiting",
        b'vllm:num_requests_waiting{engine="0"',
        b'vllm:num_requests_waiting{engine="0',
        b'vllm:num_requests_waiting{engine="0"}',
        b'vllm:num_requests_waiting{engine="0"} ',
        b"vllm:num_requests_waiting 1_0",
        b"vllm:num_requests_waiting ten",
    ],
)
def test_a_cut_line_is_skipped_and_counted(cut: bytes) -> None:
    scrape = parse(b"vllm:num_requests_running 2\n" + cut + b"\nvllm:kv_cache_usage_perc 0.1\n")
    assert scrape.bad_lines == 1
    assert (scrape.sample.running, scrape.sample.waiting, scrape.sample.kv_usage) == (2.0, None, 0.1)


def test_cut_at_each_byte_nothing_is_made_up() -> None:
    whole = parse(CURRENT).sample
    for end in range(len(CURRENT)):
        try:
            scrape = parse(CURRENT[:end])
        except NoLoadSignal:
            continue
        sample = scrape.sample
        assert sample.running in (12.0, whole.running)
        assert sample.waiting in (None, whole.waiting)
        assert sample.kv_usage in (None, 0.25, whole.kv_usage)
        assert sample.generation_tokens_total in (None, 2000.0, whole.generation_tokens_total)
        assert scrape.bad_lines == (0 if CURRENT[end - 1] == ord("\n") else 1)


def test_labels_may_hold_anything() -> None:
    text = (
        b'vllm:num_requests_running{model_name="a} 99 \\"b{ c"} 2\n'
        b'vllm:num_requests_waiting { model_name = "x" , } 3 1796005986824\r\n'
        b'vllm:prompt_tokens_total{model_name="m"} 5.0 # {trace_id="t"} 1.0\n# EOF\n'
    )
    scrape = parse(text)
    assert (scrape.sample.running, scrape.sample.waiting, scrape.sample.prompt_tokens_total) == (2.0, 3.0, 5.0)
    assert scrape.bad_lines == 0


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(noise: bytes) -> None:
    for text in (noise, b"vllm:num_requests_running" + noise, CURRENT + noise, noise + b"\n" + CURRENT):
        try:
            sample = parse(text).sample
        except NoLoadSignal:
            continue
        for value in (sample.running, sample.waiting, sample.kv_usage):
            assert value is None or (math.isfinite(value) and value >= 0)


@given(st.lists(st.tuples(st.integers(0, 999), st.integers(0, 999), st.floats(0, 1)), min_size=1, max_size=8))
def test_any_number_of_engines_adds_up(engines: list[tuple[int, int, float]]) -> None:
    text = "".join(
        f'vllm:num_requests_running{{engine="{i}"}} {running}\n'
        f'vllm:num_requests_waiting{{engine="{i}"}} {waiting}\n'
        f'vllm:kv_cache_usage_perc{{engine="{i}"}} {kv!r}\n'
        for i, (running, waiting, kv) in enumerate(engines)
    )
    sample = parse(text.encode()).sample
    assert sample.running == sum(running for running, _, _ in engines)
    assert sample.waiting == sum(waiting for _, waiting, _ in engines)
    assert sample.kv_usage == max(kv for _, _, kv in engines)


@pytest.mark.skipif(not CAPTURES.is_dir(), reason="recordings of a real vLLM are not beside the checkout")
@pytest.mark.parametrize(
    ("name", "running", "waiting"),
    [("metrics-loaded", 1.0, 7.0), ("metrics-fresh", 0.0, 0.0), ("metrics-queue-full", 2.0, 2.0)],
)
def test_a_real_page(name: str, running: float, waiting: float) -> None:
    page = (CAPTURES / f"{name}.http").read_bytes().partition(b"\r\n\r\n")[2]
    scrape = parse(page)
    assert scrape.bad_lines == 0
    assert (scrape.sample.running, scrape.sample.waiting) == (running, waiting)
    assert scrape.sample.kv_usage is not None
    assert scrape.sample.prefix_queries_total is not None
    assert scrape.sample.generation_tokens_total is not None
    assert scrape.sample.kv_tokens is not None
