"""Load signals from a vLLM server's `/metrics` page, in every dialect vLLM has used.

Only the handful of families that routing needs are read; of a page of 50 KB most lines are never looked into.
Names by vLLM's own source and recordings: `vllm:` (the engine), `ray_vllm_` and `ray_vllm:` (behind Ray, which
may not use colons), KV use as `kv_cache_usage_perc` and, before, `gpu_cache_usage_perc`; counters with and
without `_total`. Prometheus text format 0.0.4 and OpenMetrics are both read.

A signal that is not there is None, never zero: an engine whose names we do not know must not look idle (FC-22).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite

from gslb.types import LoadSample

_PREFIXES = (b"vllm:", b"ray_vllm_", b"ray_vllm:")


def _counter(*stems: bytes) -> tuple[bytes, ...]:
    return tuple(name for stem in stems for name in (stem + b"_total", stem))


def _full_names(*stems: bytes) -> tuple[bytes, ...]:
    return tuple(prefix + stem for stem in stems for prefix in _PREFIXES)


_RUNNING = _full_names(b"num_requests_running")
_WAITING = _full_names(b"num_requests_waiting")
_KV_USAGE = _full_names(b"kv_cache_usage_perc", b"gpu_cache_usage_perc")
_PROMPT_TOKENS = _full_names(*_counter(b"prompt_tokens"))
_GENERATION_TOKENS = _full_names(*_counter(b"generation_tokens"))
_PREFIX_HITS = _full_names(*_counter(b"prefix_cache_hits", b"gpu_prefix_cache_hits"))
_PREFIX_QUERIES = _full_names(*_counter(b"prefix_cache_queries", b"gpu_prefix_cache_queries"))
_ITL_SUM = _full_names(b"inter_token_latency_seconds_sum", b"time_per_output_token_seconds_sum")
_ITL_COUNT = _full_names(b"inter_token_latency_seconds_count", b"time_per_output_token_seconds_count")
_CACHE_INFO = _full_names(b"cache_config_info")
# Of several names of one signal the first that is present counts alone: a server between two versions exposes
# both, and they say the same thing twice.
_WANTED = frozenset(
    _RUNNING + _WAITING + _KV_USAGE + _PROMPT_TOKENS + _GENERATION_TOKENS + _PREFIX_HITS + _PREFIX_QUERIES
    + _ITL_SUM + _ITL_COUNT
)  # fmt: skip

_SAMPLE = re.compile(
    rb"""
    ([a-zA-Z_:][a-zA-Z0-9_:]*)                        # name
    [ \t]* (?: \{ (?: [^"{}] | "(?:[^"\\]|\\.)*" )* \} )?   # labels; a quoted value may hold braces and blanks
    [ \t]+ ([^ \t\#]+)                                # value
    (?: [ \t]+ -?[0-9.eE+]+ )?                        # timestamp
    (?: [ \t]+ \#.* )? [ \t\r]*                       # exemplar of OpenMetrics
    """,
    re.VERBOSE,
)


_CACHE_SIZE = re.compile(rb'(?<=[{,])(kv_cache_size_tokens|num_gpu_blocks|block_size)="([0-9]{1,15})"')
"""The cache's size stands in labels: in tokens, in older versions as so many blocks of so many."""


class NoLoadSignal(ValueError):
    """The page holds nothing that tells load. `reason` is a short label: `empty`, `html`, `no_vllm_metrics`,
    `no_load_metrics` (vLLM's, but neither running nor waiting), `nan`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Scrape:
    """What one page said, and how many of its vLLM lines could not be read (cut in the middle, no number)."""

    sample: LoadSample
    bad_lines: int


def parse_vllm_metrics(text: bytes, at_s: float, own_running: int) -> Scrape:
    """Read one `/metrics` page taken at `at_s` monotonic seconds with `own_running` own requests in flight.

    Several engines behind one server: requests and counters are summed, KV use is the maximum. NaN and other
    values that no engine can mean count as absent. A last line without its line feed was cut and is not used:
    `12.0` may have become `1`.

    Raises NoLoadSignal when neither running nor waiting requests are told.
    """
    values: dict[bytes, list[float]] = {}
    seen = _Seen()
    for name, value in _wanted_samples(text, seen):
        values.setdefault(name, [])
        if isfinite(value) and value >= 0:
            values[name].append(value)
    running, waiting = _pick(values, _RUNNING), _pick(values, _WAITING)
    if not running and not waiting:
        raise _no_signal(text, values, seen)
    kv_usage = _pick(values, _KV_USAGE)
    sample = LoadSample(
        at_s=at_s,
        running=_sum(running),
        waiting=_sum(waiting),
        kv_usage=min(1.0, max(kv_usage)) if kv_usage else None,
        prompt_tokens_total=_sum(_pick(values, _PROMPT_TOKENS)),
        generation_tokens_total=_sum(_pick(values, _GENERATION_TOKENS)),
        prefix_hits_total=_sum(_pick(values, _PREFIX_HITS)),
        prefix_queries_total=_sum(_pick(values, _PREFIX_QUERIES)),
        itl_sum_s=_sum(_pick(values, _ITL_SUM)),
        itl_count=_sum(_pick(values, _ITL_COUNT)),
        kv_tokens=seen.kv_tokens or None,
        own_running_then=own_running,
    )
    return Scrape(sample, seen.bad_lines)


class _Seen:
    """What passed by while reading."""

    __slots__ = ("bad_lines", "kv_tokens", "vllm_lines")

    def __init__(self) -> None:
        self.vllm_lines = 0
        self.bad_lines = 0
        self.kv_tokens = 0.0


def _wanted_samples(text: bytes, seen: _Seen) -> Iterator[tuple[bytes, float]]:
    lines = text.split(b"\n")
    if lines.pop().strip():
        seen.bad_lines += 1
    for line in lines:
        if not line.startswith(_PREFIXES):
            continue
        seen.vllm_lines += 1
        name = line[: line.find(b"{")] if b"{" in line else line.split(None, 1)[0]
        if name in _CACHE_INFO:
            seen.kv_tokens += _cache_tokens(line)
            continue
        if name.strip() not in _WANTED:
            if b" " not in line and b"\t" not in line:
                seen.bad_lines += 1  # cut before its value
            continue
        sample = _SAMPLE.fullmatch(line)
        value = _number(sample[2]) if sample is not None else None
        if sample is None or value is None:
            seen.bad_lines += 1
        else:
            yield sample[1], value


def _cache_tokens(line: bytes) -> float:
    """Tokens one engine's cache holds, 0 where it does not tell."""
    told = dict(_CACHE_SIZE.findall(line))
    tokens = told.get(b"kv_cache_size_tokens")
    if tokens is not None:
        return float(tokens)
    return float(told.get(b"num_gpu_blocks", 0)) * float(told.get(b"block_size", 0))


def _number(text: bytes) -> float | None:
    if b"_" in text:
        return None  # Python's float() takes 1_0 for ten, the text format does not
    try:
        return float(text)
    except ValueError:
        return None


def _pick(values: dict[bytes, list[float]], names: tuple[bytes, ...]) -> list[float]:
    return next((found for name in names if (found := values.get(name))), [])


def _sum(values: list[float]) -> float | None:
    return sum(values) if values else None


def _no_signal(text: bytes, values: dict[bytes, list[float]], seen: _Seen) -> NoLoadSignal:
    if not text.strip():
        return NoLoadSignal("empty", "the page is empty: is this the engine's /metrics?")
    if text.lstrip()[:1] == b"<":
        return NoLoadSignal("html", "the page is HTML, not metrics: is there a login page or gateway in between?")
    if any(name in values for name in (*_RUNNING, *_WAITING)):
        return NoLoadSignal("nan", "running and waiting requests are given, but not as numbers >= 0")
    if seen.vllm_lines:
        return NoLoadSignal(
            "no_load_metrics", "vLLM's metrics are there, but no num_requests_running or num_requests_waiting"
        )
    return NoLoadSignal("no_vllm_metrics", "no metric is vLLM's (vllm:... or ray_vllm_...): is it another engine?")
