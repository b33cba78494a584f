"""What an endpoint's engine really takes, learnt from the first tokens and answers this edge has seen.

A first token that found `x` units of prefill work ahead of it (its own included) is expected after

    1.5 decoding steps, when anybody decodes, + base_ms + rate_ms * x

The steps: half of the one under way, and the one the prompt is computed in. How long a step lasts the engine tells
(deltas of its inter-token latency histogram). Base and rate are a least squares line through what was observed,
pulled towards the prior like PRIOR_WEIGHT observations, older ones fading by FORGET each: so the line follows an
engine that becomes slower, and one strange answer does not bend it. Sums are all that is kept; workers can be
added up, and a request costs a few additions.
"""

from __future__ import annotations

from collections.abc import Sequence

from gslb.routing.profiles import LONG_FROM_TOKENS
from gslb.types import Endpoint, LoadSample

Beliefs = tuple[float, float, float, float]
"""base_ms, rate_ms, step_ms, slot_hold_ms of a `ServiceFit`."""

PRIOR_WEIGHT = 8.0
FORGET = 0.995
"""What an observation still counts after the next one: the line remembers about the last 200."""
STEPS_TO_FIRST = 1.5
_RATE_BOUND = 20.0
"""A learnt prefill rate stays within this factor of the prior."""
_BASE_BOUND_MS = 500.0
_OUTLIER_SHARE, _OUTLIER_MS = 0.5, 100.0
"""What lies further from the line than half the expected time and 100 ms counts as that far."""
_HOLD_WEIGHT = 0.02
_STEP_WEIGHT = 0.5


def prefill_work(prompt_tokens: int, cached_tokens: int = 0) -> int:
    """Prefill work of a prompt, in tokens at its beginning: a token beyond LONG_FROM_TOKENS counts double.

    Attention makes it cost 2.1 times as much on an H100 and 1.7 times on an A100 (70B, Splitwise table). Cached
    tokens stand at the beginning, where they are cheap.
    """
    work = prompt_tokens - cached_tokens
    if prompt_tokens > LONG_FROM_TOKENS:
        work += prompt_tokens - max(cached_tokens, LONG_FROM_TOKENS)
    return work


_SUMS = ("count", "hold_ms", "holds", "x", "xx", "xy", "y")


class Moments:
    """Sums of observations since they were last taken: `x` in thousands of work units, `y` in ms."""

    __slots__ = ("count", "hold_ms", "holds", "x", "xx", "xy", "y")

    def __init__(self) -> None:
        self.count = self.holds = 0
        self.x = self.y = self.xx = self.xy = self.hold_ms = 0.0

    def first_token(self, work: float, wait_ms: float) -> None:
        """A first token came `wait_ms` after its request reached the engine, steps left out."""
        x = work / 1000
        self.count += 1
        self.x += x
        self.y += wait_ms
        self.xx += x * x
        self.xy += x * wait_ms

    def answer(self, hold_ms: float) -> None:
        """An answer held its slot this long."""
        self.holds += 1
        self.hold_ms += hold_ms

    def add(self, other: Moments) -> None:
        """Take in all of another's."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def is_empty(self) -> bool:
        """Nothing was observed."""
        return not (self.count or self.holds)

    def told(self) -> list[float]:
        """The sums as numbers in a fixed order, for `from_told` in another process."""
        return [getattr(self, name) for name in _SUMS]

    @classmethod
    def from_told(cls, numbers: Sequence[float]) -> Moments:
        """What `told` said. Raises ValueError when that is something else."""
        moments = cls()
        for name, number in zip(_SUMS, numbers, strict=True):
            setattr(moments, name, number)
        return moments


class ServiceFit:
    """What is believed of one engine: `rate_ms` a unit of work, `base_ms`, `step_ms`, `slot_hold_ms`."""

    __slots__ = ("_prior", "_weight", "_x", "_xx", "_xy", "_y", "base_ms", "rate_ms", "slot_hold_ms", "step_ms")

    def __init__(self, endpoint: Endpoint) -> None:
        self._begin(endpoint)

    def _begin(self, endpoint: Endpoint) -> None:
        self._prior = endpoint
        self._weight = self._x = self._y = self._xx = self._xy = 0.0
        self.base_ms = 0.0
        self.rate_ms = endpoint.prefill_ms_per_token
        self.step_ms = endpoint.step_ms
        self.slot_hold_ms = endpoint.slot_hold_ms

    def believe(self, endpoint: Endpoint) -> None:
        """A reload: where it changed the priors, what was learnt from them starts anew."""
        if _priors(endpoint) != _priors(self._prior):
            self._begin(endpoint)

    @property
    def beliefs(self) -> Beliefs:
        """All of it, as another process can be told."""
        return self.base_ms, self.rate_ms, self.step_ms, self.slot_hold_ms

    def take_over(self, beliefs: Beliefs) -> None:
        """Believe what another fit does, which sees more."""
        self.base_ms, self.rate_ms, self.step_ms, self.slot_hold_ms = beliefs

    def without_outlier(self, work: float, wait_ms: float) -> float:
        """`wait_ms` for `work`, or the furthest from the line that is believed."""
        expected_ms = self.base_ms + self.rate_ms * work
        reach_ms = _OUTLIER_MS + _OUTLIER_SHARE * max(expected_ms, 0.0)
        return min(max(wait_ms, expected_ms - reach_ms), expected_ms + reach_ms)

    def absorb(self, seen: Moments) -> None:
        """Take in what was observed since the last time."""
        if seen.holds:
            weight = 1.0 - (1.0 - _HOLD_WEIGHT) ** seen.holds
            self.slot_hold_ms += weight * (seen.hold_ms / seen.holds - self.slot_hold_ms)
        if seen.count:
            fade = FORGET**seen.count
            self._weight = self._weight * fade + seen.count
            self._x = self._x * fade + seen.x
            self._y = self._y * fade + seen.y
            self._xx = self._xx * fade + seen.xx
            self._xy = self._xy * fade + seen.xy
            self._solve()

    def _solve(self) -> None:
        """The line of least squares, the prior's rate counting PRIOR_WEIGHT times at the usual amount of work."""
        prior_rate = self._prior.prefill_ms_per_token * 1000
        pull = PRIOR_WEIGHT * max(self._x / self._weight, 0.1) ** 2
        weight, spread = self._weight + PRIOR_WEIGHT, self._xx + pull
        product = self._xy + pull * prior_rate
        rate = (weight * product - self._x * self._y) / (weight * spread - self._x * self._x)
        rate = min(max(rate, prior_rate / _RATE_BOUND), prior_rate * _RATE_BOUND)
        base_ms = (self._y - rate * self._x) / weight
        self.rate_ms = rate / 1000
        self.base_ms = min(max(base_ms, -_BASE_BOUND_MS), _BASE_BOUND_MS)

    def sampled(self, previous: LoadSample | None, sample: LoadSample) -> None:
        """Two samples of the engine's histogram of gaps between tokens tell how long its steps are now."""
        if previous is None or previous.itl_sum_s is None or previous.itl_count is None:
            return
        if sample.itl_sum_s is None or sample.itl_count is None:
            return
        count, sum_s = sample.itl_count - previous.itl_count, sample.itl_sum_s - previous.itl_sum_s
        if count <= 0 or sum_s <= 0:
            return  # no token since, or counters that began anew
        step_ms = 1000 * sum_s / count
        self.step_ms += (_STEP_WEIGHT if self.step_ms else 1.0) * (step_ms - self.step_ms)


def _priors(endpoint: Endpoint) -> tuple[float, float, float]:
    return endpoint.prefill_ms_per_token, endpoint.step_ms, endpoint.slot_hold_ms
