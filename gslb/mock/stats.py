"""What an engine counts about itself, in the units vLLM's `/metrics` uses (tokens, seconds)."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

# Bucket bounds as a vLLM 0.32 with an 8k..2k context shows them.
TTFT_BOUNDS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
ITL_BOUNDS_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_BOUNDS_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
)  # fmt: skip
TOKEN_BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0)
STEP_TOKEN_BOUNDS = (
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0,
)  # fmt: skip
SMALL_BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0)

FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")


class Histogram:
    """A Prometheus histogram: bounds are upper edges, inclusive; `counts` has one more for +Inf."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value`, `times` over."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        """Observations so far."""
        return sum(self.counts)

    def cumulative(self) -> list[int]:
        """Counts as the text format wants them: each bucket includes the smaller ones."""
        running, result = 0, []
        for count in self.counts:
            running += count
            result.append(running)
        return result


def _success() -> dict[str, int]:
    return dict.fromkeys(FINISHED_REASONS, 0)


@dataclass(slots=True)
class EngineStats:
    """Counters and histograms of one engine since its start. Tokens and seconds; they only grow."""

    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    rejected: int = 0
    success: dict[str, int] = field(default_factory=_success)
    ttft_s: Histogram = field(default_factory=lambda: Histogram(TTFT_BOUNDS_S))
    itl_s: Histogram = field(default_factory=lambda: Histogram(ITL_BOUNDS_S))
    tpot_s: Histogram = field(default_factory=lambda: Histogram(ITL_BOUNDS_S))
    e2e_s: Histogram = field(default_factory=lambda: Histogram(REQUEST_BOUNDS_S))
    queue_s: Histogram = field(default_factory=lambda: Histogram(REQUEST_BOUNDS_S))
    inference_s: Histogram = field(default_factory=lambda: Histogram(REQUEST_BOUNDS_S))
    prefill_s: Histogram = field(default_factory=lambda: Histogram(REQUEST_BOUNDS_S))
    decode_s: Histogram = field(default_factory=lambda: Histogram(REQUEST_BOUNDS_S))
    request_prompt_tokens: Histogram = field(default_factory=lambda: Histogram(TOKEN_BOUNDS))
    request_generation_tokens: Histogram = field(default_factory=lambda: Histogram(TOKEN_BOUNDS))
    request_max_tokens: Histogram = field(default_factory=lambda: Histogram(TOKEN_BOUNDS))
    request_n: Histogram = field(default_factory=lambda: Histogram(SMALL_BOUNDS))
    prefill_computed_tokens: Histogram = field(default_factory=lambda: Histogram(TOKEN_BOUNDS))
    step_tokens: Histogram = field(default_factory=lambda: Histogram(STEP_TOKEN_BOUNDS))
