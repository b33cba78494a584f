"""What an endpoint's engine really takes, learnt from the first tokens and answers this edge has seen.

A first token whose request had `work` units of prefill to do and found `ahead` of this edge's is expected after

    base_ms + rate_ms * work + drain_ms * ahead

`base_ms` holds the decoding steps in between: half of the one under way and the one the prompt is computed in.
`drain_ms` is below `rate_ms`: prompts ahead are counted whole until their first token, and half done by then.

Endpoints that are declared alike are kin. The three numbers are a least squares fit to what all of them showed,
pulled towards what was declared like PRIOR_WEIGHT observations; an endpoint's own are its kin's times one factor,
how much slower than they it is. So chance makes no favourites among equals, one that nobody has used yet is
believed to be like its kin, and an engine that others overrun looks slow for every request, long or short.

An observation weighs less the longer it had to be, by the square, since it is the relative error that counts. But
a short one can be off by a whole prompt of usual size (what was believed cached is gone, another edge sent one),
so those below the usual size weigh about alike. Without that, where prompts are long, the short ones' bad luck
became the base and the rate went to nothing (Mooncake's trace: goodput .21, and .81 with it). What is far off
counts as less far off; older ones fade. Sums are all that is kept: workers' can be added up, and a first token
costs a few additions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gslb.routing.profiles import LONG_FROM_TOKENS
from gslb.types import Endpoint, LoadSample

Beliefs = tuple[float, float, float, float]
"""base_ms, rate_ms, drain_ms, slot_hold_ms of a `ServiceFit`."""

PRIOR_WEIGHT: Final = 8.0
OWN_FORGET: Final = 0.98
KIN_FORGET: Final = 0.9995
"""What an observation still counts after the next one: an endpoint's factor remembers 50, its kin's line 2000."""
STEPS_TO_FIRST: Final = 1.5
DRAIN_SHARE: Final = 0.6
"""Of the prefill rate, before anything is known (measured in simulation: 0.5 on chat, 0.65 on long prompts)."""
_RATE_BOUND: Final = 20.0
"""A learnt prefill rate, and an endpoint's own factor, stay within this factor."""
_BASE_BOUND_MS: Final = 500.0
_OUTLIER_SHARE, _OUTLIER_MS = 0.5, 50.0
"""What lies further from what is expected than half of it and 50 ms counts as that far."""
_LEAST_USUAL_WORK: Final = 1000.0
_USUAL_MEMORY: Final = 1000.0
"""What is usual is the mean of about so many first tokens, and no less than `_LEAST_USUAL_WORK`."""
_OWN_HOLD_FORGET, _KIN_HOLD_FORGET, _HOLD_PULL = 0.98, 0.998, 10.0
_STEP_WEIGHT: Final = 0.05


def prefill_work(prompt_tokens: int, cached_tokens: int = 0) -> int:
    """Prefill work of a prompt, in tokens at its beginning: a token beyond LONG_FROM_TOKENS counts double.

    Attention makes it cost 2.1 times as much on an H100 and 1.7 times on an A100 (70B, Splitwise table). Cached
    tokens stand at the beginning, where they are cheap.
    """
    work = prompt_tokens - cached_tokens
    if prompt_tokens > LONG_FROM_TOKENS:
        work += prompt_tokens - max(cached_tokens, LONG_FROM_TOKENS)
    return work


class Moments:
    """Weighted sums of observations: `x` work and `a` what was ahead in thousands of units, `y` waits in ms."""

    __slots__ = ("a", "aa", "ay", "count", "hold_ms", "holds", "weight", "x", "xa", "xx", "xy", "y")

    def __init__(self) -> None:
        self.count = self.holds = 0.0
        self.weight = self.x = self.a = self.y = 0.0
        self.xx = self.xa = self.aa = self.xy = self.ay = 0.0
        self.hold_ms = 0.0

    def first_token(self, work: float, ahead: float, wait_ms: float, weight: float) -> None:
        """A first token came `wait_ms` after its request reached the engine; it counts `weight` in the fit."""
        x, a = work / 1000, ahead / 1000
        self.count += 1.0
        self.weight += weight
        self.x += weight * x
        self.a += weight * a
        self.y += weight * wait_ms
        self.xx += weight * x * x
        self.xa += weight * x * a
        self.aa += weight * a * a
        self.xy += weight * x * wait_ms
        self.ay += weight * a * wait_ms

    def answer(self, hold_ms: float) -> None:
        """An answer held its slot this long."""
        self.holds += 1.0
        self.hold_ms += hold_ms

    def add(self, other: Moments) -> None:
        """Take in all of another's."""
        self.count += other.count
        self.weight += other.weight
        self.x += other.x
        self.a += other.a
        self.y += other.y
        self.xx += other.xx
        self.xa += other.xa
        self.aa += other.aa
        self.xy += other.xy
        self.ay += other.ay
        self.holds += other.holds
        self.hold_ms += other.hold_ms

    def fade(self, share: float, hold_share: float) -> None:
        """Let all that was seen count for `share` of what it did, and answers for `hold_share`."""
        self.count *= share
        self.weight *= share
        self.x *= share
        self.a *= share
        self.y *= share
        self.xx *= share
        self.xa *= share
        self.aa *= share
        self.xy *= share
        self.ay *= share
        self.holds *= hold_share
        self.hold_ms *= hold_share

    @property
    def is_empty(self) -> bool:
        """Nothing was observed."""
        return not (self.count or self.holds)

    def told(self) -> list[float]:
        """The sums as numbers in a fixed order, for `from_told` in another process."""
        return [
            self.count, self.weight, self.x, self.a, self.y, self.xx, self.xa, self.aa, self.xy, self.ay,
            self.holds, self.hold_ms,
        ]  # fmt: skip

    @classmethod
    def from_told(cls, numbers: Sequence[float]) -> Moments:
        """What `told` said. Raises ValueError when that is something else."""
        moments = cls()
        (
            moments.count, moments.weight, moments.x, moments.a, moments.y, moments.xx, moments.xa, moments.aa,
            moments.xy, moments.ay, moments.holds, moments.hold_ms,
        ) = numbers  # fmt: skip
        return moments


class Kin:
    """What endpoints declared like `prior` showed together. `changes` moves with every observation."""

    __slots__ = (
        "_prior", "_step_ms", "_sums", "_usual_work", "_works", "base_ms", "changes", "drain_ms", "rate_ms",
    )  # fmt: skip

    def __init__(self, prior: Endpoint) -> None:
        self._prior = prior
        self._sums = Moments()
        self._step_ms = prior.step_ms
        self._usual_work = 0.0
        self._works = 0.0
        self.changes = 0
        self._solve()

    def weigh(self, work: float, ahead: float) -> float:
        """What a first token counts that had so much work, of its own and ahead; it changes what is usual."""
        self._works = min(self._works + 1.0, _USUAL_MEMORY)
        self._usual_work += (work - self._usual_work) / self._works
        usual = max(self._usual_work, _LEAST_USUAL_WORK)
        share = usual / (usual + work + ahead)
        return share * share

    def absorb(self, seen: Moments) -> None:
        """Take in what was observed at one of them."""
        self._sums.fade(KIN_FORGET**seen.count, _KIN_HOLD_FORGET**seen.holds)
        self._sums.add(seen)
        self.changes += 1
        self._solve()

    def _solve(self) -> None:
        """The least squares fit, each prior pulling on its own (a ridge)."""
        sums, prior_rate = self._sums, self._prior.prefill_ms_per_token * 1000
        usual = sums.weight or 1.0
        x_pull = PRIOR_WEIGHT * max(sums.x / usual, 0.1) ** 2
        a_pull = PRIOR_WEIGHT * max(sums.a / usual, 1.0) ** 2
        weight, y = sums.weight + PRIOR_WEIGHT, sums.y + PRIOR_WEIGHT * STEPS_TO_FIRST * self._step_ms
        # The base is eliminated first; what is left are two equations.
        xx = sums.xx + x_pull - sums.x * sums.x / weight
        xa = sums.xa - sums.x * sums.a / weight
        aa = sums.aa + a_pull - sums.a * sums.a / weight
        xy = sums.xy + x_pull * prior_rate - sums.x * y / weight
        ay = sums.ay + a_pull * prior_rate * DRAIN_SHARE - sums.a * y / weight
        rate = (xy * aa - ay * xa) / (xx * aa - xa * xa)
        rate = min(max(rate, prior_rate / _RATE_BOUND), prior_rate * _RATE_BOUND)
        drain = min(max((ay - xa * rate) / aa, 0.0), rate)
        base_ms = (y - rate * sums.x - drain * sums.a) / weight
        self.rate_ms = rate / 1000
        self.drain_ms = drain / 1000
        self.base_ms = min(max(base_ms, -_BASE_BOUND_MS), _BASE_BOUND_MS)

    @property
    def slot_hold_ms(self) -> float:
        """How long an answer holds its slot at any of them."""
        sums = self._sums
        return (sums.hold_ms + _HOLD_PULL * self._prior.slot_hold_ms) / (sums.holds + _HOLD_PULL)

    def factor(self, sums: Moments) -> float:
        """How much longer first tokens took in `sums` than here, pulled towards 1 by PRIOR_WEIGHT usual ones."""
        if not sums.count:
            return 1.0
        base, rate, drain = self.base_ms, self.rate_ms * 1000, self.drain_ms * 1000
        expected = base * base * sums.weight + rate * rate * sums.xx + drain * drain * sums.aa
        expected += 2.0 * (base * rate * sums.x + base * drain * sums.a + rate * drain * sums.xa)
        if expected <= 0.0:
            return 1.0
        measured = base * sums.y + rate * sums.xy + drain * sums.ay
        pull = expected * PRIOR_WEIGHT / sums.count
        return min(max((measured + pull) / (expected + pull), 1.0 / _RATE_BOUND), _RATE_BOUND)

    def sampled(self, previous: LoadSample | None, sample: LoadSample) -> None:
        """Two samples of one's histogram of gaps between tokens tell how long its steps are: what is believed of
        `base_ms` before anything was asked, unless it was declared. Steps that also compute others' prompts are in
        the histogram, so it says too much."""
        if self._prior.step_ms or previous is None or previous.itl_sum_s is None or previous.itl_count is None:
            return
        if sample.itl_sum_s is None or sample.itl_count is None:
            return
        count, sum_s = sample.itl_count - previous.itl_count, sample.itl_sum_s - previous.itl_sum_s
        if count <= 0 or sum_s <= 0:
            return  # no token since, or counters that began anew
        step_ms = 1000 * sum_s / count
        self._step_ms += (_STEP_WEIGHT if self._step_ms else 1.0) * (step_ms - self._step_ms)
        if not self._sums.count:
            self.changes += 1
            self._solve()


class ServiceFit:
    """What is believed of one engine: `rate_ms` a unit of its own work, `drain_ms` one ahead of it, `base_ms`,
    `slot_hold_ms`."""

    __slots__ = ("_changes", "_sums", "base_ms", "drain_ms", "kin", "rate_ms", "slot_hold_ms")

    def __init__(self, kin: Kin) -> None:
        self._begin(kin)

    def _begin(self, kin: Kin) -> None:
        self.kin = kin
        self._sums = Moments()
        self._follow()

    def believe(self, kin: Kin) -> None:
        """A reload: where it changed what is declared, what was learnt from that starts anew."""
        if kin is not self.kin:
            self._begin(kin)

    @property
    def beliefs(self) -> Beliefs:
        """All of it, as another process can be told."""
        return self.base_ms, self.rate_ms, self.drain_ms, self.slot_hold_ms

    def take_over(self, beliefs: Beliefs) -> None:
        """Believe what another fit does, which sees more."""
        self.base_ms, self.rate_ms, self.drain_ms, self.slot_hold_ms = beliefs

    def note(self, seen: Moments, work: float, ahead: float, wait_ms: float) -> None:
        """Add to `seen` that a first token came after `wait_ms`, for `work` behind `ahead`; or after the furthest
        from what is believed, if it was further off."""
        expected_ms = self.base_ms + self.rate_ms * work + self.drain_ms * ahead
        reach_ms = _OUTLIER_MS + _OUTLIER_SHARE * max(expected_ms, 0.0)
        counted_ms = min(max(wait_ms, expected_ms - reach_ms), expected_ms + reach_ms)
        seen.first_token(work, ahead, counted_ms, self.kin.weigh(work, ahead))

    def absorb(self, seen: Moments) -> None:
        """Take in what was observed since the last time."""
        self.kin.absorb(seen)
        self._sums.fade(OWN_FORGET**seen.count, _OWN_HOLD_FORGET**seen.holds)
        self._sums.add(seen)
        self._follow()

    def follow_kin(self) -> bool:
        """Take in what was observed at endpoints like this one; True when there was anything."""
        if self._changes == self.kin.changes:
            return False
        self._follow()
        return True

    def _follow(self) -> None:
        kin, sums = self.kin, self._sums
        self._changes = kin.changes
        factor = kin.factor(sums)
        self.base_ms = factor * kin.base_ms
        self.rate_ms = factor * kin.rate_ms
        self.drain_ms = factor * kin.drain_ms
        self.slot_hold_ms = (sums.hold_ms + _HOLD_PULL * kin.slot_hold_ms) / (sums.holds + _HOLD_PULL)


def kin_key(endpoint: Endpoint) -> tuple[object, ...]:
    """Equal for endpoints that are declared alike. `capacity` is how many requests one shall have, not how fast it
    is: who raises it does not begin anew."""
    return (
        endpoint.prefill_ms_per_token, endpoint.step_ms, endpoint.slot_hold_ms, endpoint.slots, endpoint.models,
    )  # fmt: skip
