"""Prometheus metrics: plain counters and the fleet's snapshot, turned into metric families when asked.

The data path only bumps ints. Label values are bounded: regions, endpoints and states come from the configuration,
models from the fleet's own list (FC-38); series of endpoints that a reload removed go with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import isinf

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gslb.admin.edge import AdminEdge
from gslb.counters import Counters, Histogram
from gslb.routing.health import State
from gslb.routing.snapshot import EndpointView


def registry_of(edge: AdminEdge) -> CollectorRegistry:
    """A registry of its own (nothing global) that exposes everything this edge counts."""
    registry = CollectorRegistry()
    registry.register(EdgeCollector(edge))
    return registry


class EdgeCollector(Collector):
    """Builds all families anew at each scrape."""

    def __init__(self, edge: AdminEdge) -> None:
        self._edge = edge

    def describe(self) -> list[Metric]:
        """Nothing: names are not looked up at registration, the edge may not be ready then."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All metric families of the edge."""
        counters = self._edge.counters
        views = self._edge.fleet.snapshot.endpoints
        yield from _traffic(counters)
        yield from _fleet(self._edge, views)
        yield from _observation_errors(counters, views)
        yield _gauge("gslb_config_generation", "Configurations put in force.", counters.config_generation)
        yield _counter(
            "gslb_config_reload_failures", "Configurations refused at a reload.", counters.config_reload_failures
        )
        yield _counter(
            "gslb_tls_handshake_failures",
            "Client connections closed before their TLS handshake was done.",
            counters.tls_handshake_failures,
        )
        yield _counter(
            "gslb_access_log_dropped", "Access-log lines that could not be written.", counters.access_log_dropped
        )
        yield _gauge("gslb_open_connections", "Client connections open now.", counters.open_connections)
        yield _gauge("gslb_open_exchanges", "Requests under way now.", counters.open_exchanges)
        yield _gauge("gslb_queue_depth", "Requests held now because nobody has room.", counters.queue_depth)
        yield from _limits(counters, self._edge.settings().config.tenants)


def _traffic(counters: Counters) -> Iterator[Metric]:
    yield _counters("gslb_requests", "Requests ended.", ("region", "model", "outcome"), counters.requests.items())
    yield _histogram(
        "gslb_request_seconds", "From the request's first byte to the answer's last.", counters.request_seconds
    )
    ttft = HistogramMetricFamily(
        "gslb_ttft_seconds", "From the request to the first content byte.", labels=("region", "model")
    )
    for labels, histogram in list(counters.ttft_seconds.items()):
        ttft.add_metric(labels, _cumulated(histogram), histogram.sum)
    yield ttft
    # Its buckets go below zero, so it has no _sum (OpenMetrics wants it so).
    yield _histogram(
        "gslb_ttft_prediction_error_seconds",
        "Predicted time to first token against the observed one.",
        counters.prediction_error_seconds,
    )
    yield _histogram(
        "gslb_proxy_overhead_seconds", "Time gslb itself added to a request.", counters.overhead_seconds
    )
    yield _counters(
        "gslb_spillover", "Served elsewhere than home.", ("home", "served", "reason"), counters.spillover.items()
    )
    yield _counters(
        "gslb_fenced",
        "Requests that a fence left nowhere to go.",
        ("fence",),
        (((fence,), count) for fence, count in list(counters.fenced.items())),
    )
    yield _counters(
        "gslb_attempts", "Upstream attempts by how they ended.", ("region", "result"), counters.attempts.items()
    )
    yield _counters(
        "gslb_tokens", "Tokens by the engines' own usage.", ("region", "model", "kind"), counters.tokens.items()
    )


def _fleet(edge: AdminEdge, views: tuple[EndpointView, ...]) -> Iterator[Metric]:
    inflight = GaugeMetricFamily(
        "gslb_inflight", "Requests this edge has under way at an endpoint.", labels=("region", "endpoint")
    )
    states = GaugeMetricFamily(
        "gslb_endpoint_state", "1 for the state an endpoint is in.", labels=("region", "endpoint", "state")
    )
    nearest_ms: dict[str, float] = {}
    for view in views:
        region, key = view.endpoint.region.name, view.endpoint.key
        inflight.add_metric((region, key), view.own.requests)
        for state in State:
            states.add_metric((region, key, state.value), float(view.state is state))
        rtt_ms = edge.observer.rtt_ms(key)
        if rtt_ms is not None:
            nearest_ms[region] = min(rtt_ms, nearest_ms.get(region, rtt_ms))
    yield inflight
    yield states
    rtt = GaugeMetricFamily(
        "gslb_rtt_seconds", "Measured round trip to a region's nearest endpoint.", labels=("region",)
    )
    for region, rtt_ms in nearest_ms.items():
        rtt.add_metric((region,), rtt_ms / 1000)
    yield rtt


def _limits(counters: Counters, tenants: Iterable[str]) -> Iterator[Metric]:
    running = GaugeMetricFamily("gslb_tenant_inflight", "Requests of a tenant under way now.", labels=("tenant",))
    for tenant in tenants:
        running.add_metric((tenant,), counters.tenant_running.get(tenant, 0))
    yield running
    yield _counters(
        "gslb_rate_limited",
        "Requests refused because their tenant had asked for too much per time, by what it had none left of.",
        ("tenant", "counts"),
        counters.rate_limited.items(),
    )
    yield _counters(
        "gslb_refused_connections",
        "Client connections closed unanswered, by the limit they met.",
        ("limit",),
        (((limit,), count) for limit, count in list(counters.refused_connections.items())),
    )


def _observation_errors(counters: Counters, views: tuple[EndpointView, ...]) -> Iterator[Metric]:
    region_of: Mapping[str, str] = {view.endpoint.key: view.endpoint.region.name for view in views}
    yield _counters(
        "gslb_scrape_errors",
        "Load scrapes and model reads that failed, and unreadable lines.",
        ("region", "endpoint", "reason"),
        (
            ((region_of[key], key, reason), count)
            for (key, reason), count in list(counters.scrape_errors.items())
            if key in region_of
        ),
    )
    yield _counters(
        "gslb_probe_errors",
        "Observation cycles lost by an unexpected error of gslb.",
        ("region", "endpoint"),
        (((region_of[key], key), count) for key, count in list(counters.probe_errors.items()) if key in region_of),
    )


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, value=value)


def _counters(
    name: str, text: str, labels: tuple[str, ...], counts: Iterable[tuple[tuple[str, ...], int]]
) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, count in counts:
        family.add_metric(values, count)
    return family


def _histogram(name: str, text: str, histogram: Histogram) -> HistogramMetricFamily:
    return HistogramMetricFamily(name, text, buckets=_cumulated(histogram), sum_value=histogram.sum)


def _cumulated(histogram: Histogram) -> list[tuple[str, float]]:
    total = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        total += count
        buckets.append(("+Inf" if isinf(bound) else repr(bound), total))
    return buckets
