from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import maxminddb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gslb.geo.locate import GeoDatabaseError, Locator, open_database
from gslb.geo.mmdb import place_from_record
from gslb.geo.place import parse_location
from gslb.types import UNKNOWN_PLACE, Place
from tests.geo.shared_data import SHARED, needs_test_databases

FRANKFURT = parse_location("Frankfurt")
BERLIN = parse_location("Berlin")
GOOGLE_DNS = "8.8.8.8"  # American in every edition of the registry data


class FakeDatabase:
    """A reader that knows what it is told; IPv6 is a ValueError if it is an IPv4-only file."""

    def __init__(self, records: dict[str, Any], is_v4_only: bool = False) -> None:
        self.records = records
        self.is_v4_only = is_v4_only
        self.asked: list[str] = []

    def get(self, ip_address: str, /) -> object:
        self.asked.append(ip_address)
        if self.is_v4_only and ":" in ip_address:
            raise ValueError("an IPv6 address in an IPv4-only database")
        record = self.records.get(ip_address)
        if isinstance(record, Exception):
            raise record
        return record


def recorded(record: Any, address: str = "192.0.2.1", use_embedded: bool = False) -> Place:
    """Where a database with this one record says `address` is."""
    return Locator({}, FakeDatabase({address: record}), use_embedded).locate(address)


NESTED = {
    "continent": {"code": "EU"},
    "country": {"iso_code": "GB"},
    "subdivisions": [{"iso_code": "ENG"}],
    "city": {"names": {"de": "London (de)", "en": "London"}},
    "location": {"latitude": 51.5142, "longitude": -0.0931, "accuracy_radius": 10},
    "autonomous_system_number": 20712,
}
FLAT = {
    "country_code": "GB",
    "continent_code": "EU",
    "state1": "England",
    "city": "London",
    "latitude": 51.5142,
    "longitude": -0.0931,
    "asn": "AS20712",
}


def test_both_record_shapes_say_the_same() -> None:
    nested, flat = recorded(NESTED), recorded(FLAT)
    expected = Place("GB", "ENG", "London", "EU", 51.5142, -0.0931, 20712, 10.0, "mmdb")
    assert nested == expected
    assert flat == Place("GB", "England", "London", "EU", 51.5142, -0.0931, 20712, None, "mmdb")


def test_numbers_kept_as_text_are_read() -> None:
    place = recorded({"country": "us", "lat": "37.4", "lng": "-122.1"})
    assert (place.country, place.lat, place.lon, place.continent) == ("US", 37.4, -122.1, "NA")


class TestFC27AddressWithNoCountry:
    """FC-27: addresses without a country."""

    @pytest.mark.parametrize("address", ["10.1.2.3", "::1", "100.64.0.1", "127.0.0.1", "fe80::1"])
    def test_fc27_no_record_is_the_default_place_each_time(self, address: str) -> None:
        locator = Locator({}, FakeDatabase({}), default=FRANKFURT)
        places = {id(locator.locate(address)) for _ in range(100)}
        assert len(places) == 1
        place = locator.locate(address)
        assert (place.country, place.city, place.source) == ("DE", "Frankfurt", "default")
        assert Locator({}, FakeDatabase({})).locate(address) is UNKNOWN_PLACE

    def test_fc27_only_a_continent(self) -> None:
        place = recorded({"continent": {"code": "EU"}})
        assert (place.country, place.continent, place.source) == (None, "EU", "mmdb")
        assert place.is_located
        assert place.radius_km is not None
        assert place.radius_km > 1000

    def test_fc27_antarctica_has_no_centre(self) -> None:
        place = recorded({"continent": {"code": "AN"}})
        assert (place.continent, place.is_located) == ("AN", False)

    def test_fc27_only_a_registered_country(self) -> None:
        place = recorded({"registered_country": {"iso_code": "CH"}})
        assert (place.country, place.continent, place.source) == ("CH", "EU", "mmdb")
        assert recorded({**NESTED, "registered_country": {"iso_code": "US"}}).country == "GB"

    def test_fc27_a_country_without_location_gets_its_centroid(self) -> None:
        place = recorded({"country": {"iso_code": "NA"}})
        assert (place.country, place.lat, place.lon, place.continent) == ("NA", -21.4, 17.2, "AF")
        assert place.radius_km is not None

    def test_fc27_kosovo(self) -> None:
        place = recorded({"country": {"iso_code": "XK"}})
        assert (place.country, place.continent, place.is_located) == ("XK", "EU", True)

    def test_fc27_a_country_nobody_lists_is_kept(self) -> None:
        place = recorded({"country": {"iso_code": "AN"}})
        assert (place.country, place.is_located) == ("AN", False)
        with_continent = recorded({"country": {"iso_code": "QQ"}, "continent": {"code": "AS"}})
        assert (with_continent.country, with_continent.continent) == ("QQ", "AS")

    @pytest.mark.parametrize(("code", "continent"), [("EU", "EU"), ("AP", "AS")])
    def test_fc27_a_continent_in_a_countrys_place(self, code: str, continent: str) -> None:
        place = recorded({"country": {"iso_code": code}})
        assert (place.country, place.continent) == (None, continent)

    @pytest.mark.parametrize("code", ["ZZ", "A1", "", "-", "USA", "Ü!", 7, None, ["US"]])
    def test_fc27_what_is_no_country_is_none(self, code: object) -> None:
        assert recorded({"country": {"iso_code": code}}) is UNKNOWN_PLACE
        assert recorded({"country_code": code}) is UNKNOWN_PLACE

    def test_fc27_a_location_without_a_country_takes_the_embedded_one(self) -> None:
        record = {"location": {"latitude": 47.5, "longitude": 19.0, "accuracy_radius": 5}}
        place = recorded(record, GOOGLE_DNS, use_embedded=True)
        assert (place.country, place.continent, place.lat, place.lon) == ("US", "NA", 47.5, 19.0)
        assert (place.radius_km, place.source) == (5.0, "mmdb")
        alone = recorded(record, GOOGLE_DNS)
        assert (alone.country, alone.lat) == (None, 47.5)

    def test_fc27_a_database_without_places_leaves_them_to_the_embedded_table(self) -> None:
        place = recorded({"autonomous_system_number": 15169}, GOOGLE_DNS, use_embedded=True)
        assert (place.country, place.asn, place.source) == ("US", 15169, "embedded")
        assert recorded({"autonomous_system_number": 15169}) is UNKNOWN_PLACE

    def test_fc27_the_embedded_country_does_not_contradict_the_databases_continent(self) -> None:
        agreed = recorded({"continent": {"code": "NA"}}, GOOGLE_DNS, use_embedded=True)
        assert (agreed.country, agreed.source) == ("US", "embedded")
        contradicted = recorded({"continent": {"code": "EU"}}, GOOGLE_DNS, use_embedded=True)
        assert (contradicted.country, contradicted.continent, contradicted.source) == (None, "EU", "mmdb")

    def test_fc27_ipv6_with_an_ipv4_only_file_has_no_record(self) -> None:
        locator = Locator({}, FakeDatabase({}, is_v4_only=True), use_embedded=False, default=BERLIN)
        assert locator.locate("2001:db8::1").city == "Berlin"
        mapped = Locator({}, FakeDatabase({"192.0.2.1": FLAT}, is_v4_only=True), use_embedded=False)
        assert mapped.locate("::ffff:192.0.2.1").city == "London"

    def test_fc27_a_damaged_record_is_no_record(self) -> None:
        broken = maxminddb.InvalidDatabaseError("the data section is corrupt")
        assert recorded(broken) is UNKNOWN_PLACE
        assert recorded(broken, GOOGLE_DNS, use_embedded=True).country == "US"

    @pytest.mark.parametrize(
        "location",
        [
            {"latitude": 51.5},
            {"longitude": 0.1},
            {"latitude": 91, "longitude": 0.1},
            {"latitude": 51.5, "longitude": -180.5},
            {"latitude": float("nan"), "longitude": 1},
            {"latitude": "north", "longitude": 1},
            {"latitude": True, "longitude": True},
            {"latitude": 0.0, "longitude": 0.0},
            {},
        ],
    )
    def test_fc27_half_or_impossible_coordinates_are_none(self, location: dict[str, Any]) -> None:
        place = recorded({"country": {"iso_code": "DE"}, "location": location})
        assert (place.lat, place.lon, place.radius_km) == (51.3, 9.6, 340.0)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
MEMBERS = [
    *("country", "country_code", "registered_country", "continent", "continent_code", "location", "city"),
    *("latitude", "longitude", "lat", "lon", "lng", "subdivisions", "state1", "asn", "autonomous_system_number"),
]


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(MEMBERS), JSON) | JSON)
def test_fc27_no_record_whatever_its_shape_raises(record: Any) -> None:
    """FC-27: addresses without a country."""
    place = place_from_record(record)
    assert (place.lat is None) == (place.lon is None)
    assert place.country is None or (len(place.country) == 2 and place.country == place.country.upper())
    recorded(record)


@given(st.text())
def test_fc27_no_address_whatever_its_spelling_raises(address: str) -> None:
    """FC-27: addresses without a country."""
    locator = Locator({"10.0.0.0/8": FRANKFURT}, FakeDatabase({}))
    assert locator.locate(address).source in {"unknown", "embedded", "override"}


def test_overrides_come_first_and_the_longest_prefix_wins() -> None:
    database = FakeDatabase({"10.1.2.3": NESTED})
    locator = Locator({"10.0.0.0/8": FRANKFURT, "::ffff:10.1.0.0/112": BERLIN, "2001:db8::/32": BERLIN}, database)
    narrow = locator.locate("10.1.2.3")
    assert (narrow.city, narrow.source) == ("Berlin", "override")
    assert locator.locate("10.2.0.1").city == "Frankfurt"
    assert locator.locate("::ffff:10.2.0.1").city == "Frankfurt"
    assert locator.locate("2001:DB8::1").city == "Berlin"
    assert database.asked == []
    with pytest.raises(ValueError, match="'nonsense' is no network"):
        Locator({"nonsense": BERLIN}, None)


def test_without_a_database_the_embedded_table_answers() -> None:
    locator = Locator({}, None)
    place = locator.locate(GOOGLE_DNS)
    assert (place.country, place.continent, place.source) == ("US", "NA", "embedded")
    assert (place.lat, place.lon, place.radius_km) == (38.8, -93.5, 2270.0)
    assert locator.locate(f"::ffff:{GOOGLE_DNS}") is place
    assert Locator({}, None, use_embedded=False).locate(GOOGLE_DNS) is UNKNOWN_PLACE


@pytest.mark.parametrize(
    "address", ["", "garbage", "10.0.0.1:80", "fe80::1%eth0", "x" * 100_000, "\x00", "1.2.3.04"]
)
def test_what_is_no_address_has_no_record(address: str) -> None:
    assert Locator({}, None).locate(address) is UNKNOWN_PLACE
    assert Locator({}, None, default=BERLIN).locate(address).source == "default"


def test_equal_places_are_one_object() -> None:
    locator = Locator({}, FakeDatabase({"192.0.2.1": NESTED, "192.0.2.2": dict(NESTED)}))
    assert locator.locate("192.0.2.1") is locator.locate("192.0.2.2")
    assert locator.locate("8.8.8.8") is locator.locate("8.8.4.4")


def test_the_memory_of_addresses_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gslb.geo.locate._MOST_REMEMBERED", 10)
    database = FakeDatabase({"192.0.2.1": NESTED})
    locator = Locator({}, database, use_embedded=False)
    for number in range(100):
        locator.locate(f"198.51.100.{number}")
    assert len(locator._places) <= 10
    first = locator.locate("192.0.2.1")
    assert locator.locate("192.0.2.1") is first
    assert database.asked.count("192.0.2.1") == 1


def test_a_path_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(GeoDatabaseError, match="cannot read this location database: No such file"):
        open_database(tmp_path / "absent.mmdb")
    with pytest.raises(GeoDatabaseError, match=str(tmp_path)):
        open_database(tmp_path)
    for content in (b"", b"not a database", b"\xab\xcd\xefMaxMind.com"):
        path = tmp_path / "bad.mmdb"
        path.write_bytes(content)
        with pytest.raises(GeoDatabaseError, match=r"bad\.mmdb: this is no usable MaxMind DB file"):
            open_database(str(path))


@needs_test_databases
@pytest.mark.parametrize("platform", ["linux", "elsewhere"])
def test_a_database_outlives_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    path = tmp_path / "city.mmdb"
    path.write_bytes((SHARED / "geoip/GeoIP2-City-Test.mmdb").read_bytes())
    monkeypatch.setattr("sys.platform", platform)
    locator = Locator({}, open_database(path))
    path.write_bytes(b"")  # an updater truncates in place
    place = locator.locate("81.2.69.160")
    assert (place.city, place.country, place.lat, place.lon) == ("London", "GB", 51.5142, -0.0931)


@needs_test_databases
def test_a_database_cut_short_never_raises_later(tmp_path: Path) -> None:
    whole = (SHARED / "geoip/GeoIP2-City-Test.mmdb").read_bytes()
    path = tmp_path / "cut.mmdb"
    for cut in [*range(0, len(whole), 997), *range(len(whole) - 40, len(whole))]:
        path.write_bytes(whole[:cut])
        try:
            database = open_database(path)
        except GeoDatabaseError:
            continue
        Locator({}, database).locate("81.2.69.160")


@needs_test_databases
@pytest.mark.parametrize(
    ("name", "address", "country", "city"),
    [
        ("GeoIP2-City-Test", "89.160.20.112", "SE", "Linköping"),
        ("GeoIP2-City-Test", "216.160.83.56", "US", "Milton"),
        ("GeoIP2-City-Test", "175.16.199.1", "CN", "Changchun"),
        ("GeoIP2-City-Test", "67.43.156.1", "BT", None),
        ("GeoIP2-City-Test", "2001:218::1", "JP", None),
        ("GeoIP2-City-Test", "2a02:cf40::1", "NO", None),
        ("GeoLite2-City-Test", "81.2.69.160", "GB", "London"),
        ("GeoIP2-Country-Test", "81.2.69.160", "GB", None),
    ],
)
def test_the_test_databases(name: str, address: str, country: str, city: str | None) -> None:
    locator = Locator({}, open_database(SHARED / f"geoip/{name}.mmdb"), use_embedded=False)
    place = locator.locate(address)
    assert (place.country, place.city, place.source) == (country, city, "mmdb")
    assert place.is_located
    for unknown in ("1.1.1.1", "8.8.8.8", "127.0.0.1", "10.0.0.1"):
        assert locator.locate(unknown) is UNKNOWN_PLACE


@needs_test_databases
@pytest.mark.parametrize("name", ["GeoIP2-City-Test", "GeoLite2-City-Test", "GeoIP2-Country-Test"])
def test_every_network_of_the_test_databases(name: str) -> None:
    """The database read back network by network: the country is what the source of the file says."""
    database = open_database(SHARED / f"geoip/{name}.mmdb")
    locator = Locator({}, database, use_embedded=False)
    source = json.loads((SHARED / f"geoip/{name}.json").read_text(encoding="utf-8"))
    records = [(cidr.partition("/")[0], record) for networks in source for cidr, record in networks.items()]
    answered = 0
    for address, record in records:
        place = locator.locate(address)
        # Some networks of the source hold narrower ones: only what the file itself answers is compared.
        if "country" in record and database.get(address) == record:
            assert place.country == record["country"]["iso_code"]
            answered += 1
    assert answered > 150
