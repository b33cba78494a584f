"""The demo's countries and regions: real addresses in the right countries, no ties, room for its promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from gslb.config.load import check_text
from gslb.demo.crowd import MOST_OPEN, PINNED_REGION
from gslb.demo.stage import config_text, mock_settings
from gslb.demo.world import COUNTRIES, RESIDENT, RUSHED, SITES, Country, nearest, rtt_ms
from gslb.geo.locate import Locator
from gslb.geo.place import jurisdictions_of
from gslb.mock.settings import WanTable

BY_NAME = {site.name: site for site in SITES}


@pytest.mark.parametrize("country", COUNTRIES, ids=lambda country: country.code)
def test_every_address_of_a_country_is_placed_in_it_by_the_embedded_table(country: Country) -> None:
    locator = Locator({}, None)
    for number in (0, 1, 100, 253, 254, 65_535):
        place = locator.locate(country.address(number))
        assert (place.country, place.source) == (country.code, "embedded")


@pytest.mark.parametrize("country", COUNTRIES, ids=lambda country: country.code)
def test_the_nearest_site_is_nearest_by_more_than_chance_may_blur(country: Country) -> None:
    first, second, _ = sorted(rtt_ms(country.code, site) for site in SITES)
    assert second - first > 30
    assert rtt_ms(country.code, nearest(country.code)) == first


def test_the_rushed_live_near_singapore_and_the_residents_in_the_eu() -> None:
    assert {nearest(code).name for code in RUSHED} == {"singapore"}
    assert {nearest(code).name for code in RESIDENT} == {"frankfurt"}
    assert {country.code for country in COUNTRIES if "EU" in jurisdictions_of(country.code)} == RESIDENT


def test_one_endpoint_of_frankfurt_can_hold_every_open_request() -> None:
    assert BY_NAME["frankfurt"].slots > MOST_OPEN


def test_an_unknown_country_has_no_distance() -> None:
    with pytest.raises(ValueError, match="QQ"):
        rtt_ms("QQ", SITES[0])


def test_the_edge_accepts_the_demos_configuration() -> None:
    urls = {
        site.name: [f"http://127.0.0.1:{9000 + 10 * number + i}" for i in range(site.endpoints)]
        for number, site in enumerate(SITES)
    }
    settings = check_text(config_text(urls), "demo.yaml", {}, Path())
    assert [region.name for region in settings.regions] == [site.name for site in SITES]
    assert {endpoint.capacity for endpoint in settings.endpoints} == {site.slots for site in SITES}
    pinned = next(region for region in settings.regions if region.name == PINNED_REGION)
    assert "EU" not in pinned.jurisdictions


def test_a_mock_stands_at_each_countrys_distance_and_near_the_probes() -> None:
    site = BY_NAME["singapore"]
    settings = mock_settings(site, seed=1)
    wan = WanTable(settings.wan, settings.wan_default_ms)
    for country in COUNTRIES:
        assert wan.rtt_ms(country.address(7)) == rtt_ms(country.code, site)
    assert wan.rtt_ms("127.0.0.1") < 10
