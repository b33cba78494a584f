"""Who comes to which edge, and in what shares."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gslb.geo.atlas import countries, metros
from gslb.geo.place import parse_location
from gslb.geo.rtt_prior import rtt_prior_ms
from gslb.sim.clients import Client, Crowd, Day, crowds_of, point_of
from gslb.sim.setting import EdgeSpec
from gslb.types import Place

EDGES = tuple(
    EdgeSpec(name, parse_location(where))
    for name, where in (("us", "aws:us-east-1"), ("eu", "aws:eu-central-1"), ("ap", "aws:ap-northeast-1"))
)


def test_metros_are_places_with_people_and_a_clock() -> None:
    table = metros()
    assert len(table) > 200
    assert sum(metro.people_million for metro in table) == pytest.approx(7500, rel=0.02)
    assert all(metro.country in countries() and -12 <= metro.utc_offset_h <= 14 for metro in table)
    by_country = Counter(metro.country for metro in table)
    assert by_country["US"] > 3 < by_country["IN"]


def test_everybody_comes_to_the_nearest_edge() -> None:
    crowds = crowds_of(metros(), EDGES, rtt_prior_ms)
    assert [crowd.edge for crowd in crowds] == ["us", "eu", "ap"]
    by_country = {client.place.country: client.edge for crowd in crowds for client in crowd.clients}
    assert {code: by_country[code] for code in ("US", "BR", "DE", "NG", "JP", "KR")} == {
        "US": "us", "BR": "us", "DE": "eu", "NG": "eu", "JP": "ap", "KR": "ap",
    }  # fmt: skip
    assert sum(client.share for crowd in crowds for client in crowd.clients) == pytest.approx(1)


def test_stated_shares_hold_and_people_count_within_an_edge() -> None:
    crowds = crowds_of(metros(), EDGES, rtt_prior_ms, {"us": 3, "eu": 1})
    shares = {crowd.edge: sum(client.share for client in crowd.clients) for crowd in crowds}
    assert shares == {"us": pytest.approx(0.75), "eu": pytest.approx(0.25)}
    by_city = {client.place.city: client.share for client in crowds[0].clients}
    assert by_city["New York City"] > by_city["Chicago"] > by_city["Toronto"]


def test_an_edge_that_is_nobodys_nearest_has_its_own_place() -> None:
    twin = EdgeSpec("twin", EDGES[0].place)
    crowds = crowds_of(metros(), [*EDGES, twin], rtt_prior_ms, {"us": 1, "eu": 1, "ap": 1, "twin": 1})
    (alone,) = crowds[3].clients
    assert (alone.place, alone.share) == (twin.place, pytest.approx(0.25))
    assert len(crowds_of(metros(), [*EDGES, twin], rtt_prior_ms)) == 3


def test_a_crowd_needs_clients() -> None:
    with pytest.raises(ValueError, match="without clients"):
        Crowd([])


@given(start_s=st.floats(-100, 100), span_s=st.floats(0.1, 500), offset_h=st.floats(-12, 14))
def test_phases_fill_the_time(start_s: float, span_s: float, offset_h: float) -> None:
    crowd = Crowd([Client(Place(), "e", 2.0, offset_h)], Day(length_s=300))
    phases = list(crowd.phases(start_s, start_s + span_s))
    ends = [phase.until_s for phase in phases]
    assert ends == sorted(set(ends))
    assert ends[-1] == start_s + span_s
    assert ends[0] > start_s
    assert all(0 < phase.share <= 2 * 1.8 + 1e-9 for phase in phases)


def test_a_point_picks_by_share() -> None:
    near, far = Place(city="near"), Place(city="far")
    crowd = Crowd([Client(near, "e", 0.9), Client(far, "e", 0.1)])
    (phase,) = crowd.phases(0, 1)
    assert crowd.pick(phase, 0.0).place is near
    assert crowd.pick(phase, 0.95).place is far
    assert crowd.pick(phase, 1.0).place is far


@given(st.integers(-(2**70), 2**70), st.integers(0, 2**64))
def test_points_lie_between_0_and_1(number: int, salt: int) -> None:
    assert 0 <= point_of(number, salt) < 1


def test_points_look_random() -> None:
    tenths = Counter(int(point_of(number, 5) * 10) for number in range(10_000))
    assert all(count == pytest.approx(1000, abs=130) for count in tenths.values())
