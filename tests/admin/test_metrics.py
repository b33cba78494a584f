"""Every metric of the contract, under its name, with bounded and escaped labels."""

from __future__ import annotations

import prometheus_client
import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from gslb.admin.metrics import registry_of
from gslb.routing.health import State
from tests.admin.edge import Edge

STRANGE = 'a"} 1\nfake_metric 2\\'

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples_of(edge: Edge) -> Samples:
    text = generate_latest(registry_of(edge)).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


@pytest.fixture
def edge() -> Edge:
    edge = Edge()
    edge.learn()
    counters = edge.counters
    counters.requests["eu", "m1", "ok"] += 3
    counters.requests["eu", STRANGE, "ok"] += 1
    counters.request_seconds.observe(0.3)
    counters.ttft_seconds["eu", "m1"].observe(0.2)
    counters.ttft_seconds["eu", "m1"].observe(99.0)
    counters.prediction_error_seconds.observe(-0.15)
    counters.overhead_seconds.observe(0.0003)
    counters.spillover["eu", "ap", "full"] += 2
    counters.fenced["residency"] += 1
    counters.attempts["eu", "status_5xx"] += 4
    counters.tokens["eu", "m1", "completion"] += 500
    counters.rate_limited["acme", "tokens"] += 7
    counters.scrape_errors["eu/b", "timeout"] += 6
    counters.scrape_errors["gone/x", "timeout"] += 6
    counters.probe_errors["eu/a"] += 1
    counters.config_generation = 5
    counters.config_reload_failures = 2
    return edge


def test_names_and_values(edge: Edge) -> None:
    samples = samples_of(edge)
    assert value(samples, "gslb_requests_total", region="eu", model="m1", outcome="ok") == 3
    assert value(samples, "gslb_requests_total", region="eu", model=STRANGE, outcome="ok") == 1
    assert value(samples, "gslb_spillover_total", home="eu", served="ap", reason="full") == 2
    assert value(samples, "gslb_fenced_total", fence="residency") == 1
    assert value(samples, "gslb_attempts_total", region="eu", result="status_5xx") == 4
    assert value(samples, "gslb_tokens_total", region="eu", model="m1", kind="completion") == 500
    assert value(samples, "gslb_rate_limited_total", tenant="acme", counts="tokens") == 7
    assert value(samples, "gslb_inflight", region="eu", endpoint="eu/a") == 1
    assert value(samples, "gslb_inflight", region="ap", endpoint="ap/a") == 0
    assert value(samples, "gslb_rtt_seconds", region="eu") == 0.0125
    assert value(samples, "gslb_config_generation") == 5
    assert value(samples, "gslb_config_reload_failures_total") == 2
    assert value(samples, "gslb_scrape_errors_total", region="eu", endpoint="eu/b", reason="timeout") == 6
    assert value(samples, "gslb_probe_errors_total", region="eu", endpoint="eu/a") == 1
    assert "fake_metric" not in {name for name, _ in samples}
    assert ("gslb_rtt_seconds", frozenset({("region", "ap")})) not in samples, "not measured: absent, not zero"


def test_every_state_has_its_series(edge: Edge) -> None:
    samples = samples_of(edge)
    for key, region, current in (("eu/a", "eu", State.ADMITTING), ("ap/a", "ap", State.UNKNOWN)):
        states = {
            state: value(samples, "gslb_endpoint_state", region=region, endpoint=key, state=state.value)
            for state in State
        }
        assert states == {state: float(state is current) for state in State}


def test_histograms_are_cumulative(edge: Edge) -> None:
    samples = samples_of(edge)
    ttft = {"region": "eu", "model": "m1"}
    assert value(samples, "gslb_ttft_seconds_bucket", le="0.1", **ttft) == 0
    assert value(samples, "gslb_ttft_seconds_bucket", le="0.2", **ttft) == 1
    assert value(samples, "gslb_ttft_seconds_bucket", le="60.0", **ttft) == 1
    assert value(samples, "gslb_ttft_seconds_bucket", le="+Inf", **ttft) == 2
    assert value(samples, "gslb_ttft_seconds_count", **ttft) == 2
    assert value(samples, "gslb_ttft_seconds_sum", **ttft) == pytest.approx(99.2)
    assert value(samples, "gslb_request_seconds_count") == 1
    assert value(samples, "gslb_proxy_overhead_seconds_bucket", le="0.0005") == 1
    assert value(samples, "gslb_ttft_prediction_error_seconds_bucket", le="-0.2") == 0
    assert value(samples, "gslb_ttft_prediction_error_seconds_bucket", le="-0.1") == 1


def test_openmetrics_parses_too(edge: Edge) -> None:
    text = generate_openmetrics(registry_of(edge)).decode()  # type: ignore[no-untyped-call]
    names = {family.name for family in parse_openmetrics(text)}  # type: ignore[no-untyped-call]
    assert {"gslb_requests", "gslb_ttft_prediction_error_seconds", "gslb_endpoint_state"} <= names


def test_two_edges_share_nothing(edge: Edge) -> None:
    assert value(samples_of(Edge()), "gslb_config_generation") == 0
    assert value(samples_of(edge), "gslb_config_generation") == 5
    assert b"gslb_" not in generate_latest(prometheus_client.REGISTRY)


def test_the_number_of_series_is_bounded_by_the_configuration(edge: Edge) -> None:
    before = len(samples_of(edge))
    for number in range(1000):
        edge.counters.scrape_errors[f"gone/{number}", "timeout"] += 1
        edge.counters.probe_errors[f"gone/{number}"] += 1
    assert len(samples_of(edge)) == before
