from __future__ import annotations

import math
import statistics
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gslb.geo.atlas import cloud_regions, countries, waypoints
from gslb.geo.place import great_circle_km, parse_location
from gslb.geo.rtt_prior import (
    UNKNOWN_RTT_MS,
    MeasuredRtt,
    is_plausible_rtt,
    network_path,
    rtt_prior_ms,
)
from gslb.types import UNKNOWN_PLACE, Place
from tests.geo.shared_data import needs_network_tables, rows

FRANKFURT = parse_location("Frankfurt")
TOKYO = parse_location("Tokyo")

PLACES = st.builds(
    Place,
    country=st.sampled_from([None, "ZZ", *countries()]),
    lat=st.floats(-90, 90),
    lon=st.floats(-180, 180),
)


def test_one_zone_is_the_great_circle() -> None:
    paris = parse_location("Paris")
    path = network_path(FRANKFURT, paris)
    assert path is not None
    assert path.via == ()
    assert path.km == pytest.approx(478, abs=3)
    assert rtt_prior_ms(FRANKFURT, paris) == pytest.approx(4.75 + 17.8 * path.km / 1000)
    assert rtt_prior_ms(paris, paris) == pytest.approx(4.75)


def test_two_zones_meet_at_their_gateways() -> None:
    path = network_path(FRANKFURT, parse_location("Dubai"))
    assert path is not None
    assert path.via == ("EU_S", "SUEZ", "DJI", "OMN", "ME")
    long_way = network_path(parse_location("São Paulo"), TOKYO)
    assert long_way is not None
    assert long_way.via == ("SAE", "FOR", "NA_E", "SEA", "JP")


def test_land_costs_more_than_sea_and_both_are_counted() -> None:
    stockholm, copenhagen = parse_location("Stockholm"), (55.68, 12.57)
    paris = parse_location("Paris")
    assert stockholm.lat is not None
    assert stockholm.lon is not None
    assert paris.lat is not None
    assert paris.lon is not None
    land_km = great_circle_km(stockholm.lat, stockholm.lon, *copenhagen)
    land_km += great_circle_km(paris.lat, paris.lon, *copenhagen)
    path = network_path(stockholm, paris)
    assert path is not None
    assert path.via == ("CPH",)
    assert path.km == pytest.approx(land_km)
    assert path.rtt_ms == pytest.approx(4.75 + 17.8 * land_km / 1000)

    sea = network_path(Place("US", lat=40.7, lon=-74.0), Place("GB", lat=51.5, lon=-0.1))
    assert sea is not None
    assert sea.rtt_ms == pytest.approx(4.75 + 11.9 * sea.km / 1000)


def test_an_unknown_zone_falls_back_to_the_great_circle_line() -> None:
    at_sea = Place(lat=0.0, lon=-30.0)
    km = great_circle_km(0, -30, 50.11, 8.68)
    assert rtt_prior_ms(at_sea, FRANKFURT) == pytest.approx(5 + 15 * km / 1000)
    antarctica = parse_location("AQ")
    assert rtt_prior_ms(antarctica, FRANKFURT) == pytest.approx(
        5 + 15 * great_circle_km(-77.8, 166.7, 50.11, 8.68) / 1000
    )


def test_a_place_without_coordinates_gets_the_median() -> None:
    assert rtt_prior_ms(UNKNOWN_PLACE, FRANKFURT) == UNKNOWN_RTT_MS
    assert rtt_prior_ms(FRANKFURT, Place(country="DE")) == UNKNOWN_RTT_MS
    assert network_path(UNKNOWN_PLACE, FRANKFURT) is None


@given(PLACES, PLACES)
def test_the_prior_is_symmetric_bounded_and_never_below_light(a: Place, b: Place) -> None:
    ab, ba = rtt_prior_ms(a, b), rtt_prior_ms(b, a)
    assert ab == pytest.approx(ba)
    assert 4.75 <= ab < 1200, "with coordinates anywhere, half a world of land at both ends"
    assert is_plausible_rtt(ab, a, b)


COUNTRIES = tuple(
    parse_location(f"country:{code}") for code in sorted(countries()) if code not in ("AQ", "TF", "UM")
)


@given(*[st.sampled_from(COUNTRIES)] * 3)
def test_no_third_country_is_a_shortcut(a: Place, b: Place, c: Place) -> None:
    assert rtt_prior_ms(a, b) <= rtt_prior_ms(a, c) + rtt_prior_ms(c, b)
    assert rtt_prior_ms(a, b) < 500


def test_the_cable_map_is_sound() -> None:
    raw = waypoints()
    for a, b in raw["sea_edges"] + raw["land_edges"]:
        assert {a, b} <= raw["waypoints"].keys()
    for gateways in raw["zone_gateways"].values():
        assert set(gateways) <= raw["waypoints"].keys()
    spots = [Place(codes.split()[0], lat=0.0, lon=0.0) for codes in raw["zone_countries"].values()]
    assert all(network_path(a, b) is not None for a, b in combinations(spots, 2)), "every zone can be reached"
    assert raw["rtt_ms"]["land_per_1000km"] > raw["rtt_ms"]["sea_per_1000km"] > 11
    assert raw["zone_countries"].keys() == raw["zone_gateways"].keys()
    zoned = [code for codes in raw["zone_countries"].values() for code in codes.split()]
    assert len(zoned) == len(set(zoned))
    assert countries().keys() - set(zoned) == {"AQ", "TF", "UM"}
    assert {region.country for region in cloud_regions().values()} <= set(zoned)


def _errors(provider: str, table: str, column: str) -> tuple[list[float], dict[frozenset[str], float]]:
    """Relative errors of the prior on a table's pairs of regions (means of both directions), and the pairs."""
    both_ways: dict[frozenset[str], list[float]] = {}
    for row in rows(f"network/{table}"):
        pair = frozenset({f"{provider}:{row['from_region']}", f"{provider}:{row['to_region']}"})
        if len(pair) == 2 and pair <= cloud_regions().keys():
            both_ways.setdefault(pair, []).append(float(row[column]))
    measured = {pair: statistics.mean(values) for pair, values in both_ways.items()}
    errors = []
    for pair, rtt_ms in measured.items():
        a, b = map(parse_location, pair)
        errors.append(abs(rtt_prior_ms(a, b) / rtt_ms - 1))
    return sorted(errors), measured


@needs_network_tables
@pytest.mark.parametrize(
    ("provider", "table", "column", "pairs", "median", "p90"),
    [
        ("azure", "azure_rtt_p50_2025-06.csv", "p50_rtt_ms", 1226, 0.045, 0.141),
        ("azure", "azure_rtt_p95_2026-07.csv", "p95_rtt_ms", 1431, 0.069, 0.199),
        ("aws", "aws_rtt_p50_2025-05.csv", "p50_rtt_ms", 496, 0.067, 0.185),
        ("ibm", "ibm_rtt_avg_2025-09.csv", "avg_rtt_ms", 55, 0.048, 0.173),
    ],
)
def test_error_against_measured_tables(
    provider: str, table: str, column: str, pairs: int, median: float, p90: float
) -> None:
    errors, measured = _errors(provider, table, column)
    assert len(errors) == len(measured) == pairs
    assert statistics.median(errors) <= median
    assert errors[int(0.9 * len(errors))] <= p90


@needs_network_tables
@pytest.mark.parametrize(
    ("table", "column"),
    [("azure_rtt_p50_2025-06.csv", "p50_rtt_ms"), ("azure_rtt_p95_2026-07.csv", "p95_rtt_ms")],
)
def test_nearest_of_six_regions_is_right(table: str, column: str) -> None:
    _, measured = _errors("azure", table, column)
    six = [
        f"azure:{name}"
        for name in ("eastus", "westus2", "westeurope", "southeastasia", "japaneast", "australiaeast")
    ]
    clients = {name for pair in measured for name in pair} - set(six)
    right = judged = 0
    for client in sorted(clients):
        if any(frozenset({client, region}) not in measured for region in six):
            continue
        truth = min(six, key=lambda region: measured[frozenset({client, region})])
        guess = min(six, key=lambda region: rtt_prior_ms(parse_location(client), parse_location(region)))
        judged += 1
        right += truth == guess
    assert judged >= 40
    assert right == judged


@needs_network_tables
def test_measured_tables_are_plausible() -> None:
    _, measured = _errors("aws", "aws_rtt_p50_2025-05.csv", "p50_rtt_ms")
    implausible = [pair for pair, ms in measured.items() if not is_plausible_rtt(ms, *map(parse_location, pair))]
    assert len(implausible) <= 0.01 * len(measured)


def test_a_round_trip_faster_than_light_is_implausible() -> None:
    assert not is_plausible_rtt(20, FRANKFURT, TOKYO)
    assert is_plausible_rtt(230, FRANKFURT, TOKYO)
    assert is_plausible_rtt(0.1, UNKNOWN_PLACE, TOKYO)
    assert is_plausible_rtt(0.1, TOKYO, TOKYO)
    # An American near New York is placed at the middle of the country: the radius says how little that means.
    assert is_plausible_rtt(8, parse_location("New York"), parse_location("country:US"))


def test_measuring_replaces_the_prior_by_weight_of_evidence() -> None:
    measured = MeasuredRtt()
    assert (measured.samples, measured.ewma_ms, measured.blended_ms(100)) == (0, None, 100)
    blends = []
    for _ in range(27):
        measured.observe(200)
        blends.append(measured.blended_ms(100))
    assert blends == sorted(blends)
    assert blends[0] == pytest.approx(125)
    assert blends[2] == pytest.approx(150)
    assert blends[26] == pytest.approx(190)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 1e6))
def test_the_average_stays_within_the_samples(samples_ms: list[float], prior_ms: float) -> None:
    measured = MeasuredRtt()
    for sample_ms in samples_ms:
        measured.observe(sample_ms)
    assert measured.samples == len(samples_ms)
    assert measured.ewma_ms is not None
    slack = 1e-6
    assert min(samples_ms) - slack <= measured.ewma_ms <= max(samples_ms) + slack
    seen = [*samples_ms, prior_ms]
    assert min(seen) - slack <= measured.blended_ms(prior_ms) <= max(seen) + slack


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_what_no_clock_shows_is_refused(value: float) -> None:
    measured = MeasuredRtt()
    with pytest.raises(ValueError, match="no round trip"):
        measured.observe(value)
    assert measured.samples == 0


def test_triangle_detours_never_shorten_a_path() -> None:
    """No waypoint makes a path shorter than the great circle between its ends."""
    places = [parse_location(name) for name in ("Lagos", "Nairobi", "Lima", "Karachi", "Sydney", "Miami")]
    for a, b in combinations(places, 2):
        path = network_path(a, b)
        assert path is not None
        assert a.lat is not None
        assert a.lon is not None
        assert b.lat is not None
        assert b.lon is not None
        assert path.km >= great_circle_km(a.lat, a.lon, b.lat, b.lon) - 1e-6
