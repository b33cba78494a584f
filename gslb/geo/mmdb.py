"""Location databases in MaxMind DB format: opening one safely, and reading the record shapes found in the
field.

MaxMind nests (`country.iso_code`, `location.latitude`, `city.names.en`); others are flat (`country_code`,
`latitude`, `city`, `state1`). In both every member is optional, and none is trusted to have the right type.
"""

from __future__ import annotations

import io
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import maxminddb

from gslb.geo.atlas import CONTINENTS
from gslb.types import Place

_NOT_COUNTRIES = {"EU": "EU", "AP": "AS"}
"""Codes that old databases put in a country's place for "somewhere in Europe, in Asia", and their
continents."""

_NO_COUNTRY = frozenset({"ZZ", "XX", "A1", "A2", "O1"})

_EMPTY: Mapping[str, Any] = {}


class MmdbReader(Protocol):
    """What a locator needs of a database: `maxminddb.Reader` is one."""

    def get(self, ip_address: str, /) -> object:
        """The record of an address or None; ValueError for IPv6 in a file that only knows IPv4."""


class GeoDatabaseError(ValueError):
    """A location database that cannot be used. The message names the path and what is wrong."""


def open_database(path: str | os.PathLike[str]) -> MmdbReader:
    """Read a whole .mmdb file into memory and open it. Blocks for the time that takes (50 ms for 100 MB).

    The file itself is never mapped: an updater that truncates it in place would kill the process (SIGBUS). On
    Linux the copy is an anonymous file, because the C reader, twenty times faster, only opens paths.
    Raises GeoDatabaseError for a path that cannot be read and a file that is no database.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise GeoDatabaseError(f"{path}: cannot read this location database: {error.strerror or error}") from error
    try:
        return _open_copy(content)
    except (maxminddb.InvalidDatabaseError, ValueError, OSError, EOFError) as error:
        raise GeoDatabaseError(
            f"{path}: this is no usable MaxMind DB file ({len(content)} bytes): download it again"
        ) from error


def _open_copy(content: bytes) -> MmdbReader:
    if sys.platform == "linux":
        fd = os.memfd_create("geo-database")
        with open(fd, "wb") as copy:
            copy.write(content)
            copy.flush()
            try:
                return maxminddb.open_database(f"/proc/self/fd/{fd}", maxminddb.MODE_MMAP_EXT)
            except (ValueError, FileNotFoundError):
                pass  # built without its C extension, or no /proc here: the slow reader will do
    return maxminddb.open_database(_NamedBytes(content), maxminddb.MODE_FD)


class _NamedBytes(io.BytesIO):
    """maxminddb asks a file object for its name."""

    name = "location database"


def place_from_record(record: object) -> Place:
    """What a record of either shape says, with source `mmdb`; a Place with nothing known for one that says
    nothing.

    A country that is only registered there (`registered_country`) counts when no other is given. Coordinates
    come in pairs, finite and on the globe; 0,0 is how empty records spell "unknown". `subdivision` is the ISO
    code, or the name where a flat file has only that.
    """
    if not isinstance(record, Mapping):
        return Place()
    country = (
        _code(_inner(record, "country").get("iso_code"))
        or _code(record.get("country_code"))
        or _code(record.get("country"))
        or _code(_inner(record, "registered_country").get("iso_code"))
    )
    continent = _code(_inner(record, "continent").get("code")) or _code(record.get("continent_code"))
    if country in _NOT_COUNTRIES:
        continent = continent or _NOT_COUNTRIES[country]
        country = None
    location = _inner(record, "location") or record
    lat, lon = _coordinates(
        location.get("latitude", location.get("lat")),
        location.get("longitude", location.get("lon", location.get("lng"))),
    )
    return Place(
        country=None if country in _NO_COUNTRY else country,
        subdivision=_subdivision(record),
        city=_text(_inner(record, "city").get("names")) or _text(record.get("city")),
        continent=continent if continent in CONTINENTS or continent == "AN" else None,
        lat=lat,
        lon=lon,
        asn=_system_number(record),
        radius_km=_number(location.get("accuracy_radius")) if lat is not None else None,
        source="mmdb",
    )


def _inner(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = record.get(name)
    return value if isinstance(value, Mapping) else _EMPTY


def _code(value: object) -> str | None:
    """A two-letter code in upper case, or None for anything else."""
    if isinstance(value, str) and len(value) == 2 and value.isascii() and value.isalnum():
        return value.upper()
    return None


def _text(value: object) -> str | None:
    """A name: a plain string, or the English (else any) one of a `names` table."""
    if isinstance(value, Mapping):
        value = value.get("en") or next(iter(value.values()), None)
    return value if isinstance(value, str) and value else None


def _number(value: object) -> float | None:
    """A finite number, also one that a flat file keeps as text."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _coordinates(lat_value: object, lon_value: object) -> tuple[float, float] | tuple[None, None]:
    lat, lon = _number(lat_value), _number(lon_value)
    if lat is None or lon is None or abs(lat) > 90 or abs(lon) > 180 or (lat == 0 and lon == 0):
        return None, None
    return lat, lon


def _subdivision(record: Mapping[str, Any]) -> str | None:
    listed = record.get("subdivisions")
    if isinstance(listed, (list, tuple)) and listed and isinstance(listed[0], Mapping):
        return _text(listed[0].get("iso_code"))
    return _text(record.get("state1"))


def _system_number(record: Mapping[str, Any]) -> int | None:
    """An autonomous system number: `autonomous_system_number: 29518` or `asn: AS29518`."""
    value = record.get("autonomous_system_number", record.get("asn"))
    if isinstance(value, str):
        value = value.upper().removeprefix("AS")
    number = _number(value)
    return int(number) if number is not None and 0 < number < 2**32 else None
