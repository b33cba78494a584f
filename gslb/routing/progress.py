"""Forward progress: is an engine that runs requests also making tokens?

A hung engine's API process still answers `/health` with 200 (FC-19), and its `/metrics` page still comes: with
requests running, and every number as it was. That is the sign read here. What must not be taken for it:

- A long prompt alone in the engine. vLLM counts a prompt's tokens all at once, at its first token; while it is
  prefilled in chunks only the KV-cache use rises. So a rise of that, with as many requests running as before (it
  is not an arrival then), is progress too; and for prompts that this edge itself has there the bound is longer.
- An idle engine: nothing runs. A request that comes after an idle time starts the clock.
- A restarted engine: its counters fall.
- An engine whose counters we do not know: absent is not zero, so it is never judged.
- Scrapes that fail: nothing was seen to stand still. At least three samples must agree, and none may be further
  from the next than the bound.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final

from gslb.routing.health import HealthMachine
from gslb.types import LoadSample

_LEAST_SAMPLES: Final = 3
_MOST_BOUNDS: Final = 3.0
"""However many prompt tokens are pending, the bound grows to this many times itself and no further: they pile up
at a hung engine, too."""


class Sign(Enum):
    """What a sample says, seen after the ones before it."""

    NONE = "none"
    """Nothing to compare with, or nothing told."""
    MOVED = "moved"
    IDLE = "idle"
    """No request runs."""
    STILL = "still"
    """Requests run, and no token has been made since the sample before."""


_MOVED = Sign.MOVED


class Progress:
    """One engine's samples, one after the other. `still_s` is for how long they have not moved."""

    __slots__ = ("_counted", "_kv_usage", "_running", "_samples", "_since_s", "_until_s")

    def __init__(self) -> None:
        self._counted: tuple[float | None, float | None] = (None, None)
        self._kv_usage: float | None = None
        self._running = 0.0
        self._samples = 0
        self._since_s = self._until_s = float("-inf")

    def take(self, sample: LoadSample, longest_gap_s: float) -> Sign:
        """Take in the next scraped sample; one more than `longest_gap_s` after the last starts anew."""
        sign = self._compare(sample, longest_gap_s)
        if sign is not _MOVED and sign is Sign.STILL:
            self._samples += 1
        else:
            self._samples = 1
            self._since_s = sample.at_s
        self._until_s = sample.at_s
        self._counted = (sample.prompt_tokens_total, sample.generation_tokens_total)
        self._kv_usage = sample.kv_usage
        self._running = sample.running or 0.0
        return sign

    def _compare(self, sample: LoadSample, longest_gap_s: float) -> Sign:
        counted = (sample.prompt_tokens_total, sample.generation_tokens_total)
        if sample.running is None or counted == (None, None):
            return Sign.NONE
        if not sample.running:
            return Sign.IDLE
        if not self._running or not 0 <= sample.at_s - self._until_s <= longest_gap_s:
            return Sign.NONE
        if counted != self._counted:
            return _MOVED if _has_risen(self._counted, counted) else Sign.NONE
        is_filling = (
            sample.running == self._running
            and sample.kv_usage is not None
            and self._kv_usage is not None
            and sample.kv_usage > self._kv_usage
        )
        return Sign.MOVED if is_filling else Sign.STILL

    def succeeded(self, at_s: float) -> None:
        """A request was answered whole at `at_s`: whatever the counters say, tokens were made until then."""
        self._since_s = max(self._since_s, at_s)

    @property
    def still_s(self) -> float:
        """For how long tokens have stood still by all samples up to the last; 0 while too few have said so."""
        return max(0.0, self._until_s - self._since_s) if self._samples >= _LEAST_SAMPLES else 0.0


def _has_risen(before: tuple[float | None, float | None], now: tuple[float | None, float | None]) -> bool:
    """True when a counter is higher and none is lower or has come or gone."""
    return _is_no_lower(before[0], now[0]) and _is_no_lower(before[1], now[1])


def _is_no_lower(old: float | None, new: float | None) -> bool:
    return old is new if old is None or new is None else new >= old


def judge_progress(
    progress: Progress, health: HealthMachine, sample: LoadSample, bound_s: float, patience_s: Callable[[], float]
) -> bool:
    """Take a scraped sample as a sign of what the engine does; True when that is news of its health.

    `bound_s` is the operator's, `patience_s` tells what is allowed this time.
    """
    sign = progress.take(sample, bound_s)
    if sign is _MOVED:  # nearly always
        return health.moved(sample.at_s)
    if sign is Sign.IDLE:
        health.idled(sample.at_s)
    elif sign is Sign.STILL and progress.still_s >= patience_s():
        why = f"{sample.running:.0f} requests run, but no token was made for {progress.still_s:.0f} s"
        return health.stalled(sample.at_s, why)
    return False


def patience_s(bound_s: float, pending_tokens: int, prefill_ms_per_token: float) -> float:
    """How long an engine may stand still that has `pending_tokens` of this edge's prompts to prefill."""
    prefill_s = pending_tokens * prefill_ms_per_token / 1000
    return min(bound_s + prefill_s, bound_s * _MOST_BOUNDS)
