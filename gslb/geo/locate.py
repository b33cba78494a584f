"""From a client's address to a place.

Asked in order: the operator's overrides (longest prefix), the location database, the embedded country table
(registry data of PyPI `iptocc`, credit nro.net, with the centroid of the country's people), the default
place. Whom none of them knows is at UNKNOWN_PLACE: a place of its own for residency rules, never an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import iptocc
import maxminddb

from gslb.geo.addresses import Address, PrefixTable, parse_address
from gslb.geo.atlas import CONTINENTS
from gslb.geo.mmdb import GeoDatabaseError, MmdbReader, open_database, place_from_record
from gslb.geo.place import country_place
from gslb.types import UNKNOWN_PLACE, Place

__all__ = ["GeoDatabaseError", "Locator", "MmdbReader", "open_database"]

_MOST_REMEMBERED = 65_536


class Locator:
    """Locates addresses. Immutable once built: a reload builds a new one.

    Equal places are one object: callers may cache by identity. (Once 65,536 addresses are remembered all are
    forgotten; a place met again after that may be a new object.)
    """

    __slots__ = ("_database", "_default", "_overrides", "_places", "_same", "_use_embedded")

    def __init__(
        self,
        overrides: Mapping[str, Place],
        database: MmdbReader | None,
        use_embedded: bool = True,
        default: Place | None = None,
    ) -> None:
        """`overrides` by network (`10.1.0.0/16`, `2001:db8::/32`, a lone address). Raises ValueError for a
        key that is no network."""
        self._overrides = PrefixTable(
            (network, replace(place, source="override")) for network, place in overrides.items()
        )
        self._database = database
        self._use_embedded = use_embedded
        self._default = UNKNOWN_PLACE if default is None else replace(default, source="default")
        self._places: dict[str, Place] = {}
        self._same: dict[Place, Place] = {}

    def locate(self, address: str) -> Place:
        """Where `address` is. Never raises: what is no address has no record, and gets the default place or
        UNKNOWN_PLACE. IPv4-mapped IPv6 is looked up as IPv4."""
        known = self._places.get(address)
        if known is not None:
            return known
        parsed = parse_address(address)
        if parsed is None:
            return self._default
        if len(self._places) >= _MOST_REMEMBERED:
            self._places.clear()
            self._same.clear()
        found = self._look_up(parsed)
        place = found if found is self._default else self._same.setdefault(found, found)
        self._places[address] = place
        return place

    def _look_up(self, address: Address) -> Place:
        if self._overrides and (override := self._overrides.find(address)) is not None:
            return override
        text = str(address)
        recorded = self._recorded(text)
        if recorded.country is None and self._use_embedded:
            embedded = self._embedded(text)
            if embedded is not None and recorded.continent in (None, embedded.continent):
                return _completed(recorded, embedded, "mmdb" if recorded.is_located else "embedded")
        if recorded.country is not None:
            return _completed(recorded, country_place(recorded.country, "mmdb"), "mmdb")
        if recorded.continent is not None:
            return _completed(recorded, _continent_place(recorded.continent), "mmdb")
        return recorded if recorded.is_located else self._default

    def _recorded(self, text: str) -> Place:
        """What the database says, which may be nothing at all."""
        if self._database is None:
            return UNKNOWN_PLACE
        try:
            record = self._database.get(text)
        except (ValueError, maxminddb.InvalidDatabaseError):
            # An IPv4-only file asked for IPv6, or a file damaged at just this record: no record.
            return UNKNOWN_PLACE
        return place_from_record(record)

    def _embedded(self, text: str) -> Place | None:
        code = iptocc.country_code(text)
        if code is None:
            return None
        return country_place(code, "embedded") or Place(country=code, source="embedded")


def _continent_place(code: str) -> Place | None:
    centre = CONTINENTS.get(code)
    if centre is None:
        return None
    return Place(continent=code, lat=centre.lat, lon=centre.lon, radius_km=centre.radius_km)


def _completed(recorded: Place, wider: Place | None, source: str) -> Place:
    """`recorded` with what it lacks taken from a wider place around it. Coordinates and radius go
    together."""
    if wider is None:
        return recorded if recorded.source == source else replace(recorded, source=source)
    at = recorded if recorded.is_located else wider
    return Place(
        country=recorded.country or wider.country,
        subdivision=recorded.subdivision,
        city=recorded.city,
        continent=recorded.continent or wider.continent,
        lat=at.lat,
        lon=at.lon,
        asn=recorded.asn,
        radius_km=at.radius_km,
        source=source,
    )
