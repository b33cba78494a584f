"""Settings for tests and benchmarks: five regions of eight endpoints and smaller ones, with synthetic chat."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

from gslb.geo.place import parse_location
from gslb.geo.rtt_prior import rtt_prior_ms
from gslb.routing.profiles import PROFILES
from gslb.sim.setting import Ask, EdgeSpec, EngineSpec, Setting
from gslb.types import Endpoint, Region

FIVE = {
    "virginia": "aws:us-east-1",
    "oregon": "aws:us-west-2",
    "frankfurt": "aws:eu-central-1",
    "mumbai": "aws:ap-south-1",
    "tokyo": "aws:ap-northeast-1",
}


def five_regions(
    rate_per_s: float,
    duration_s: float = 60.0,
    per_region: int = 8,
    profile: str = "h100-70b-tp8",
    slots: int = 64,
    shares: tuple[float, ...] = (0.3, 0.2, 0.25, 0.1, 0.15),
    **members: Any,
) -> Setting:
    """A chat fleet: `rate_per_s` requests arrive at its regions by `shares`, each at the edge of its region."""
    regions = tuple(Region(name, parse_location(text)) for name, text in FIVE.items())
    truth = PROFILES[profile]
    endpoints = tuple(
        Endpoint(f"{region.name}/{n}", f"http://{region.name}-{n}.invalid", region, frozenset({"model"}),
                 prefill_ms_per_token=truth.prefill_ms, step_ms=truth.step_ms)
        for region in regions
        for n in range(1, per_region + 1)
    )  # fmt: skip
    engines = {endpoint.key: EngineSpec(endpoint.key, truth, slots=slots) for endpoint in endpoints}
    edges = tuple(EdgeSpec(region.name, region.place) for region in regions)

    def offered(dice: Random) -> Iterator[Ask]:
        at_s = 0.0
        places = [edge.place for edge in edges]
        while True:
            at_s += dice.expovariate(rate_per_s)
            i = dice.choices(range(len(edges)), shares)[0]
            prompt = max(1, min(8000, int(dice.lognormvariate(6.8, 0.7))))
            output = max(1, min(1000, int(dice.lognormvariate(5.0, 0.8))))
            yield Ask(at_s, places[i], edges[i].name, prompt, output, 1000.0)

    setting = Setting(
        name="five regions", regions=regions, endpoints=endpoints, engines=engines, edges=edges, offered=offered,
        rtt_ms=rtt_prior_ms, duration_s=duration_s,
    )  # fmt: skip
    return replace(setting, **members)
