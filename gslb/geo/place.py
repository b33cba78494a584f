"""Where is that: location notations to places, distances, and the law that holds in a country.

Notations, tried in this order: `lat,lon` or `lat,lon,CC` · `aws:eu-central-1` (azure, gcp, ibm, coreweave) ·
`country:DE` · a bare ISO-2 code · a city, alone or as `city, country` · a country's English name.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from functools import cache

from gslb.geo.atlas import (
    PROVIDERS,
    City,
    CloudRegion,
    Country,
    cities,
    cloud_regions,
    countries,
    folded,
)
from gslb.types import Place

EARTH_RADIUS_KM = 6371.0
"""Mean radius (IUGG)."""

NEAREST_CITY_KM = 100.0
"""Coordinates without a country take that of the nearest listed city, if it is not farther than this."""

EU_COUNTRIES = frozenset(
    "AT BE BG CY CZ DE DK EE ES FI FR GR HR HU IE IT LT LU LV MT NL PL PT RO SE SI SK".split()  # noqa: SIM905
)
"""The 27 member states of the European Union (since 2020-02-01)."""

_EEA_ONLY = frozenset({"IS", "LI", "NO"})
# Territories with a country code of their own in which the law of a state (and for the first group, of the
# EU) holds: outermost regions and Åland (TFEU art. 349 and 355), unincorporated territories of the United
# States.
_EU_TERRITORIES = {"AX": "FI", "GF": "FR", "GP": "FR", "MF": "FR", "MQ": "FR", "RE": "FR", "YT": "FR"}
_US_TERRITORIES = frozenset({"AS", "GU", "MP", "PR", "UM", "VI"})

_OTHER_COUNTRY_NAMES = {
    "america": "US",
    "burma": "MM",
    "cape verde": "CV",
    "cote divoire": "CI",
    "czech republic": "CZ",
    "drc": "CD",
    "east timor": "TL",
    "england": "GB",
    "great britain": "GB",
    "holland": "NL",
    "korea": "KR",
    "macau": "MO",
    "palestinian territory": "PS",
    "republic of korea": "KR",
    "russian federation": "RU",
    "swaziland": "SZ",
    "the netherlands": "NL",
    "turkiye": "TR",
    "uae": "AE",
    "uk": "GB",
    "united states of america": "US",
    "usa": "US",
    "vatican": "VA",
    "viet nam": "VN",
}

_NUMBER = r"[+-]?\d{1,3}(?:\.\d*)?"
_COORDINATES = re.compile(rf"({_NUMBER})\s*,\s*({_NUMBER})(?:\s*,\s*([A-Za-z]{{2}}))?", re.ASCII)
_LONGEST_TEXT = 100


class UnknownLocation(ValueError):
    """A location notation that names no place. The message quotes it and offers near ones."""


def great_circle_km(lat1: float, lon1: float, lat2: float, lon2: float) -> float:
    """Kilometres between two points in degrees along the sphere, by the haversine formula.

    R. W. Sinnott, "Virtues of the Haversine", Sky and Telescope 68 (1984): stable for near points. Within
    0.6 % of the ellipsoid's distance.
    """
    phi1, phi2 = math.radians(lat1), math.radians(lat2)
    half_dphi, half_dlambda = (phi2 - phi1) / 2, math.radians(lon2 - lon1) / 2
    h = math.sin(half_dphi) ** 2 + math.cos(phi1) * math.cos(phi2) * math.sin(half_dlambda) ** 2
    return 2 * EARTH_RADIUS_KM * math.asin(math.sqrt(min(1.0, h)))


def country_place(iso2: str, source: str = "config") -> Place | None:
    """The place that stands for a whole country (its people's centroid and radius), or None for an unknown
    code."""
    country = countries().get(iso2)
    return None if country is None else _of_country(country, source)


def jurisdictions_of(country: str) -> frozenset[str]:
    """The jurisdictions that hold in a country (ISO-2, upper case), by codes that residency rules may name.

    Always the country itself; the state it belongs to (FR for RE, US for PR); EU and EEA where their law
    holds; UK beside GB. An unknown code stands for itself alone.

    >>> sorted(jurisdictions_of("DE")), sorted(jurisdictions_of("NO")), sorted(jurisdictions_of("CH"))
    (['DE', 'EEA', 'EU'], ['EEA', 'NO'], ['CH'])
    """
    state = _EU_TERRITORIES.get(country, "US" if country in _US_TERRITORIES else country)
    codes = {country, state}
    if state in EU_COUNTRIES:
        codes |= {"EU", "EEA"}
    elif state in _EEA_ONLY:
        codes.add("EEA")
    elif state == "GB":
        codes.add("UK")
    return frozenset(codes)


def parse_location(text: str) -> Place:
    """The place that any location notation names (see the module's text), with source `config`.

    An ambiguous city is the most populous one. Coordinates without a country take the country of the nearest
    listed city within 100 km, else their country stays None. Raises UnknownLocation, which names the text and
    offers near notations.
    """
    wanted = text.strip()
    if not wanted or len(wanted) > _LONGEST_TEXT:
        raise UnknownLocation(
            f"{text[:_LONGEST_TEXT]!r} names no place: write a cloud region such as aws:eu-central-1, a city, "
            "a country or lat,lon"
        )
    if match := _COORDINATES.fullmatch(wanted):
        return _of_coordinates(wanted, *match.groups())
    prefix, colon, rest = (part.strip() for part in wanted.partition(":"))
    if colon and prefix.lower() == "country":
        found: Place | None = _country_named(rest)
    elif colon:
        found = _cloud_region_named(f"{prefix}:{rest}".lower())
    elif len(wanted) == 2:
        found = _country_named(wanted)
    else:
        found = _city_named(wanted) or _country_named(wanted)
    if found is None:
        raise UnknownLocation(f"{text!r} names no known place{_suggestion(wanted)}")
    return found


def _of_country(country: Country, source: str) -> Place:
    return Place(
        country=country.iso2,
        continent=country.continent,
        lat=country.lat,
        lon=country.lon,
        radius_km=country.radius_km,
        source=source,
    )


def _of_site(site: City | CloudRegion, city: str) -> Place:
    return Place(
        country=site.country,
        city=city or None,
        continent=countries()[site.country].continent,
        lat=site.lat,
        lon=site.lon,
        source="config",
    )


def _of_coordinates(text: str, lat_text: str, lon_text: str, country: str | None) -> Place:
    lat, lon = float(lat_text), float(lon_text)
    if abs(lat) > 90 or abs(lon) > 180:
        raise UnknownLocation(f"{text!r} is off the globe: write lat,lon with lat -90..90 and lon -180..180")
    known = countries()
    if country is None:
        city = min(cities(), key=lambda city: great_circle_km(lat, lon, city.lat, city.lon))
        is_near = great_circle_km(lat, lon, city.lat, city.lon) <= NEAREST_CITY_KM
        code = city.country if is_near else None
    else:
        code = country.upper()
        if code not in known:
            raise UnknownLocation(f"{text!r}: {code} is no ISO 3166-1 country code")
    return Place(
        country=code,
        continent=known[code].continent if code else None,
        lat=lat,
        lon=lon,
        source="config",
    )


@cache
def _country_codes() -> Mapping[str, str]:
    """Folded names, other names and codes of countries -> ISO-2. A code wins over any name."""
    names = {folded(country.name): country.iso2 for country in countries().values()}
    return _OTHER_COUNTRY_NAMES | names | {iso2.lower(): iso2 for iso2 in countries()}


@cache
def _cities_by_name() -> Mapping[str, tuple[City, ...]]:
    """Folded city name -> the cities of that name, most populous first."""
    by_name: dict[str, tuple[City, ...]] = {}
    for city in cities():
        by_name[folded(city.name)] = (*by_name.get(folded(city.name), ()), city)
    return by_name


def _country_named(text: str) -> Place | None:
    code = _country_codes().get(folded(text))
    return None if code is None else country_place(code)


def _cloud_region_named(key: str) -> Place | None:
    region = cloud_regions().get(key)
    return None if region is None else _of_site(region, region.city)


def _city_named(text: str) -> Place | None:
    named = _cities_by_name().get(folded(text))
    if named:
        return _of_site(named[0], named[0].name)
    name, _, country = text.rpartition(",")
    code = _country_codes().get(folded(country))
    for city in _cities_by_name().get(folded(name), ()):
        if city.country == code:
            return _of_site(city, city.name)
    return None


def _suggestion(wanted: str) -> str:
    """Up to three near notations as the end of a sentence, or what may be written instead."""
    provider, colon, _ = wanted.lower().partition(":")
    near: list[str] = []
    if colon or provider in PROVIDERS:
        keys = list(cloud_regions())
        own = [key for key in keys if key.startswith(f"{provider}:")]
        near = difflib.get_close_matches(wanted.lower(), own, n=3) or own[:3]
        near = near or difflib.get_close_matches(wanted.lower(), keys, n=3)
    else:
        spelled = {key.partition(":")[2]: key for key in cloud_regions()}
        spelled |= {folded(country.name): country.name for country in countries().values()}
        spelled |= {folded(city.name): f"{city.name}, {city.country}" for city in reversed(cities())}
        name = wanted.rpartition(",")[0] or wanted
        near = [spelled[hit] for hit in difflib.get_close_matches(folded(name), spelled, n=3)]
        near = near or [spelled[hit] for hit in difflib.get_close_matches(wanted.lower(), spelled, n=3)]
    if near:
        return f": did you mean {' or '.join(near)}?"
    return ": write a cloud region such as aws:eu-central-1, a city, a country or lat,lon"
