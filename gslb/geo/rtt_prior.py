"""What a round trip between two places probably takes, before anyone has measured it; and how measuring
replaces it.

The prior is the fastest way along a coarse map of long-haul cables: light in fibre makes 1000 km and back in
10 ms; sea cables are about a fifth longer than the map, and on land, along roads and rails, routes are longer
by half as much again. Map and rates were made with Azure's table of medians between regions (June 2025) in
view: median error there 4.4 %, where a plain great circle errs by 13 %. Not looked at before: AWS 6.6 %, IBM
4.7 % (`python -m benchmarks.rtt_prior`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache

from gslb.geo.atlas import waypoints
from gslb.geo.place import great_circle_km
from gslb.types import Place

UNKNOWN_RTT_MS = 150.0
"""For a place without coordinates: about the median between two Azure regions (149 ms)."""

GREAT_CIRCLE_MS = 5.0
GREAT_CIRCLE_MS_PER_1000_KM = 15.0
"""The line for great circles, where a country's cables are not on the map: median error 13 %."""

FIBRE_KM_PER_MS = 100.0
"""Distance per ms of ROUND TRIP: light in glass makes 200 km per ms, there and back."""

LEAST_DETOUR = 1.1
"""No cable between two cities is straighter than this; a faster round trip means wrong coordinates or
anycast."""

MEASUREMENT_PRIOR_WEIGHT = 3.0
"""The prior counts as much as this many samples: after 3 they weigh the same, after 27 the samples
have 90 %."""

_EWMA_WEIGHT = 0.2


@dataclass(frozen=True, slots=True)
class NetworkPath:
    """An assumed path: its length, the waypoints between its ends (none: great circle), the round trip."""

    km: float
    via: tuple[str, ...]
    rtt_ms: float


@dataclass(frozen=True, slots=True)
class _Leg:
    ms: float
    km: float
    via: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _CableMap:
    """The waypoints file, digested. `legs` holds the fastest way between any two waypoints."""

    points: Mapping[str, tuple[float, float]]
    legs: Mapping[tuple[str, str], _Leg]
    zones: Mapping[str, str]
    gateways: Mapping[str, tuple[str, ...]]
    base_ms: float
    land_ms_per_km: float


@cache
def _cable_map() -> _CableMap:
    raw = waypoints()
    rates = raw["rtt_ms"]
    points = {name: (float(lat), float(lon)) for name, (lat, lon) in raw["waypoints"].items()}
    ms_per_km = {"sea_edges": rates["sea_per_1000km"] / 1000, "land_edges": rates["land_per_1000km"] / 1000}
    edges = [(a, b, rate) for kind, rate in ms_per_km.items() for a, b in raw[kind]]
    return _CableMap(
        points=points,
        legs=_fastest_legs(points, edges),
        zones={code: zone for zone, codes in raw["zone_countries"].items() for code in codes.split()},
        gateways={zone: tuple(names) for zone, names in raw["zone_gateways"].items()},
        base_ms=float(rates["base"]),
        land_ms_per_km=ms_per_km["land_edges"],
    )


def _fastest_legs(
    points: Mapping[str, tuple[float, float]], edges: Iterable[tuple[str, str, float]]
) -> dict[tuple[str, str], _Leg]:
    """All-pairs shortest paths (Floyd and Warshall) by time over edges (two names, ms per km), each as long as
    its great circle."""
    legs = {(name, name): _Leg(0.0, 0.0, (name,)) for name in points}
    for a, b, ms_per_km in edges:
        km = great_circle_km(*points[a], *points[b])
        legs[a, b], legs[b, a] = _Leg(km * ms_per_km, km, (a, b)), _Leg(km * ms_per_km, km, (b, a))
    for middle in points:
        arriving = [(a, leg) for a in points if (leg := legs.get((a, middle))) is not None]
        leaving = [(b, leg) for b in points if (leg := legs.get((middle, b))) is not None]
        for a, first in arriving:
            for b, second in leaving:
                known = legs.get((a, b))
                if known is None or first.ms + second.ms < known.ms:
                    via = (*first.via, *second.via[1:])
                    legs[a, b] = _Leg(first.ms + second.ms, first.km + second.km, via)
    return legs


def rtt_prior_ms(a: Place, b: Place) -> float:
    """The assumed round trip between two places in ms, the same both ways; UNKNOWN_RTT_MS if either has no
    coordinates."""
    if a.lat is None or a.lon is None or b.lat is None or b.lon is None:
        return UNKNOWN_RTT_MS
    return _path(a.lat, a.lon, a.country, b.lat, b.lon, b.country).rtt_ms


def network_path(a: Place, b: Place) -> NetworkPath | None:
    """The path behind `rtt_prior_ms`, or None if either place has no coordinates."""
    if a.lat is None or a.lon is None or b.lat is None or b.lon is None:
        return None
    return _path(a.lat, a.lon, a.country, b.lat, b.lon, b.country)


@lru_cache(maxsize=65_536)
def _path(
    lat1: float, lon1: float, country1: str | None, lat2: float, lon2: float, country2: str | None
) -> NetworkPath:
    """Different zones: over the gateways; one zone: great circle; a zone unknown: great circle with its own
    line."""
    cables = _cable_map()
    zone1 = cables.zones.get(country1) if country1 else None
    zone2 = cables.zones.get(country2) if country2 else None
    if zone1 is None or zone2 is None:
        km = great_circle_km(lat1, lon1, lat2, lon2)
        return NetworkPath(km, (), GREAT_CIRCLE_MS + GREAT_CIRCLE_MS_PER_1000_KM * km / 1000)
    land = cables.land_ms_per_km
    if zone1 == zone2:
        km = great_circle_km(lat1, lon1, lat2, lon2)
        return NetworkPath(km, (), cables.base_ms + land * km)
    out = [(gate, great_circle_km(lat1, lon1, *cables.points[gate])) for gate in cables.gateways[zone1]]
    into = [(gate, great_circle_km(lat2, lon2, *cables.points[gate])) for gate in cables.gateways[zone2]]
    land_km, leg = min(
        ((out_km + in_km, cables.legs[gate1, gate2]) for gate1, out_km in out for gate2, in_km in into),
        key=lambda way: land * way[0] + way[1].ms,
    )
    return NetworkPath(land_km + leg.km, leg.via, cables.base_ms + land * land_km + leg.ms)


def is_plausible_rtt(rtt_ms: float, a: Place, b: Place) -> bool:
    """Whether light could have made this round trip, given where the two are and how far off that may be.

    False means wrong coordinates or anycast: the measurement is right and the place is not. Unknown
    coordinates contradict nothing.
    """
    if a.lat is None or a.lon is None or b.lat is None or b.lon is None:
        return True
    km = great_circle_km(a.lat, a.lon, b.lat, b.lon) - (a.radius_km or 0.0) - (b.radius_km or 0.0)
    return rtt_ms >= LEAST_DETOUR * max(0.0, km) / FIBRE_KM_PER_MS


class MeasuredRtt:
    """Round trips measured on one path, averaged so that the newest count most, beside the prior they
    replace."""

    __slots__ = ("ewma_ms", "samples")

    def __init__(self) -> None:
        self.samples = 0
        self.ewma_ms: float | None = None

    def observe(self, rtt_ms: float) -> None:
        """Take in one sample. The first five count alike, later ones a fifth each. Raises ValueError for a
        value that no clock shows (negative or not finite)."""
        if not (math.isfinite(rtt_ms) and rtt_ms >= 0):
            raise ValueError(f"{rtt_ms!r} ms is no round trip: measure with a monotonic clock")
        self.samples += 1
        before = rtt_ms if self.ewma_ms is None else self.ewma_ms
        self.ewma_ms = before + (rtt_ms - before) * max(_EWMA_WEIGHT, 1 / self.samples)

    def blended_ms(self, prior_ms: float) -> float:
        """The best estimate in ms: the average with weight n / (n + MEASUREMENT_PRIOR_WEIGHT) after n
        samples, the prior with the rest."""
        if self.ewma_ms is None:
            return prior_ms
        weight = self.samples / (self.samples + MEASUREMENT_PRIOR_WEIGHT)
        return weight * self.ewma_ms + (1 - weight) * prior_ms
