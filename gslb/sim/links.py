"""Round trips of a simulated world: between clients, edges and regions, with jitter."""

from __future__ import annotations

from math import exp
from random import Random
from statistics import NormalDist
from typing import Final

from gslb.geo.place import great_circle_km
from gslb.sim.setting import EdgeSpec, Setting
from gslb.types import Place

SAME_CITY_MS: Final = 1.0
"""Round trip of an edge to a region in its own city: a data centre, not a continent."""
_SAME_CITY_KM: Final = 50.0
_JITTER_STEPS: Final = 4096


class Links:
    """Mean one-way times and the dice for jitter."""

    def __init__(self, setting: Setting, dice: Random) -> None:
        self._setting = setting
        self._random = dice.random
        normal = NormalDist()
        self._factors = [
            exp(setting.jitter * normal.inv_cdf((i + 0.5) / _JITTER_STEPS)) for i in range(_JITTER_STEPS)
        ]
        self._places: dict[int, tuple[Place, str, dict[str, float]]] = {}
        """By identity (places are interned): the place itself, its nearest region, one-way seconds to edges."""

    def jitter(self) -> float:
        """A lognormal factor with median 1."""
        return self._factors[int(self._random() * _JITTER_STEPS)]

    def edge_to_region_s(self, edge: EdgeSpec) -> dict[str, float]:
        """Mean one-way seconds from an edge to each region, by name."""
        legs = {}
        for region in self._setting.regions:
            is_near = _is_one_city(edge.place, region.place)
            rtt_ms = SAME_CITY_MS if is_near else self._setting.rtt_ms(edge.place, region.place)
            legs[region.name] = rtt_ms / 2000
        return legs

    def of_client(self, place: Place) -> tuple[str, dict[str, float]]:
        """The region nearest to a client, and its mean one-way seconds to each edge."""
        known = self._places.get(id(place))
        if known is None:
            rtt_ms = self._setting.rtt_ms
            nearest = min(self._setting.regions, key=lambda region: rtt_ms(place, region.place))
            to_edges = {edge.name: rtt_ms(place, edge.place) / 2000 for edge in self._setting.edges}
            known = self._places[id(place)] = (place, nearest.name, to_edges)
        return known[1], known[2]


def _is_one_city(a: Place, b: Place) -> bool:
    if a.lat is None or a.lon is None or b.lat is None or b.lon is None:
        return a == b
    return great_circle_km(a.lat, a.lon, b.lat, b.lon) <= _SAME_CITY_KM
