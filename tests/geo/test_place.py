from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gslb.geo.atlas import CONTINENTS, City, CloudRegion, cities, cloud_regions, countries, folded
from gslb.geo.place import (
    EU_COUNTRIES,
    UnknownLocation,
    country_place,
    great_circle_km,
    jurisdictions_of,
    parse_location,
)

LATITUDES = st.floats(-90, 90)
LONGITUDES = st.floats(-180, 180)


@pytest.mark.parametrize(
    ("text", "country", "city", "lat", "lon"),
    [
        ("aws:eu-central-1", "DE", "Frankfurt", 50.11, 8.68),
        (" AWS:EU-Central-1 ", "DE", "Frankfurt", 50.11, 8.68),
        ("azure:westeurope", "NL", "Amsterdam", 52.37, 4.90),
        ("gcp:asia-east1", "TW", "Changhua", 24.05, 120.52),
        ("ibm:eu-de", "DE", "Frankfurt", 50.11, 8.68),
        ("coreweave:US-EAST-04", "US", "Ashburn", 39.04, -77.49),
        ("Frankfurt", "DE", "Frankfurt", 50.11, 8.68),
        ("Frankfurt, DE", "DE", "Frankfurt", 50.11, 8.68),
        ("frankfurt,germany", "DE", "Frankfurt", 50.11, 8.68),
        ("São Paulo", "BR", "São Paulo", -23.55, -46.64),
        ("Sao Paulo", "BR", "São Paulo", -23.55, -46.64),
        ("ZURICH", "CH", "Zürich", 47.37, 8.55),
        ("London", "GB", "London", 51.51, -0.13),
        ("London, CA", "CA", "London", 42.98, -81.23),
        ("Washington, D.C.", "US", "Washington DC", 38.90, -77.04),
        ("Singapore", "SG", "Singapore", 1.29, 103.85),
        ("country:DE", "DE", None, 51.3, 9.6),
        ("country:Norway", "NO", None, 60.5, 9.5),
        ("no", "NO", None, 60.5, 9.5),
        ("NA", "NA", None, -21.4, 17.2),
        ("Namibia", "NA", None, -21.4, 17.2),
        ("UK", "GB", None, 52.5, -1.3),
        ("XK", "XK", None, 42.6, 20.9),
        ("Côte d'Ivoire", "CI", None, 6.6, -5.0),
        ("50.11,8.68", "DE", None, 50.11, 8.68),
        ("50.11, 8.68, ch", "CH", None, 50.11, 8.68),
        ("-33.5, 18.5", "ZA", None, -33.5, 18.5),
        ("0,-30", None, None, 0.0, -30.0),
    ],
)
def test_every_notation_names_its_place(
    text: str, country: str | None, city: str | None, lat: float, lon: float
) -> None:
    place = parse_location(text)
    assert (place.country, place.city, place.source) == (country, city, "config")
    assert place.lat == pytest.approx(lat, abs=0.5)
    assert place.lon == pytest.approx(lon, abs=0.5)
    assert place.continent == (countries()[country].continent if country else None)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("aws:eu-centrl-1", "aws:eu-central-1"),
        ("awz:eu-central-1", "aws:eu-central-1"),
        ("eu-central-1", "aws:eu-central-1"),
        ("azure", "azure:australiacentral"),
        ("aws:", "aws:"),
        ("Frankfrt", "Frankfurt, DE"),
        ("Frankfrt, DE", "Frankfurt, DE"),
        ("Ashburn, VA", "Ashburn, US"),
        ("Germny", "Germany"),
        ("country:ZZ", "lat,lon"),
        ("qqqqqqqqqq", "lat,lon"),
        ("91,0", "-90..90"),
        ("0,181", "-180..180"),
        ("1,2,ZZ", "ZZ is no ISO 3166-1"),
        ("", "aws:eu-central-1"),
        ("x" * 100_000, "aws:eu-central-1"),
    ],
)
def test_an_unknown_location_is_quoted_and_near_ones_are_offered(text: str, hint: str) -> None:
    with pytest.raises(UnknownLocation) as caught:
        parse_location(text)
    message = str(caught.value)
    assert hint in message
    assert text[:50] in message
    assert len(message) < 400


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=40))
def test_any_text_is_a_place_or_an_unknown_location(text: str) -> None:
    try:
        place = parse_location(text)
    except UnknownLocation:
        return
    assert place.is_located


@settings(max_examples=50, deadline=None)
@given(LATITUDES, LONGITUDES)
def test_coordinates_come_back_as_written(lat: float, lon: float) -> None:
    place = parse_location(f"{lat:.4f},{lon:.4f}")
    assert (place.lat, place.lon) == (float(f"{lat:.4f}"), float(f"{lon:.4f}"))


def test_every_listed_country_city_and_region_can_be_written() -> None:
    for country in countries().values():
        assert parse_location(country.iso2).country == country.iso2
        assert parse_location(f"country:{country.name}").country == country.iso2
    for city in cities():
        assert parse_location(f"{city.name}, {city.country}").country == city.country
    for key, region in cloud_regions().items():
        assert parse_location(key).country == region.country


def test_tables_are_sound() -> None:
    assert len(countries()) >= 249
    assert {"NA", "XK", "GB"} <= countries().keys()
    assert all(country.continent in {*CONTINENTS, "AN"} for country in countries().values())
    assert {key.partition(":")[0] for key in cloud_regions()} == {"aws", "azure", "gcp", "ibm", "coreweave"}
    sites: list[City | CloudRegion] = [*cities(), *cloud_regions().values()]
    for site in sites:
        assert site.country in countries()
        assert abs(site.lat) <= 90
        assert abs(site.lon) <= 180
    for region in cloud_regions().values():
        city = parse_location(f"{region.city}, {region.country}") if region.city else None
        if city is not None and city.lat is not None and city.lon is not None:
            assert great_circle_km(region.lat, region.lon, city.lat, city.lon) < 60, region


@given(st.text(max_size=30))
def test_folding_is_idempotent(text: str) -> None:
    assert folded(folded(text)) == folded(text)


def test_great_circle_of_known_distances() -> None:
    assert great_circle_km(0, 0, 0, 90) == pytest.approx(10_007.5, abs=0.1)
    assert great_circle_km(90, 0, -90, 0) == pytest.approx(20_015.1, abs=0.1)
    assert great_circle_km(0, 179.5, 0, -179.5) == pytest.approx(111.2, abs=0.1)
    assert great_circle_km(51.5074, -0.1278, 40.7128, -74.006) == pytest.approx(5570, abs=5)


@given(LATITUDES, LONGITUDES, LATITUDES, LONGITUDES)
def test_great_circle_is_a_distance(lat1: float, lon1: float, lat2: float, lon2: float) -> None:
    km = great_circle_km(lat1, lon1, lat2, lon2)
    assert 0 <= km <= 20_016
    assert km == pytest.approx(great_circle_km(lat2, lon2, lat1, lon1), abs=1e-6)
    assert great_circle_km(lat1, lon1, lat1, lon1) == 0


def test_country_place_is_the_peoples_centroid_with_a_radius() -> None:
    russia = country_place("RU", "embedded")
    assert russia is not None
    assert (russia.lat, russia.lon, russia.source) == (56.9, 50.8, "embedded")
    assert russia.radius_km is not None
    assert russia.radius_km > 1000
    assert country_place("ZZ") is None


@pytest.mark.parametrize(
    ("country", "expected"),
    [
        ("DE", {"DE", "EU", "EEA"}),
        ("NO", {"NO", "EEA"}),
        ("LI", {"LI", "EEA"}),
        ("CH", {"CH"}),
        ("GB", {"GB", "UK"}),
        ("GI", {"GI"}),
        ("US", {"US"}),
        ("PR", {"PR", "US"}),
        ("RE", {"RE", "FR", "EU", "EEA"}),
        ("AX", {"AX", "FI", "EU", "EEA"}),
        ("NC", {"NC"}),
        ("SJ", {"SJ"}),
        ("ZZ", {"ZZ"}),
    ],
)
def test_jurisdictions_of_a_country(country: str, expected: set[str]) -> None:
    assert jurisdictions_of(country) == expected


def test_the_union_has_27_members_all_listed() -> None:
    assert len(EU_COUNTRIES) == 27
    assert countries().keys() >= EU_COUNTRIES
