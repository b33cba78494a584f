"""How quick the simulator is: `python -m benchmarks.simulator [--scenario NAME] [--policy A,B] [--requests N]`.

The scenario (`steady` unless told otherwise: five regions of eight endpoints at 0.7 of capacity) runs until about
N requests were offered. Reported per policy: simulated requests per second of one CPU, over the whole run and in
its quickest tenth of simulated seconds (what the code does undisturbed; on a busy machine the two lie far apart),
CPU microseconds of a decision, and the process's peak memory after the run, which must not grow with N.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
from dataclasses import replace
from statistics import median
from time import process_time

from gslb.cli_simulate import shipped_scenarios
from gslb.config.scenario import load_scenario
from gslb.sim.setting import Setting
from gslb.sim.world import World
from gslb.simulate.setting import rules_for, setting_of

_SAMPLE_S = 10
"""Simulated seconds that tell how many requests come in one."""


def build(scenario: str, policy: str, requests: int) -> Setting:
    """The scenario under a policy, as long as it takes."""
    checked = load_scenario(shipped_scenarios()[scenario], os.environ)
    setting = setting_of(checked)
    sample = World(setting, policy, 1, lambda: 0.0)
    seconds = 0

    def go_on(_share: float) -> bool:
        nonlocal seconds
        seconds += 1
        return seconds < _SAMPLE_S

    sample.play(go_on)
    per_s = sum(moment.offered for moment in sample.score.timeline) / seconds
    longer = checked.scenario.model_copy(update={"duration": max(20.0, round(requests / per_s))})
    return replace(setting_of(replace(checked, scenario=longer)), rules=rules_for(checked, policy))


def measure(setting: Setting, policy: str) -> dict[str, float]:
    """One run and what it took."""
    world = World(setting, policy, 1, process_time)
    marks = [process_time()]

    def note(_share: float) -> bool:
        marks.append(process_time())
        return True

    gc.collect()
    gc.disable()
    world.play(note)
    gc.enable()
    result = world.result(marks[-1] - marks[0], True)
    offered = [moment.offered for moment in result.timeline]
    # The first seconds fill an empty fleet.
    rates = sorted(
        count / max(marks[second + 1] - marks[second], 1e-9)
        for second, count in enumerate(offered)
        if count and second >= min(10, len(offered) // 2)
    )
    return {
        "requests": sum(offered),
        "requests_per_cpu_s": sum(offered) / result.wall_s,
        "median_second": median(rates),
        "quickest_tenth": rates[int(0.9 * len(rates))],
        "decision_us": 1e6 * result.decision_s / max(1, result.decisions),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulator", description="Speed of the simulator.")
    parser.add_argument("--scenario", default="steady", choices=sorted(shipped_scenarios()))
    parser.add_argument("--policy", default="ttft", metavar="A,B")
    parser.add_argument("--requests", type=int, default=50_000, metavar="N", help="about so many a policy")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    asked = parser.parse_args()
    found = {}
    for policy in asked.policy.split(","):
        found[policy] = measure(build(asked.scenario, policy, asked.requests), policy)
    if asked.json:
        print(json.dumps({"scenario": asked.scenario, "policies": found}, indent=2))
        return
    print(f"{asked.scenario}; simulated requests per second of one CPU")
    for policy, figures in found.items():
        print(
            f"  {policy:12} {figures['requests']:9.0f} requests: {figures['requests_per_cpu_s']:7.0f}/s "
            f"(quickest tenth {figures['quickest_tenth']:.0f}/s), a decision {figures['decision_us']:.0f} us, "
            f"peak {figures['peak_mb']:.0f} MB"
        )


if __name__ == "__main__":
    main()
