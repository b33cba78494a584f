"""What one routing decision costs: `python -m benchmarks.decision [--endpoints N ...] [--json]`.

A client near Frankfurt asks an edge that stands beside it for a model that every endpoint serves. The smallest
CPU time of several rounds is reported, in microseconds of one decision: what the code needs undisturbed.

- `idle`: nobody is under way anywhere; the nearest region gets it.
- `busy`: half of each region's slots are taken, with prompts still to be prefilled.
- `spill`: the nearest region is full, so gates are asked and the next one is found.
- `full`: no slot is free anywhere; every endpoint must be looked at.
- `refused`: nobody serves the model.
- `first`: as `idle`, but the first decision for this kind of client since the fleet changed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from random import Random
from time import process_time
from timeit import Timer

from gslb.routing.health import HealthMarks
from gslb.routing.router import Router
from gslb.routing.rules import RoutingRules
from gslb.routing.view import FleetView
from gslb.types import Endpoint, Facts, LoadSample, Place, Region

SLOTS = 64
MODEL = "llama"
CLIENT = Place(country="DE", lat=50.1, lon=8.7)
ROUNDS = 7
ROUND_S = 0.05
NOW_S = 1.0

CITIES = {
    "Frankfurt": ("DE", 50.1, 8.7), "Ashburn": ("US", 39.0, -77.5), "Singapore": ("SG", 1.3, 103.8),
    "London": ("GB", 51.5, -0.1), "Tokyo": ("JP", 35.7, 139.7), "Portland": ("US", 45.5, -122.7),
    "Sydney": ("AU", -33.9, 151.2), "Mumbai": ("IN", 19.1, 72.9), "Paris": ("FR", 48.9, 2.4),
    "Stockholm": ("SE", 59.3, 18.1), "Dublin": ("IE", 53.3, -6.3), "Montreal": ("CA", 45.5, -73.6),
    "Columbus": ("US", 40.0, -83.0), "San Jose": ("US", 37.3, -121.9), "Seoul": ("KR", 37.6, 127.0),
    "Osaka": ("JP", 34.7, 135.5), "Zurich": ("CH", 47.4, 8.5), "Milan": ("IT", 45.5, 9.2),
    "Warsaw": ("PL", 52.2, 21.0), "Sao Paulo": ("BR", -23.6, -46.6),
}  # fmt: skip


def regions_for(endpoints: int) -> int:
    """Three regions for twelve endpoints, all twenty for a thousand."""
    return min(len(CITIES), max(1, endpoints // 4))


def build_fleet(endpoints: int) -> FleetView:
    """A well fleet, evenly spread over regions, each endpoint scraped and idle."""
    count = regions_for(endpoints)
    regions = [
        Region(name, Place(country=country, lat=lat, lon=lon), frozenset({country}))
        for name, (country, lat, lon) in list(CITIES.items())[:count]
    ]
    members = [
        Endpoint(f"{where.name}/{i}", f"http://e{i}.invalid", where, frozenset({MODEL}), capacity=SLOTS)
        for i in range(endpoints)
        for where in (regions[i % count],)
    ]
    marks = HealthMarks()
    view = FleetView(marks)
    view.configure(members, marks)
    for member in members:
        view.probe_passed(member.key, 0.0)
        view.load_sampled(member.key, LoadSample(0.0, running=0.0, waiting=0.0, kv_usage=0.1))
    return view


def occupy(view: FleetView, region: str | None, share: float, pending_share: float = 0.0) -> None:
    """Take `share` of the slots of `region` (None: of all), `pending_share` of them before the first token."""
    dice = Random(1)
    for one in view.snapshot.endpoints:
        if region is None or one.endpoint.region.name == region:
            for _ in range(round(share * SLOTS)):
                ticket = one.own.open_ticket(dice.randrange(100, 2000))
                assert ticket is not None  # without a capacity there is always a place
                if dice.random() >= pending_share:
                    ticket.first_token(0.0)


def us_per_call(act: Callable[[], object]) -> float:
    """The least CPU time of one call over several rounds, in microseconds."""
    timer = Timer(act, timer=process_time)
    timer.timeit(1)
    once_s = max(timer.timeit(1), 1e-6)
    number = max(1, int(ROUND_S / once_s))
    return min(timer.repeat(ROUNDS, number)) / number * 1e6


def measure(endpoints: int) -> dict[str, float]:
    """Microseconds per decision by situation."""

    def router() -> Router:
        return Router(RoutingRules(), lambda _place, _region: None, Random(1))

    def asking(view: FleetView, model: str = MODEL) -> float:
        facts = Facts(model, CLIENT, prompt_tokens=800)
        routing = router()
        return us_per_call(lambda: routing.route(facts, view.snapshot, NOW_S))

    idle, busy, spill, full = (build_fleet(endpoints) for _ in range(4))
    occupy(busy, None, 0.5, pending_share=0.05)
    occupy(spill, None, 0.5)
    occupy(spill, "Frankfurt", 0.5)
    occupy(full, None, 1.0)
    found = {"idle": asking(idle), "busy": asking(busy), "spill": asking(spill), "full": asking(full)}
    found["refused"] = asking(idle, "no-such-model")
    facts = Facts(MODEL, CLIENT, prompt_tokens=800)
    found["first"] = us_per_call(lambda: router().route(facts, idle.snapshot, NOW_S))
    return {situation: round(us, 1) for situation, us in found.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decision", description="Cost of one decision.")
    parser.add_argument("--endpoints", type=int, nargs="+", default=[12, 1000], metavar="N", help="fleet sizes")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    asked = parser.parse_args()
    if min(asked.endpoints) < 1:
        parser.error("--endpoints must be at least 1")
    results = {count: measure(count) for count in asked.endpoints}
    if asked.json:
        rows = [
            {"endpoints": count, "regions": regions_for(count), "us_per_decision": found}
            for count, found in results.items()
        ]
        print(json.dumps(rows, indent=2))
        return
    for count, found in results.items():
        print(f"{count} endpoints in {regions_for(count)} regions, us per decision:")
        for situation, us in found.items():
            print(f"  {situation:8} {us:9.1f}")


if __name__ == "__main__":
    main()
