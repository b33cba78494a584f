"""The packaged tables: countries, cities, cloud regions, cable waypoints. Read once, on first use.

Countries and cities are data from GeoNames (geonames.org, CC BY 4.0); cloud regions are the providers'
published sites; the waypoints are this project's own. Names are compared folded: no case, accents or
punctuation.
"""

from __future__ import annotations

import csv
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

PROVIDERS = ("aws", "azure", "gcp", "ibm", "coreweave")


@dataclass(frozen=True, slots=True)
class Country:
    """One ISO 3166-1 country (and XK). `lat`/`lon`: population-weighted centroid in degrees; 90 % of the
    people in its larger cities live within `radius_km` of it. `continent` is one of AF, AN, AS, EU, NA, OC,
    SA."""

    iso2: str
    name: str
    continent: str
    lat: float
    lon: float
    radius_km: float


@dataclass(frozen=True, slots=True)
class City:
    """One city: name as locals or English speakers write it, ISO-2 country, degrees to two decimals."""

    name: str
    country: str
    lat: float
    lon: float


@dataclass(frozen=True, slots=True)
class CloudRegion:
    """One region of a cloud: `key` is `provider:region` in lower case, `city` may be empty (published
    coarsely)."""

    key: str
    city: str
    country: str
    lat: float
    lon: float


@dataclass(frozen=True, slots=True)
class Metro:
    """A city that stands for a part of its country's people, in millions: where a population's requests come from.
    `utc_offset_h` is its clock in January."""

    city: str
    country: str
    lat: float
    lon: float
    people_million: float
    utc_offset_h: float


@dataclass(frozen=True, slots=True)
class Continent:
    """Population-weighted centre of a continent's larger cities; 90 % of those people within `radius_km`."""

    lat: float
    lon: float
    radius_km: float


CONTINENTS: Mapping[str, Continent] = {
    "AF": Continent(4.1, 16.6, 3900),
    "AS": Continent(30.1, 99.8, 4500),
    "EU": Continent(52.9, 22.0, 2400),
    "NA": Continent(31.0, -93.8, 2600),
    "OC": Continent(-34.6, 148.5, 2800),
    "SA": Continent(-13.5, -58.6, 2800),
}
"""Derived from the same cities as the countries' centroids. Antarctica has no cities and no entry."""

_SPELLED_OUT = str.maketrans({"ł": "l", "ø": "o", "đ": "d", "ß": "ss", "æ": "ae", "œ": "oe", "ı": "i", "ð": "d"})
_WORD = re.compile(r"[^\W_]+")


def folded(text: str) -> str:
    """`text` as compared: lower case, accents and punctuation gone, words one space apart.

    >>> folded(" São  Paulo"), folded("St. John's"), folded("Łódź")
    ('sao paulo', 'st johns', 'lodz')
    """
    # Compatibility caseless form (Unicode 3.13, D146): decomposing may bring new capitals, so it is done twice.
    decomposed = text
    for _ in range(2):
        decomposed = unicodedata.normalize("NFKD", decomposed.casefold().translate(_SPELLED_OUT))
    letters = "".join(c for c in decomposed if not unicodedata.combining(c) and c not in ".'’")
    return " ".join(_WORD.findall(letters))


def _rows(name: str) -> Iterator[list[str]]:
    """The rows of a packaged CSV file as text, without `#` lines and the header."""
    text = resources.files("gslb.geo").joinpath("data", name).read_text(encoding="utf-8")
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    rows = csv.reader(lines)
    next(rows)
    return rows


@cache
def countries() -> Mapping[str, Country]:
    """All countries by ISO-2 code."""
    return {
        iso2: Country(iso2, name, continent, float(lat), float(lon), float(radius_km))
        for iso2, name, continent, lat, lon, radius_km in _rows("countries.csv")
    }


@cache
def cities() -> tuple[City, ...]:
    """All listed cities, the most populous first."""
    return tuple(City(name, country, float(lat), float(lon)) for name, country, lat, lon in _rows("cities.csv"))


@cache
def metros() -> tuple[Metro, ...]:
    """Some two hundred cities that stand for the people of all countries of 5 million or more."""
    return tuple(
        Metro(city, country, float(lat), float(lon), float(people), float(offset))
        for city, country, lat, lon, people, offset in _rows("metros.csv")
    )


@cache
def cloud_regions() -> Mapping[str, CloudRegion]:
    """All listed cloud regions by `provider:region`, lower case."""
    regions = (
        CloudRegion(f"{provider}:{region}", city, country, float(lat), float(lon))
        for provider, region, city, country, lat, lon in _rows("cloud_regions.csv")
    )
    return {region.key: region for region in regions}


@cache
def waypoints() -> Mapping[str, Any]:
    """The cable map as it stands in `data/waypoints.json` (see the comment in it)."""
    text = resources.files("gslb.geo").joinpath("data", "waypoints.json").read_text(encoding="utf-8")
    cable_map: dict[str, Any] = json.loads(text)
    return cable_map
