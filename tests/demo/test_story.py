"""The story's phases at every length."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gslb.demo.story import SHORTEST_S, tell
from gslb.demo.world import COUNTRIES, RUSHED


@given(st.floats(SHORTEST_S, 3600.0))
def test_the_phases_follow_each_other_without_gaps(duration_s: float) -> None:
    phases = tell(duration_s)
    assert phases[0].starts_s == 0
    assert phases[-1].ends_s == duration_s
    for before, after in pairwise(phases):
        assert before.ends_s == after.starts_s
    assert all(phase.ends_s - phase.starts_s >= 1 for phase in phases)


@given(st.floats(SHORTEST_S, 3600.0))
def test_what_dies_comes_back_with_time_to_see_it(duration_s: float) -> None:
    phases = tell(duration_s)
    killed = [(number, phase.kills) for number, phase in enumerate(phases) if phase.kills]
    revived = [(number, phase.revives) for number, phase in enumerate(phases) if phase.revives]
    assert len(killed) == len(revived) == 1
    assert killed[0][1] == revived[0][1]
    assert killed[0][0] < revived[0][0]
    assert duration_s - phases[revived[0][0]].starts_s >= 3 - 1e-9


@pytest.mark.parametrize("duration_s", [7.99, 0.0, -1.0, float("nan")])
def test_a_story_that_is_too_short_is_refused(duration_s: float) -> None:
    with pytest.raises(ValueError, match="at least 8 s"):
        tell(duration_s)


def test_only_the_rushed_countries_ask_more_in_the_rush() -> None:
    calm, rush = tell(30.0)[:2]
    for country, before, during in zip(COUNTRIES, calm.rates_per_s(), rush.rates_per_s(), strict=True):
        assert (during > before) is (country.code in RUSHED)
