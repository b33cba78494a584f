"""Small builders of fleets, requests and routers for tests of the core.

Round trips are set, not computed: `router()` has a placed edge and `facts()` a client without coordinates, so
the network term of an endpoint is exactly what `fleet_at` was told.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from random import Random
from typing import Any

from gslb.routing.fences import ResidencyRule
from gslb.routing.health import HealthMarks, Outcome
from gslb.routing.router import Decision, Refusal, Router
from gslb.routing.rules import RoutingRules
from gslb.routing.snapshot import EndpointView, Snapshot
from gslb.routing.view import FleetView
from gslb.types import UNKNOWN_PLACE, Endpoint, Facts, LoadSample, Place, Region

MODEL = "llama"
FRANKFURT = Place(country="DE", lat=50.11, lon=8.68, source="config")
VIRGINIA = Place(country="US", lat=38.95, lon=-77.45, source="config")
TOKYO = Place(country="JP", lat=35.68, lon=139.69, source="config")
MARKS = HealthMarks(kept_capacity=0.0, slow_start_s=0.0)
"""Each endpoint for itself: no capacity to mind, nothing that takes its time after a return."""


def region(
    name: str = "eu",
    place: Place = FRANKFURT,
    jurisdictions: Collection[str] = (),
    priority: int = 0,
) -> Region:
    """A region; without a word on the law none holds there."""
    return Region(name, place, frozenset(jurisdictions), priority=priority)


def endpoint(where: Region | None = None, number: int = 1, **members: Any) -> Endpoint:
    """Endpoint `<region>/<number>`, serving MODEL unless `models` says otherwise."""
    where = where or region()
    members.setdefault("models", frozenset({MODEL}))
    return Endpoint(f"{where.name}/{number}", f"http://{where.name}-{number}.invalid", where, **members)


def endpoints(where: Region, count: int, **members: Any) -> list[Endpoint]:
    """`count` endpoints of one region, numbered from 1."""
    return [endpoint(where, number, **members) for number in range(1, count + 1)]


def fleet(members: Iterable[Endpoint], *, is_well: bool = True, marks: HealthMarks = MARKS) -> FleetView:
    """A fleet view of these endpoints at second 0, their probes passed if `is_well`."""
    view = FleetView(marks)
    listed = list(members)
    view.configure(listed, marks)
    for member in listed if is_well else ():
        view.probe_passed(member.key, 0.0)
    return view


def fleet_at(rtts_ms: Mapping[str, float], per_region: int = 1, **members: Any) -> FleetView:
    """A well fleet with `per_region` endpoints in each region named, at the given round trips."""
    view = fleet(one for name in rtts_ms for one in endpoints(region(name), per_region, **members))
    for one in view.snapshot.endpoints:
        view.rtt_measured(one.endpoint.key, rtts_ms[one.endpoint.region.name])
    return view


def facts(**members: Any) -> Facts:
    """A request for MODEL from nowhere known, with a prompt that prefills in no time."""
    members.setdefault("model", MODEL)
    members.setdefault("place", UNKNOWN_PLACE)
    return Facts(**members)


def sample(
    at_s: float = 0.0, running: float | None = 0.0, waiting: float | None = 0.0, **members: Any
) -> LoadSample:
    """A load sample, idle unless told otherwise."""
    return LoadSample(at_s, running, waiting, **members)


def allow_all(_place: Place, _region: Region) -> None:
    """A residency rule that forbids nothing."""


def router(seed: int = 1, residency: ResidencyRule = allow_all, **rules: Any) -> Router:
    """A router at a placed edge with seeded dice."""
    rules.setdefault("edge_place", FRANKFURT)
    return Router(RoutingRules(**rules), residency, Random(seed))


def find(snapshot: Snapshot, key: str) -> EndpointView:
    """The endpoint of that key in `snapshot`."""
    return next(view for view in snapshot.endpoints if view.endpoint.key == key)


def keys(snapshot: Snapshot) -> list[str]:
    """All endpoint keys in order."""
    return [view.endpoint.key for view in snapshot.endpoints]


def occupy(view: FleetView, key: str, requests: int, pending_tokens: int = 0, at_s: float = 0.0) -> None:
    """Open tickets at `key`: requests that have their first token, unless `pending_tokens` (each) is given, which
    began to be prefilled `at_s`."""
    own = view.own_load(key)
    assert own is not None
    for _ in range(requests):
        own.open_ticket(pending_tokens, now_s=at_s)


def eject(view: FleetView, *ejected: str, now_s: float = 0.0) -> None:
    """Let requests fail at these endpoints until they are out."""
    for key in ejected:
        for _ in range(MARKS.passive_fall):
            view.outcome(key, Outcome.BROKEN, now_s, "connection refused")


def decided(choice: Decision | Refusal | None) -> Decision:
    """`choice`, which must be a decision."""
    assert isinstance(choice, Decision), choice
    return choice


def refused(choice: Decision | Refusal | None) -> Refusal:
    """`choice`, which must be a refusal."""
    assert isinstance(choice, Refusal), choice
    return choice


def chosen_key(choice: Decision | Refusal | None) -> str:
    """The key of the endpoint a decision chose."""
    return decided(choice).option.view.endpoint.key
