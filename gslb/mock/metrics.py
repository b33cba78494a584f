"""`/metrics` as vLLM 0.32 writes it: same names, HELP, TYPE, labels and order; the values are the engine's.

Dialects, for readers that must know all of them: `current` (0.32), `retired` (the names before
`kv_cache_usage_perc` came, without an engine label), `ray` (`ray_vllm_` prefix and Ray's labels).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prometheus_client.utils import floatToGoString

from gslb.mock.stats import FINISHED_REASONS, EngineStats, Histogram

CONTENT_TYPE = b"text/plain; version=1.0.0; charset=utf-8"
DIALECTS = ("current", "retired", "ray")

Labels = tuple[tuple[str, str], ...]
Values = list[tuple[Labels, float]]


@dataclass(frozen=True, slots=True)
class EngineReading:
    """One engine at one moment: requests, KV share 0..1, and its counters."""

    running: int
    waiting: int
    kv_usage: float
    stats: EngineStats


@dataclass(frozen=True, slots=True)
class Family:
    """A metric family of gauges or counters. `read` gives the extra labels and values of one engine."""

    name: str
    kind: str
    help_text: str
    read: Callable[[EngineReading], Values]
    has_engine: bool = True


@dataclass(frozen=True, slots=True)
class HistogramFamily:
    """A metric family of histograms."""

    name: str
    help_text: str
    read: Callable[[EngineStats], Histogram]


def _one(read: Callable[[EngineReading], float]) -> Callable[[EngineReading], Values]:
    return lambda reading: [((), float(read(reading)))]


def _by(label: str, read: Callable[[EngineReading], dict[str, float]]) -> Callable[[EngineReading], Values]:
    return lambda reading: [(((label, key),), float(value)) for key, value in read(reading).items()]


def _zero(_: EngineReading) -> float:
    return 0.0


def _by_source(reading: EngineReading) -> dict[str, float]:
    total, cached = reading.stats.prompt_tokens, reading.stats.prompt_tokens_cached
    return {"local_compute": total - cached, "local_cache_hit": cached, "external_kv_transfer": 0}


def _cached_by_tier(reading: EngineReading) -> dict[str, float]:
    tiers = dict.fromkeys(("device", "host", "p2p", "disk", "external_unspecified"), 0.0)
    return {**tiers, "device": float(reading.stats.prefix_hits)}


FAMILIES = (
    Family("num_requests_running", "gauge", "Number of requests in model execution batches.",
           _one(lambda r: r.running)),
    Family("num_requests_waiting", "gauge", "Number of requests waiting to be processed.",
           _one(lambda r: r.waiting)),
    Family("num_requests_waiting_by_reason", "gauge",
           "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; "
           "'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status). "
           "Sum of all reasons equals vllm:num_requests_waiting.",
           _by("reason", lambda r: {"capacity": r.waiting, "deferred": 0})),
    Family("engine_sleep_state", "gauge",
           "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; "
           "weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.",
           _by("sleep_state", lambda _: {"awake": 1, "weights_offloaded": 0, "discard_all": 0})),
    Family("kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.",
           _one(lambda r: r.kv_usage)),
    Family("prefix_cache_queries_total", "counter",
           "Prefix cache queries, in terms of number of queried tokens.", _one(lambda r: r.stats.prefix_queries)),
    Family("prefix_cache_hits_total", "counter", "Prefix cache hits, in terms of number of cached tokens.",
           _one(lambda r: r.stats.prefix_hits)),
    Family("external_prefix_cache_queries_total", "counter",
           "External prefix cache queries from KV connector cross-instance cache sharing, "
           "in terms of number of queried tokens.", _one(_zero)),
    Family("external_prefix_cache_hits_total", "counter",
           "External prefix cache hits from KV connector cross-instance cache sharing, "
           "in terms of number of cached tokens.", _one(_zero)),
    Family("num_preemptions_total", "counter", "Cumulative number of preemption from the engine.", _one(_zero)),
    Family("prompt_tokens_total", "counter", "Number of prefill tokens processed.",
           _one(lambda r: r.stats.prompt_tokens)),
    Family("prompt_tokens_by_source_total", "counter", "Number of prompt tokens by source.",
           _by("source", _by_source)),
    Family("prompt_tokens_cached_total", "counter", "Number of cached prompt tokens (local + external).",
           _one(lambda r: r.stats.prompt_tokens_cached)),
    Family("prompt_tokens_cached_by_source_total", "counter",
           "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded to "
           "DRAM), disk, p2p (transferred from another vLLM instance) or external_unspecified. Counted at "
           "admission; sums to vllm:prefix_cache_hits + vllm:external_prefix_cache_hits.",
           _by("source", _cached_by_tier)),
    Family("generation_tokens_total", "counter", "Number of generation tokens processed.",
           _one(lambda r: r.stats.generation_tokens)),
    Family("request_success_total", "counter", "Count of successfully processed requests.",
           _by("finished_reason", lambda r: {key: float(r.stats.success[key]) for key in FINISHED_REASONS})),
    Family("admission_rejections_total", "counter",
           "Number of admission attempts rejected by a queue limit, by reason.",
           _by("reason", lambda r: {"max_num_queued_reqs": r.stats.rejected, "max_num_queued_tokens": 0}),
           has_engine=False),
)  # fmt: skip

HISTOGRAMS = (
    HistogramFamily("request_prompt_tokens", "Number of prefill tokens processed.",
                    lambda s: s.request_prompt_tokens),
    HistogramFamily("request_generation_tokens", "Number of generation tokens processed.",
                    lambda s: s.request_generation_tokens),
    HistogramFamily("iteration_tokens_total", "Histogram of number of tokens per engine_step.",
                    lambda s: s.step_tokens),
    HistogramFamily("request_max_num_generation_tokens",
                    "Histogram of maximum number of requested generation tokens.", lambda s: s.request_max_tokens),
    HistogramFamily("request_params_n", "Histogram of the n request parameter.", lambda s: s.request_n),
    HistogramFamily("request_params_max_tokens", "Histogram of the max_tokens request parameter.",
                    lambda s: s.request_max_tokens),
    HistogramFamily("time_to_first_token_seconds", "Histogram of time to first token in seconds.",
                    lambda s: s.ttft_s),
    HistogramFamily("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.",
                    lambda s: s.itl_s),
    HistogramFamily("request_time_per_output_token_seconds",
                    "Histogram of time_per_output_token_seconds per request.", lambda s: s.tpot_s),
    HistogramFamily("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.",
                    lambda s: s.e2e_s),
    HistogramFamily("request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.",
                    lambda s: s.queue_s),
    HistogramFamily("request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.",
                    lambda s: s.inference_s),
    HistogramFamily("request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.",
                    lambda s: s.prefill_s),
    HistogramFamily("request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.",
                    lambda s: s.decode_s),
    HistogramFamily("request_prefill_kv_computed_tokens",
                    "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
                    lambda s: s.prefill_computed_tokens),
)  # fmt: skip

RETIRED_NAMES = {
    "kv_cache_usage_perc": "gpu_cache_usage_perc",
    "prefix_cache_queries_total": "gpu_prefix_cache_queries_total",
    "prefix_cache_hits_total": "gpu_prefix_cache_hits_total",
    "inter_token_latency_seconds": "time_per_output_token_seconds",
}
"""Today's name -> the one before it."""

RAY_LABELS: Labels = (("ReplicaId", "mock-replica"), ("WorkerId", "mock-worker"))


def render(
    readings: Sequence[EngineReading],
    model: str,
    created_s: float,
    dialect: str = "current",
    cache_config: Sequence[tuple[str, str]] = (),
) -> bytes:
    """The text of `/metrics` for the engines in `readings` (label `engine` counts from 0).

    `created_s` is the engine's start in Unix seconds. Raises ValueError for an unknown dialect.
    """
    if dialect not in DIALECTS:
        raise ValueError(f"metrics dialect {dialect!r} is unknown; known are {', '.join(DIALECTS)}")
    page = _Page(dialect, model, created_s)
    for family in FAMILIES:
        page.add_family(family, readings)
    for histogram in HISTOGRAMS:
        page.add_histogram(histogram, readings)
    if cache_config:
        rows: Values = [((*cache_config, ("engine", str(i))), 1.0) for i in range(len(readings))]
        name = page.full_name("cache_config_info")
        page.add(name, "gauge", "Information of the LLMEngine CacheConfig", rows, has_model=False)
    return page.text()


def float_text(value: float) -> str:
    """A number as Prometheus clients write it."""
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]


class _Page:
    """Lines of one `/metrics` answer in one dialect."""

    def __init__(self, dialect: str, model: str, created_s: float) -> None:
        self.dialect = dialect
        self.model = model
        self.created_s = created_s
        self.lines: list[str] = []

    def full_name(self, name: str) -> str:
        if self.dialect == "ray":
            return f"ray_vllm_{name}"
        return f"vllm:{RETIRED_NAMES.get(name, name) if self.dialect == 'retired' else name}"

    def add(self, name: str, kind: str, help_text: str, rows: Values, has_model: bool = True) -> None:
        self.lines.append(f"# HELP {name} {help_text}")
        self.lines.append(f"# TYPE {name} {kind}")
        self.lines += [f"{name}{self._labels(labels, has_model)} {float_text(value)}" for labels, value in rows]

    def add_family(self, family: Family, readings: Sequence[EngineReading]) -> None:
        rows: Values = []
        for index, reading in enumerate(readings if family.has_engine else readings[:1]):
            engine: Labels = (("engine", str(index)),) if family.has_engine else ()
            rows += [((*engine, *labels), value) for labels, value in family.read(reading)]
        name = self.full_name(family.name)
        self.add(name, family.kind, family.help_text, rows)
        if family.kind == "counter":
            self._add_created(name.removesuffix("_total"), family.help_text, rows)

    def add_histogram(self, family: HistogramFamily, readings: Sequence[EngineReading]) -> None:
        name = self.full_name(family.name)
        self.lines.append(f"# HELP {name} {family.help_text}")
        self.lines.append(f"# TYPE {name} histogram")
        created: Values = []
        for index, reading in enumerate(readings):
            engine: Labels = (("engine", str(index)),)
            created.append((engine, 0.0))
            histogram = family.read(reading.stats)
            edges = [*map(float_text, histogram.bounds), "+Inf"]
            for edge, count in zip(edges, histogram.cumulative(), strict=True):
                self.lines.append(f"{name}_bucket{self._labels((*engine, ('le', edge)))} {float_text(count)}")
            self.lines.append(f"{name}_count{self._labels(engine)} {float_text(histogram.count)}")
            self.lines.append(f"{name}_sum{self._labels(engine)} {float_text(histogram.total)}")
        self._add_created(name, family.help_text, created)

    def _add_created(self, name: str, help_text: str, rows: Values) -> None:
        # The Python client shows when each series began, as gauges: a reader must not take them for load.
        if self.dialect == "current":
            self.add(f"{name}_created", "gauge", help_text, [(labels, self.created_s) for labels, _ in rows])

    def _labels(self, labels: Labels, has_model: bool = True) -> str:
        every = list(labels)
        if has_model:
            every.append(("model_name", self.model))
        if self.dialect == "ray":
            every += RAY_LABELS
        if self.dialect == "retired":
            every = [(key, value) for key, value in every if key != "engine"]
        return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in sorted(every)) + "}"

    def text(self) -> bytes:
        return ("\n".join(self.lines) + "\n").encode()


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
