"""What the data path counts: plain ints and dicts, cheap to bump, exposed at scrape time by `admin.metrics`.

Label values are bounded by whoever increments: region and endpoint names come from the config, model names
only from the fleet's own list (anything else is `other`, FC-38).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict

TTFT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0)
REQUEST_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
OVERHEAD_BUCKETS_S = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1)
ERROR_BUCKETS_S = (-5.0, -1.0, -0.5, -0.2, -0.1, -0.05, -0.02, 0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


class Histogram:
    """Counts per bucket (`counts[i]`: values <= bounds[i]; the last: above all) and the sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Counters:
    """One process's counts. Keys are label tuples in the order of the metric's labels."""

    def __init__(self) -> None:
        self.requests: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        self.request_seconds = Histogram(REQUEST_BUCKETS_S)
        self.ttft_seconds: defaultdict[tuple[str, str], Histogram] = defaultdict(lambda: Histogram(TTFT_BUCKETS_S))
        self.prediction_error_seconds = Histogram(ERROR_BUCKETS_S)
        self.overhead_seconds = Histogram(OVERHEAD_BUCKETS_S)
        self.spillover: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        self.fenced: defaultdict[str, int] = defaultdict(int)
        self.attempts: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.tokens: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        self.scrape_errors: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.probe_errors: defaultdict[str, int] = defaultdict(int)
        self.tenant_running: dict[str, int] = {}
        self.rate_limited: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.refused_connections: defaultdict[str, int] = defaultdict(int)
        self.config_generation = 0
        self.config_reload_failures = 0
        self.open_connections = 0
        self.open_exchanges = 0
        self.buffered_body_bytes = 0
        """As of the last reading: what is held is counted by `wire.body_budget`."""
        self.queue_depth = 0
        """As of the last reading: requests held because nobody has room."""
        self.tls_handshake_failures = 0
        self.access_log_dropped = 0
        """As of the last reading: lines are counted by the log."""
