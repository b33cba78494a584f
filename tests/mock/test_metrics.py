"""The text of /metrics: numbers that move with the engine, and the names of other times."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gslb.mock.engine import Engine, Work
from gslb.mock.metrics import DIALECTS, EngineReading, render
from gslb.mock.settings import MockSettings
from gslb.mock.stats import EngineStats, Histogram


def samples(text: bytes) -> dict[tuple[str, str, str], float]:
    """(sample name, engine label, first other label value that is not the model's) -> value."""
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            more = [value for key, value in sorted(sample.labels.items()) if key not in ("engine", "model_name")]
            key = (sample.name, sample.labels.get("engine", ""), more[0] if more else "")
            found[key] = sample.value
    return found


def reading_of(engine: Engine) -> EngineReading:
    return EngineReading(engine.running, engine.waiting, engine.kv_usage, engine.stats)


def test_numbers_are_the_engines() -> None:
    engine = Engine(MockSettings(slots=2, prefill_ms_per_token=1.0, itl_ms=20.0, itl_per_seq_ms=0.0, kv_blocks=64))
    for work_id in range(4):
        engine.submit(Work(work_id, 32, 3, blocks=(1, 2)), 0.0)
    engine.advance(0.2)
    found = samples(render([reading_of(engine)], "m", 0.0))
    assert found["vllm:num_requests_running", "0", ""] == engine.running
    assert found["vllm:num_requests_waiting", "0", ""] == engine.waiting
    assert found["vllm:kv_cache_usage_perc", "0", ""] == engine.kv_usage
    assert found["vllm:prompt_tokens_total", "0", ""] == engine.stats.prompt_tokens > 0
    assert found["vllm:generation_tokens_total", "0", ""] == engine.stats.generation_tokens > 0
    assert found["vllm:prefix_cache_queries_total", "0", ""] == engine.stats.prefix_queries
    assert found["vllm:prefix_cache_hits_total", "0", ""] == engine.stats.prefix_hits > 0
    assert found["vllm:request_success_total", "0", "length"] == engine.stats.success["length"] > 0
    computed = found["vllm:prompt_tokens_by_source_total", "0", "local_compute"]
    cached = found["vllm:prompt_tokens_by_source_total", "0", "local_cache_hit"]
    assert computed + cached == engine.stats.prompt_tokens
    assert found["vllm:time_to_first_token_seconds_count", "0", ""] == engine.stats.ttft_s.count
    assert found["vllm:time_to_first_token_seconds_sum", "0", ""] == engine.stats.ttft_s.total
    assert found["vllm:time_to_first_token_seconds_bucket", "0", "+Inf"] == engine.stats.ttft_s.count


def test_histogram_edges_are_inclusive_and_buckets_add_up() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.cumulative() == [2, 4, 5]
    assert (histogram.count, histogram.total) == (5, 14.0)


def test_retired_names() -> None:
    text = render([EngineReading(1, 2, 0.5, EngineStats())], "m", 0.0, "retired").decode()
    assert 'vllm:gpu_cache_usage_perc{model_name="m"} 0.5\n' in text
    assert 'vllm:gpu_prefix_cache_queries_total{model_name="m"} 0.0\n' in text
    assert "vllm:time_per_output_token_seconds_bucket" in text
    for gone in ("kv_cache_usage_perc", "engine=", "_created"):
        assert gone not in text


def test_ray_names_with_several_engines() -> None:
    readings = [EngineReading(1, 2, 0.5, EngineStats()), EngineReading(3, 0, 0.25, EngineStats())]
    found = samples(render(readings, "m", 0.0, "ray"))
    assert found["ray_vllm_num_requests_running", "0", "mock-replica"] == 1
    assert found["ray_vllm_num_requests_running", "1", "mock-replica"] == 3
    assert found["ray_vllm_kv_cache_usage_perc", "1", "mock-replica"] == 0.25
    assert not [name for name, _, _ in found if name.startswith("vllm:")]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_odd_model_names_are_escaped(dialect: str) -> None:
    model = 'a"} 1\nfake 2\\'
    text = render([EngineReading(0, 0, 0.0, EngineStats())], model, 0.0, dialect)
    families = list(text_string_to_metric_families(text.decode()))
    assert "fake" not in {family.name for family in families}
    assert {sample.labels["model_name"] for family in families for sample in family.samples} == {model}


def test_unknown_dialect_is_told() -> None:
    with pytest.raises(ValueError, match="known are current, retired, ray"):
        render([], "m", 0.0, "klingon")
