"""Who asks, from where, and when it is day there: cities by population, each beside the edge it comes to."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import merge
from itertools import accumulate, count
from math import cos, pi
from typing import Final

from gslb.geo.atlas import Metro, countries
from gslb.sim.setting import EdgeSpec
from gslb.types import Place

_HOURS: Final = 24.0
_STEPS_A_DAY: Final = 96


@dataclass(frozen=True, slots=True)
class Client:
    """The people of one city and the edge they come to. `share` is of all requests, on average over a day."""

    place: Place
    edge: str
    share: float
    utc_offset_h: float = 0.0


@dataclass(frozen=True, slots=True)
class Day:
    """Activity by the hour on clients' own clocks, `1 + swing * cos(2 pi (hour - peak_hour) / 24)`: 1 on average.

    A day may pass in fewer simulated seconds than it has: `length_s`. The run starts at `start_hour` UTC.
    """

    length_s: float = 86_400.0
    start_hour: float = 0.0
    peak_hour: float = 15.0
    swing: float = 0.8

    def activity(self, at_s: float, utc_offset_h: float) -> float:
        """How much is asked at `at_s` by people whose clock is so far from UTC, 1 on average."""
        hour = self.start_hour + _HOURS * at_s / self.length_s + utc_offset_h
        return 1.0 + self.swing * cos(2 * pi * (hour - self.peak_hour) / _HOURS)


@dataclass(frozen=True, slots=True)
class Surge:
    """The clients of one edge ask `factor` times as much from `at_s` to `until_s`."""

    edge: str
    at_s: float
    until_s: float
    factor: float


@dataclass(frozen=True, slots=True)
class Phase:
    """A span in which nothing changes: up to `until_s` the crowd asks `share` of the mean rate of all crowds;
    `cumulative` are the running sums of its clients' shares in that."""

    until_s: float
    share: float
    cumulative: Sequence[float]


class Crowd:
    """All clients of one edge."""

    def __init__(self, clients: Sequence[Client], day: Day | None = None, surges: Sequence[Surge] = ()) -> None:
        """`clients` all come to the same edge; surges of others are ignored. Raises ValueError without any."""
        if not clients:
            raise ValueError("a crowd without clients")
        self.clients = tuple(clients)
        self.edge = clients[0].edge
        self._day = day
        self._surges = tuple(surge for surge in surges if surge.edge == self.edge)
        self._steady = tuple(accumulate(client.share for client in clients))

    def phases(self, start_s: float, end_s: float) -> Iterator[Phase]:
        """The time from `start_s` to `end_s` cut into spans of even rates."""
        at_s = start_s
        for until_s in self._cuts(start_s, end_s):
            middle_s = (at_s + until_s) / 2
            factor = 1.0
            for surge in self._surges:
                if surge.at_s <= middle_s < surge.until_s:
                    factor *= surge.factor
            cumulative = self._cumulative(middle_s)
            yield Phase(until_s, cumulative[-1] * factor, cumulative)
            at_s = until_s

    def pick(self, phase: Phase, point: float) -> Client:
        """The client at `point` (0..1) of the crowd as it is in `phase`: equal points, mostly equal clients."""
        index = bisect_left(phase.cumulative, point * phase.cumulative[-1])
        return self.clients[min(index, len(self.clients) - 1)]

    def _cumulative(self, at_s: float) -> Sequence[float]:
        day = self._day
        if day is None:
            return self._steady
        shares = (client.share * day.activity(at_s, client.utc_offset_h) for client in self.clients)
        return tuple(accumulate(shares))

    def _cuts(self, start_s: float, end_s: float) -> Iterator[float]:
        """When something changes after `start_s`, each moment once, and `end_s` at last."""
        bounds = sorted(at_s for surge in self._surges for at_s in (surge.at_s, surge.until_s))
        steps: Iterable[float] = ()
        if self._day is not None:
            step_s = self._day.length_s / _STEPS_A_DAY
            steps = _every(step_s, start_s)
        last_s = start_s
        for at_s in merge(bounds, steps):
            if at_s >= end_s:
                break
            if at_s > last_s:
                yield at_s
                last_s = at_s
        yield end_s


def crowds_of(
    metros: Iterable[Metro],
    edges: Sequence[EdgeSpec],
    rtt_ms: Callable[[Place, Place], float],
    shares: Mapping[str, float] | None = None,
    day: Day | None = None,
    surges: Sequence[Surge] = (),
) -> tuple[Crowd, ...]:
    """Every city's people at the edge with the least round trip to them, in the order of `edges`.

    `shares` says what part of all requests comes to each edge (they are scaled to a sum of 1); within an edge, and
    without `shares` altogether, people count. An edge that is nobody's nearest has its own place as its one client
    when `shares` gives it a part, and none otherwise.
    """
    people: dict[str, list[Client]] = {edge.name: [] for edge in edges}
    for metro in metros:
        place = _place_of(metro)
        nearest = min(edges, key=lambda edge: rtt_ms(place, edge.place))
        people[nearest.name].append(Client(place, nearest.name, metro.people_million, metro.utc_offset_h))
    if shares is not None:
        for edge in edges:
            alone = Client(edge.place, edge.name, 1.0, round((edge.place.lon or 0.0) / 15))
            people[edge.name] = _scaled(people[edge.name] or [alone], shares.get(edge.name, 0.0))
    total = sum(client.share for clients in people.values() for client in clients)
    crowds = (_scaled(clients, sum(client.share for client in clients) / total) for clients in people.values())
    return tuple(Crowd(clients, day, surges) for clients in crowds if clients)


def _scaled(clients: Sequence[Client], share: float) -> list[Client]:
    """The same clients with shares that sum up to `share`; none for 0."""
    total = sum(client.share for client in clients)
    return [replace(client, share=client.share * share / total) for client in clients] if share else []


def _place_of(metro: Metro) -> Place:
    country = countries()[metro.country]
    return Place(
        country=metro.country, city=metro.city, continent=country.continent, lat=metro.lat, lon=metro.lon,
        source="config",
    )  # fmt: skip


def point_of(number: int, salt: int) -> float:
    """A point in 0..1 that looks random and is the same for equal numbers (splitmix64 by Steele, Lea and Flood,
    OOPSLA 2014): what gives a conversation's requests one client without remembering any."""
    mask = (1 << 64) - 1
    z = (number * 0x9E3779B97F4A7C15 + salt) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return (z ^ (z >> 31)) / 2**64


def _every(step_s: float, after_s: float) -> Iterator[float]:
    """`after_s` plus one step, two steps, and so on without end (compiled, an expression would want to end)."""
    for n in count(1):
        yield after_s + n * step_s
