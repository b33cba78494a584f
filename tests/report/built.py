"""Results made up by dice, as a simulator might tell them: what the page is tested with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random

from gslb.sim.result import Moment, RunResult, Tally
from gslb.sim.setting import Ask, EdgeSpec, Fault, Setting
from gslb.types import Endpoint, Place, Region

PLACES = {
    "us-east": (38.9, -77.5), "eu-central": (50.1, 8.7), "ap-northeast": (35.7, 139.7), "us-west": (45.8, -119.7),
    "ap-southeast": (1.35, 103.8), "eu-west": (53.3, -6.3), "eu-north": (59.3, 18.1), "sa-east": (-23.5, -46.6),
    "ap-south": (19.1, 72.9), "me-central": (25.2, 55.3), "af-south": (-33.9, 18.4), "ap-sydney": (-33.9, 151.2),
    "ca-central": (45.5, -73.6), "eu-south": (45.5, 9.2), "eu-west-2": (51.5, -0.1), "eu-west-3": (48.9, 2.4),
    "ap-seoul": (37.6, 127.0), "ap-osaka": (34.7, 135.5), "us-central": (41.3, -95.9), "il-central": (32.1, 34.8),
}  # fmt: skip
BUDGET_MS = 1000.0


def setting(
    name: str = "region-loss", regions: int = 5, faults: Sequence[Fault] = (), is_synthetic: bool = False
) -> Setting:
    """A world of the first `regions` of PLACES, one endpoint `REGION/0` each."""
    found = tuple(Region(n, Place(lat=lat, lon=lon)) for n, (lat, lon) in list(PLACES.items())[:regions])
    return Setting(
        name=name,
        regions=found,
        endpoints=tuple(Endpoint(f"{region.name}/0", "http://127.0.0.1:1", region) for region in found),
        engines={},
        edges=tuple(EdgeSpec(region.name, region.place) for region in found),
        offered=_nothing,
        rtt_ms=lambda here, there: 10.0,
        duration_s=300.0,
        faults=tuple(faults),
        synthetic_geography=is_synthetic,
    )


def run(
    policy: str = "ttft", seed: int = 1, *, world: Setting | None = None, requests: int = 600, skill: float = 0.9,
    load: float | None = None, is_partial: bool = False,
) -> RunResult:  # fmt: skip
    """One run in which about `skill` of the requests do well: faster, nearer, not refused."""
    world = world or setting()
    dice = Random(repr((policy, seed, load)))
    names = [region.name for region in world.regions]
    result = RunResult(
        scenario=world.name, policy=policy, seed=seed, simulated_s=world.duration_s / (2 if is_partial else 1),
        total=Tally(), by_home={name: Tally() for name in names}, by_served={name: Tally() for name in names},
        flows=Counter(), reasons=Counter(), busy_share={name: dice.uniform(0.4, 0.9) for name in names}, cost=42.5,
        timeline=[Moment(second) for second in range(int(world.duration_s))], decisions=requests,
        decision_s=requests * 25e-6, wall_s=requests / 12_000, load=load, is_partial=is_partial,
    )  # fmt: skip
    for index in range(requests):
        _ask(result, names, index * result.simulated_s / requests, skill * (1 - 0.02 * dice.random()), dice, world)
    for moment in result.timeline:
        moment.held_now = max(0, int(moment.offered * (1.1 - skill) * 3 + dice.gauss(0, 1)))
        moment.running = {name: int(8 + 6 * dice.random() + moment.offered) for name in names}
    return result


def comparison(world: Setting | None = None, seeds: int = 5, requests: int = 600) -> list[RunResult]:
    """All policies on equal seeds."""
    world = world or setting()
    skills = {
        "round_robin": 0.62, "ttft": 0.97, "near_room": 0.95, "nearest": 0.8, "ordered": 0.85, "hot_cold": 0.9,
        "gorgo": 0.91, "lmetric": 0.89, "least_load": 0.75, "skywalker": 0.88, "oracle": 0.98,
    }  # fmt: skip
    return [
        run(policy, seed, world=world, requests=requests, skill=skill)
        for policy, skill in skills.items()
        for seed in range(1, seeds + 1)
    ]


def _nothing(dice: Random) -> Iterator[Ask]:
    return iter(())


def _ask(result: RunResult, names: list[str], at_s: float, skill: float, dice: Random, world: Setting) -> None:
    home = names[min(int(dice.expovariate(2.5 / len(names))), len(names) - 1)]
    is_broken = any(f.at_s <= at_s < f.until_s and f.target.split("/")[0] == home for f in world.faults)
    served = home if dice.random() < skill and not is_broken else dice.choice(names)
    moment = result.timeline[min(int(at_s), len(result.timeline) - 1)]
    one = Tally(offered=1, prompt_tokens=900, output_tokens=200, attempts=1)
    moment.offered += 1
    bad = dice.random() * (0.6 if is_broken else 1.0)
    if bad < (1 - skill) * 0.4:
        _count(one, moment, "shed")
        result.reasons["saturated"] += 1
    elif bad < (1 - skill) * 0.5:
        _count(one, moment, "failed")
        result.reasons["failover"] += 1
    else:
        ttft_ms = dice.lognormvariate(5.4 + 1.2 * (1 - skill) + 0.4 * (served != home), 0.55)
        _count(one, moment, "completed")
        one.good, one.spilled, one.crossed = int(ttft_ms <= BUDGET_MS), int(served != home), int(served != home)
        moment.good += one.good
        one.cached_tokens = int(900 * dice.random() * 0.5)
        one.ttft.add(ttft_ms)
        one.end_to_end.add(ttft_ms + dice.lognormvariate(8.3, 0.4))
        one.prediction_error.add(1000 * abs(dice.gauss(0.02, 0.13)))
        if dice.random() > skill:
            one.held = 1
            one.held_time.add(dice.expovariate(1 / 80))
        result.flows[home, served] += 1
        result.reasons["nearest" if served == home else dice.choice(["load", "health", "faster"])] += 1
        result.by_served[served].merge(one)
    result.total.merge(one)
    result.by_home[home].merge(one)


def _count(one: Tally, moment: Moment, what: str) -> None:
    setattr(one, what, 1)
    setattr(moment, what, getattr(moment, what) + 1)
