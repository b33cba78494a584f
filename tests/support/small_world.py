"""A world that only counts, in place of the simulator: for what is built around it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from math import ceil
from pathlib import Path
from random import Random

from gslb.sim.parts import labelled
from gslb.sim.result import Moment, RunResult, Tally
from gslb.sim.setting import Setting


def run(
    setting: Setting, policy: str, seed: int, cpu_clock: Callable[[], float], on_progress: Callable[[float], bool]
) -> RunResult:
    """Every request is served where its edge is, in 100 ms (`nearest`: 300 ms), until `on_progress` says no."""
    began_s = cpu_clock()
    result = RunResult(
        scenario=setting.name, policy=labelled(policy, setting.without), seed=seed, simulated_s=0.0,
        total=Tally(), by_home={}, by_served={}, flows=Counter(), reasons=Counter({"home": 1}),
        timeline=[Moment(0)],
        busy_share={region.name: 0.5 for region in setting.regions}, cost=2.0, decisions=0, decision_s=0.0,
        wall_s=0.0, without=tuple(sorted(setting.without)),
        notes=[f"order {','.join(setting.rules.order)}"] if policy == "ordered" else [],
    )  # fmt: skip
    second = 0.0
    for ask in setting.offered(Random(seed)):
        if ask.at_s >= second:
            second = ceil(ask.at_s) or 1.0
            if not on_progress(ask.at_s / setting.duration_s):
                result.is_partial = True
                break
        result.simulated_s = ask.at_s
        for tally in (
            result.total,
            result.by_home.setdefault(ask.edge, Tally()),
            result.by_served.setdefault(ask.edge, Tally()),
        ):
            tally.offered += 1
            tally.completed += 1
            tally.good += 1
            tally.prompt_tokens += ask.prompt_tokens
            tally.ttft.add(300.0 if policy == "nearest" else 100.0)
        result.flows[ask.edge, ask.edge] += 1
        result.decisions += 1
    result.wall_s = cpu_clock() - began_s
    return result


def marked(
    setting: Setting, policy: str, seed: int, cpu_clock: Callable[[], float], on_progress: Callable[[float], bool]
) -> RunResult:
    """As `run`; from the third seed on it leaves a file where SMALL_WORLD_MARK says."""
    if seed >= 3:
        Path(os.environ["SMALL_WORLD_MARK"]).touch()
    return run(setting, policy, seed, cpu_clock, on_progress)


def broken(
    setting: Setting, policy: str, seed: int, cpu_clock: Callable[[], float], on_progress: Callable[[float], bool]
) -> RunResult:
    """A simulator with an error in it."""
    raise ZeroDivisionError("the world ended")
