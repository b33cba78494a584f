"""The endpoint-load-metrics header, as vLLM and others spell it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gslb.wire.orca import parse_orca

JSON = b'JSON {"named_metrics": {"num_requests_waiting": 3.0, "kv_cache_usage_perc": 0.25}}'
TEXT = b"TEXT named_metrics.num_requests_waiting=3.0, named_metrics.kv_cache_usage_perc=0.25"


@pytest.mark.parametrize("value", [JSON, TEXT, JSON[5:], TEXT[5:], JSON.replace(b"JSON", b"json"), TEXT + b",x=y"])
def test_spellings(value: bytes) -> None:
    sample = parse_orca(value, 9.0, 2)
    assert sample is not None
    assert (sample.at_s, sample.own_running_then) == (9.0, 2)
    assert (sample.waiting, sample.kv_usage) == (3.0, 0.25)
    assert sample.running is None, "vLLM's header tells no running count: absent, not zero"
    assert sample.prompt_tokens_total is None


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"JSON",
        b"JSON null",
        b"JSON []",
        b'JSON {"named_metrics": null}',
        b'JSON {"cpu_utilization": 0.3}',
        b'JSON {"named_metrics": {"num_requests_waiting": "3"}}',
        b'JSON {"named_metrics": {"num_requests_waiting": true}}',
        b'JSON {"named_metrics": {"num_requests_waiting": -1}}',
        b'JSON {"named_metrics": {"num_requests_waiting": NaN}}',
        b"JSON " + b"[" * 5000,
        b"TEXT cpu=0.3, mem=0.8",
        b"TEXT named_metrics.num_requests_waiting=nan",
        b"TEXT named_metrics.num_requests_waiting",
        b"BIN CZqZmZmZmbk/",
        b"\xff\xfe\x00",
    ],
)
def test_nothing_usable_is_none(value: bytes) -> None:
    assert parse_orca(value, 0.0, 0) is None


def test_one_of_the_two_is_enough() -> None:
    sample = parse_orca(b"TEXT named_metrics.kv_cache_usage_perc=1.5", 0.0, 0)
    assert sample is not None
    assert (sample.waiting, sample.kv_usage) == (None, 1.0)


@pytest.mark.parametrize("value", [JSON, TEXT])
def test_cut_at_each_byte_never_raises(value: bytes) -> None:
    for end in range(len(value)):
        parse_orca(value[:end], 0.0, 0)


@given(st.binary(max_size=100))
def test_any_bytes_never_raise(noise: bytes) -> None:
    for value in (noise, b"JSON " + noise, b"TEXT " + noise, b"TEXT num_requests_waiting=" + noise):
        parse_orca(value, 0.0, 0)
