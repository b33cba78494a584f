"""What measured pairs teach about others: bounded, symmetric, whatever the order, and nothing out of nothing."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gslb.geo.place import parse_location
from gslb.geo.rtt_prior import UNKNOWN_RTT_MS, rtt_prior_ms
from gslb.geo.rtt_residual import (
    CORRECTION_BOUND,
    OBSERVED_BOUND,
    MeasuredPair,
    RttResiduals,
)
from gslb.types import UNKNOWN_PLACE, Place

CITIES = tuple(
    parse_location(name)
    for name in ("Frankfurt", "Paris", "New York", "Seattle", "Singapore", "Tokyo", "Mumbai", "Sydney", "Lagos")
)
FRANKFURT, PARIS, NEW_YORK, SEATTLE, SINGAPORE, TOKYO, MUMBAI, SYDNEY, LAGOS = CITIES

PAIRS = st.builds(
    MeasuredPair,
    st.sampled_from((*CITIES, UNKNOWN_PLACE)),
    st.sampled_from((*CITIES, UNKNOWN_PLACE)),
    st.floats(0.01, 1e5),
)


def times_prior(a: Place, b: Place, factor: float) -> MeasuredPair:
    """A pair measured at `factor` times what was assumed."""
    return MeasuredPair(a, b, rtt_prior_ms(a, b) * factor)


def test_no_evidence_is_the_prior() -> None:
    nothing = RttResiduals(())
    assert nothing.corrected_ms(FRANKFURT, TOKYO) == rtt_prior_ms(FRANKFURT, TOKYO)
    assert nothing.place_factor(FRANKFURT) == 1.0


def test_far_from_all_evidence_is_the_prior() -> None:
    learnt = RttResiduals([times_prior(FRANKFURT, TOKYO, 1.2)])
    assert learnt.corrected_ms(SYDNEY, SEATTLE) == pytest.approx(rtt_prior_ms(SYDNEY, SEATTLE), rel=1e-4)


def test_unknown_places_teach_nothing_and_learn_nothing() -> None:
    learnt = RttResiduals([MeasuredPair(UNKNOWN_PLACE, TOKYO, 900.0), times_prior(FRANKFURT, TOKYO, 1.2)])
    assert learnt.corrected_ms(UNKNOWN_PLACE, TOKYO) == UNKNOWN_RTT_MS
    assert learnt.place_factor(UNKNOWN_PLACE) == 1.0
    alone = RttResiduals([times_prior(FRANKFURT, TOKYO, 1.2)])
    assert learnt.corrected_ms(FRANKFURT, MUMBAI) == alone.corrected_ms(FRANKFURT, MUMBAI)


def test_a_detour_in_all_pairs_of_a_place_is_expected_of_its_other_pairs() -> None:
    others = (NEW_YORK, SINGAPORE, TOKYO, SYDNEY)
    factors = []
    for count in range(1, 5):
        learnt = RttResiduals([times_prior(LAGOS, other, 1.2) for other in others[:count]])
        factors.append(learnt.place_factor(LAGOS))
        assert learnt.corrected_ms(LAGOS, SEATTLE) > rtt_prior_ms(LAGOS, SEATTLE)
        assert learnt.place_factor(NEW_YORK) < factors[-1] or count == 1
    assert factors == sorted(factors), "the more evidence, the more of it is believed"
    assert 1.0 < factors[0] < factors[-1] < 1.2


def test_neighbours_of_a_measured_pair_share_its_error() -> None:
    learnt = RttResiduals([times_prior(FRANKFURT, MUMBAI, 1.2)])
    near = learnt.corrected_ms(PARIS, MUMBAI) / rtt_prior_ms(PARIS, MUMBAI)
    far = learnt.corrected_ms(LAGOS, TOKYO) / rtt_prior_ms(LAGOS, TOKYO)
    assert 1.05 < near < 1.2
    assert far == pytest.approx(1.0, abs=0.01)


def test_one_odd_pair_is_not_believed_beyond_the_bound() -> None:
    odd = RttResiduals([times_prior(FRANKFURT, MUMBAI, 50.0)])
    bound = RttResiduals([times_prior(FRANKFURT, MUMBAI, math.exp(OBSERVED_BOUND))])
    assert odd.corrected_ms(PARIS, MUMBAI) == pytest.approx(bound.corrected_ms(PARIS, MUMBAI))


@given(st.lists(PAIRS, max_size=12), st.sampled_from(CITIES), st.sampled_from(CITIES), st.integers(0, 100))
def test_bounded_symmetric_and_independent_of_order(
    pairs: list[MeasuredPair], a: Place, b: Place, seed: int
) -> None:
    learnt = RttResiduals(pairs)
    corrected_ms = learnt.corrected_ms(a, b)
    assert abs(math.log(corrected_ms / rtt_prior_ms(a, b))) <= CORRECTION_BOUND + 1e-9
    assert learnt.corrected_ms(b, a) == pytest.approx(corrected_ms, rel=1e-12)
    shuffled = [MeasuredPair(pair.b, pair.a, pair.rtt_ms) for pair in pairs]
    Random(seed).shuffle(shuffled)
    assert RttResiduals(shuffled).corrected_ms(a, b) == pytest.approx(corrected_ms, rel=1e-12)


@pytest.mark.parametrize("rtt_ms", [0.0, -3.0, math.nan, math.inf])
def test_what_is_no_round_trip_is_refused(rtt_ms: float) -> None:
    with pytest.raises(ValueError, match="no round trip"):
        RttResiduals([MeasuredPair(FRANKFURT, TOKYO, rtt_ms)])
