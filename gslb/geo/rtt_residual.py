"""What a few measured round trips say about the pairs nobody has measured.

The prior errs alike in two ways, and both can be learnt. A place with a detour of its own (one fibre out of
town, a provider that hauls everything over one hub) is late in ALL its pairs: each place has a residual, a
factor on the prior. And what is left of a pair's error is shared by its neighbourhood: if Frankfurt - Mumbai
is late, so is Paris - Chennai.

    log(measured / prior) = of_a + of_b + what the neighbourhood shares

Places are solved for by ridge regression: little evidence moves little, none moves nothing. A pair near no
measured one gets its two places' residuals only; without those it is the prior. Chosen on Azure's table
(`python -m benchmarks.rtt_prior` prints what it gains).

The running edge does not use it: it measures every endpoint itself, and what remains unmeasured, client to
edge, is common to all its candidates. It serves `gslb geo rtt --measured`, where fleets are planned.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gslb.geo.place import great_circle_km
from gslb.geo.rtt_prior import rtt_prior_ms
from gslb.types import Place

PLACE_SHRINKAGE = 4.0
"""A place's residual is that of its pairs' mean times n / (n + 4): with four pairs it counts half."""

NEIGHBOURHOOD_SHRINKAGE = 0.3
"""The neighbourhood's share is the weighted mean times w / (w + 0.3), w the sum of its weights."""

NEIGHBOURHOOD_KM = 1000.0
"""A measured pair weighs exp(-d / 1000 km), d how far its two ends are from the two in question, summed."""

OBSERVED_BOUND = 0.25
"""No measured pair says more than a factor of exp(0.25) = 1.28: odd routes (one of Azure's pairs takes 3.7
times the prior) are not their neighbours' fault."""

CORRECTION_BOUND = 0.5
"""No pair is corrected by more than a factor of exp(0.5) = 1.65."""

_ROUNDS = 30

_Point = tuple[float, float]
_Pair = tuple[_Point, _Point]


@dataclass(frozen=True, slots=True)
class MeasuredPair:
    """One measured round trip between two places."""

    a: Place
    b: Place
    rtt_ms: float


class RttResiduals:
    """Learns once, from all pairs together; the order of the pairs does not matter."""

    def __init__(self, measured: Iterable[MeasuredPair]) -> None:
        """Pairs with a place without coordinates teach nothing; several measurements of a pair count as their
        mean. Raises ValueError for a round trip that is not a finite positive number of ms."""
        observed = _observed(measured)
        self._of_place = _solve(observed)
        self._left = {
            (a, b): residual - self._of_place[a] - self._of_place[b] for (a, b), residual in observed.items()
        }

    def corrected_ms(self, a: Place, b: Place) -> float:
        """The assumed round trip between `a` and `b` in ms: the prior, times what was learnt."""
        prior_ms = rtt_prior_ms(a, b)
        ends = _pair(a, b)
        if ends is None:
            return prior_ms
        residual = self._of_place.get(ends[0], 0.0) + self._of_place.get(ends[1], 0.0) + self._shared(ends)
        return prior_ms * math.exp(max(-CORRECTION_BOUND, min(CORRECTION_BOUND, residual)))

    def place_factor(self, place: Place) -> float:
        """How much later than the prior all pairs of `place` are, as a factor; 1.0 where nothing was learnt."""
        if place.lat is None or place.lon is None:
            return 1.0
        return math.exp(self._of_place.get((place.lat, place.lon), 0.0))

    def _shared(self, ends: _Pair) -> float:
        a, b = ends
        weights = NEIGHBOURHOOD_SHRINKAGE
        total = 0.0
        for (c, d), left in self._left.items():
            km = min(
                great_circle_km(*a, *c) + great_circle_km(*b, *d),
                great_circle_km(*a, *d) + great_circle_km(*b, *c),
            )
            weight = math.exp(-km / NEIGHBOURHOOD_KM)
            weights += weight
            total += weight * left
        return total / weights


def _observed(measured: Iterable[MeasuredPair]) -> dict[_Pair, float]:
    """The bounded log residual of each pair, in the order of their coordinates."""
    ratios: dict[_Pair, list[float]] = {}
    for pair in measured:
        if not (math.isfinite(pair.rtt_ms) and pair.rtt_ms > 0):
            raise ValueError(f"{pair.rtt_ms!r} ms is no round trip")
        ends = _pair(pair.a, pair.b)
        if ends is not None and ends[0] != ends[1]:
            ratios.setdefault(ends, []).append(math.log(pair.rtt_ms / rtt_prior_ms(pair.a, pair.b)))
    means = {ends: math.fsum(ratios[ends]) / len(ratios[ends]) for ends in sorted(ratios)}
    return {ends: max(-OBSERVED_BOUND, min(OBSERVED_BOUND, mean)) for ends, mean in means.items()}


def _solve(observed: Mapping[_Pair, float]) -> dict[_Point, float]:
    """The places' residuals: least squares with PLACE_SHRINKAGE as ridge, by Gauss and Seidel."""
    pairs_of: dict[_Point, list[tuple[_Point, float]]] = {}
    for (a, b), residual in observed.items():
        pairs_of.setdefault(a, []).append((b, residual))
        pairs_of.setdefault(b, []).append((a, residual))
    found = dict.fromkeys(pairs_of, 0.0)
    for _ in range(_ROUNDS):
        for place, pairs in pairs_of.items():
            unexplained = sum(residual - found[other] for other, residual in pairs)
            found[place] = unexplained / (len(pairs) + PLACE_SHRINKAGE)
    return found


def _pair(a: Place, b: Place) -> _Pair | None:
    """The two points in a fixed order, or None when either is unknown."""
    if a.lat is None or a.lon is None or b.lat is None or b.lon is None:
        return None
    one, other = (a.lat, a.lon), (b.lat, b.lon)
    return (one, other) if one <= other else (other, one)
