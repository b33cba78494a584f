"""Load signals from a vLLM server's `/metrics` page, in every dialect vLLM has used.

Only the handful of families that routing needs are searched for: of a page of 50 KB, one a second from each
endpoint, most lines are never looked at. Names by vLLM's own source and recordings: `vllm:` (the engine),
`ray_vllm_` and `ray_vllm:` (behind Ray, which may not use colons), KV use as `kv_cache_usage_perc` and, before,
`gpu_cache_usage_perc`; counters with and without `_total`. Prometheus text format 0.0.4 and OpenMetrics are both
read.

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

_ALL_BUT_BLANKS = bytes(byte for byte in range(256) if byte not in b" \t\n")
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
    page = _Page(text)
    running, waiting = page.values(_RUNNING), page.values(_WAITING)
    if not running and not waiting:
        raise _no_signal(page)
    kv_usage = page.values(_KV_USAGE)
    sample = LoadSample(
        at_s=at_s,
        running=_sum(running),
        waiting=_sum(waiting),
        kv_usage=min(1.0, max(kv_usage)) if kv_usage else None,
        prompt_tokens_total=_sum(page.values(_PROMPT_TOKENS)),
        generation_tokens_total=_sum(page.values(_GENERATION_TOKENS)),
        prefix_hits_total=_sum(page.values(_PREFIX_HITS)),
        prefix_queries_total=_sum(page.values(_PREFIX_QUERIES)),
        itl_sum_s=_sum(page.values(_ITL_SUM)),
        itl_count=_sum(page.values(_ITL_COUNT)),
        kv_tokens=sum(_cache_tokens(line) for line in page.lines(_CACHE_INFO)) or None,
        own_running_then=own_running,
    )
    return Scrape(sample, page.bad_lines + page.cut_lines())


class _Page:
    """A page that is searched for names. `bad_lines` counts those found whose value could not be read."""

    __slots__ = ("bad_lines", "is_named", "text")

    def __init__(self, text: bytes) -> None:
        self.text = b"\n" + text  # so that every line has a line feed before it
        self.bad_lines = 0
        self.is_named = False
        """Any of the names asked for is there, with a value or without."""

    def values(self, names: tuple[bytes, ...]) -> list[float]:
        """The values of the first of `names` that has any, one for each engine."""
        for name in names:
            found: list[float] = []
            for line in self._lines_of(name):
                self._read(line, name, found)
            if found:
                return found
        return []

    def lines(self, names: tuple[bytes, ...]) -> Iterator[bytes]:
        """The whole lines that begin with any of `names`."""
        for name in names:
            yield from self._lines_of(name)

    def _lines_of(self, name: bytes) -> Iterator[bytes]:
        at = self.text.find(b"\n" + name)
        while at >= 0:
            end = self.text.find(b"\n", at + 1)
            if end < 0:
                break  # the last line, and cut
            yield self.text[at + 1 : end]
            at = self.text.find(b"\n" + name, end)

    def _read(self, line: bytes, name: bytes, found: list[float]) -> None:
        if line[len(name) : len(name) + 1] not in (b"{", b" ", b"\t"):
            return  # a longer name, or cut behind it
        sample = _SAMPLE.fullmatch(line)
        value = None if sample is None else _number(sample[2])
        if value is None:
            self.bad_lines += b" " in line or b"\t" in line  # without any it is among the cut ones
            return
        self.is_named = True
        if isfinite(value) and value >= 0:
            found.append(value)

    def cut_lines(self) -> int:
        """How many lines of vLLM's end before their value, an unfinished last line included."""
        cut = int(self.text.rpartition(b"\n")[2].strip() != b"")
        # Of a good page every line has a blank, and only the blanks of a page are looked at one by one.
        if b"\n\n" in self.text.translate(None, _ALL_BUT_BLANKS):
            lines = self.text.split(b"\n")[:-1]
            cut += sum(line.startswith(_PREFIXES) and not (b" " in line or b"\t" in line) for line in lines)
        return cut

    def has_vllm(self) -> bool:
        """Any metric is vLLM's."""
        return any(b"\n" + prefix in self.text for prefix in _PREFIXES)


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


def _sum(values: list[float]) -> float | None:
    return sum(values) if values else None


def _no_signal(page: _Page) -> NoLoadSignal:
    text = page.text.strip()
    if not text:
        return NoLoadSignal("empty", "the page is empty: is this the engine's /metrics?")
    if text[:1] == b"<":
        return NoLoadSignal("html", "the page is HTML, not metrics: is there a login page or gateway in between?")
    if page.is_named:
        return NoLoadSignal("nan", "running and waiting requests are given, but not as numbers >= 0")
    if page.has_vllm():
        return NoLoadSignal(
            "no_load_metrics", "vLLM's metrics are there, but no num_requests_running or num_requests_waiting"
        )
    return NoLoadSignal("no_vllm_metrics", "no metric is vLLM's (vllm:... or ray_vllm_...): is it another engine?")
