"""What the page shows, taken from results: runs grouped by world and policy, their counts merged over seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from gslb.report.moments import Slot, slots
from gslb.sim.result import RunResult, Tally
from gslb.sim.setting import Setting
from gslb.sim.statistics import Summary, paired, share, summarise

Key = TypeVar("Key")

BOUNDS = frozenset({"oracle"})
"""Policies that see what no router can: a bound to measure by, not a contender."""


@dataclass(frozen=True)
class PolicyRuns:
    """All runs of one policy in one world. `runs` are the whole ones or, when none was finished, the partial ones;
    `left_out` counts partial runs beside whole ones."""

    policy: str
    runs: tuple[RunResult, ...]
    left_out: int

    @property
    def is_partial(self) -> bool:
        """True when no run of it was finished."""
        return self.runs[0].is_partial

    @property
    def is_bound(self) -> bool:
        """True for what sees the true state."""
        return self.policy in BOUNDS

    @cached_property
    def total(self) -> Tally:
        """All requests of all seeds."""
        return _merged(run.total for run in self.runs)

    @cached_property
    def by_home(self) -> dict[str, Tally]:
        """Home region -> its clients' requests, all seeds."""
        return _merged_by_name([run.by_home for run in self.runs])

    @cached_property
    def by_served(self) -> dict[str, Tally]:
        """Serving region -> the requests that it answered, all seeds."""
        return _merged_by_name([run.by_served for run in self.runs])

    @cached_property
    def flows(self) -> Counter[tuple[str, str]]:
        """(home, served) -> completed requests, all seeds."""
        return _added(run.flows for run in self.runs)

    @cached_property
    def reasons(self) -> Counter[str]:
        """Decision's reason -> requests, all seeds."""
        return _added(run.reasons for run in self.runs)

    @cached_property
    def goodput(self) -> Summary | None:
        """The share within the budget: over seeds, or Wilson's for a single one; None when no request ended."""
        return _goodput([run.total for run in self.runs])

    def goodput_at(self, home: str) -> Summary | None:
        """The same for the clients of one home region."""
        return _goodput([run.by_home[home] for run in self.runs if home in run.by_home])

    def mean(self, figure: Iterable[float]) -> float:
        """One figure's mean over the runs."""
        return sum(figure) / len(self.runs)

    def busy_share(self, region: str) -> float | None:
        """What a region's engines computed of what they could, mean over seeds; None when no run tells."""
        known = [run.busy_share[region] for run in self.runs if region in run.busy_share]
        return sum(known) / len(known) if known else None

    @property
    def decision_us(self) -> float | None:
        """CPU microseconds of one decision."""
        decisions = sum(run.decisions for run in self.runs)
        return 1e6 * sum(run.decision_s for run in self.runs) / decisions if decisions else None


@dataclass(frozen=True)
class World:
    """One scenario at one load, and every policy that ran in it: the best goodput first, bounds among them, and
    those that finished no run last.

    `setting` is None when the caller did not hand it in: no map, no faults."""

    scenario: str
    load: float | None
    setting: Setting | None
    policies: tuple[PolicyRuns, ...]

    @property
    def title(self) -> str:
        """The scenario's name, with its load when it has one."""
        return self.scenario if self.load is None else f"{self.scenario}, load {self.load:g}"

    @property
    def contenders(self) -> list[PolicyRuns]:
        """The policies that could be deployed, best first."""
        return [runs for runs in self.policies if not runs.is_bound]

    @cached_property
    def regions(self) -> list[str]:
        """Every region that anything is told of: in the setting's order, others after it."""
        names = dict.fromkeys(region.name for region in self.setting.regions) if self.setting else {}
        told = sorted({name for runs in self.policies for name in _region_names(runs)})
        return [*names, *(name for name in told if name not in names)]

    @cached_property
    def duration_s(self) -> float:
        """How long the longest run lasted, with what was still under way at its end."""
        runs = [run for policy in self.policies for run in policy.runs]
        return max(max(run.simulated_s, *(moment.at_s + 1 for moment in run.timeline), 0) for run in runs)

    @cached_property
    def timelines(self) -> dict[str, list[Slot]]:
        """Policy -> what happened when, over all its seeds."""
        return {runs.policy: slots(runs.runs, self.duration_s) for runs in self.policies}


def worlds(results: Sequence[RunResult], settings: Sequence[Setting]) -> list[World]:
    """Results by scenario (in the order given) and load (rising)."""
    by_name = {setting.name: setting for setting in reversed(settings)}
    order = {name: index for index, name in enumerate(dict.fromkeys(run.scenario for run in results))}
    groups: dict[tuple[str, float | None], list[RunResult]] = {}
    for run in results:
        groups.setdefault((run.scenario, run.load), []).append(run)
    keys = sorted(groups, key=lambda key: (order[key[0]], key[1] is not None, key[1] or 0.0))
    return [World(name, load, by_name.get(name), _policies(groups[name, load])) for name, load in keys]


def difference(ours: PolicyRuns, theirs: PolicyRuns) -> tuple[Summary, int] | None:
    """Our goodput less theirs over the seeds that both finished, and how many those are; None without any."""
    mine = {run.seed: run.total for run in ours.runs if not run.is_partial}
    other = {run.seed: run.total for run in theirs.runs if not run.is_partial}
    seeds = [seed for seed in mine if seed in other]
    if not seeds:
        return None
    return paired([mine[seed].goodput for seed in seeds], [other[seed].goodput for seed in seeds]), len(seeds)


def ratio(part: float, whole: float) -> float | None:
    """`part` of `whole`; None when there is no whole."""
    return part / whole if whole else None


def ended(tally: Tally) -> int:
    """Requests of which is known what became of them."""
    return tally.offered - tally.unfinished


def _policies(results: Sequence[RunResult]) -> tuple[PolicyRuns, ...]:
    by_policy: dict[str, list[RunResult]] = {}
    for run in results:
        by_policy.setdefault(run.policy, []).append(run)
    found = []
    for policy, runs in by_policy.items():
        whole = [run for run in runs if not run.is_partial]
        found.append(PolicyRuns(policy, tuple(whole or runs), len(runs) - len(whole) if whole else 0))
    return tuple(sorted(found, key=lambda runs: (runs.is_partial, -runs.goodput.mean if runs.goodput else 0.0)))


def _goodput(tallies: Sequence[Tally]) -> Summary | None:
    told = [tally for tally in tallies if ended(tally)]
    if not told:
        return None
    return share(told[0].good, ended(told[0])) if len(told) == 1 else summarise([tally.goodput for tally in told])


def _merged(tallies: Iterable[Tally]) -> Tally:
    total = Tally()
    for tally in tallies:
        total.merge(tally)
    return total


def _merged_by_name(parts: Sequence[Mapping[str, Tally]]) -> dict[str, Tally]:
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: _merged(part[name] for part in parts if name in part) for name in names}


def _added(parts: Iterable[Counter[Key]]) -> Counter[Key]:
    total: Counter[Key] = Counter()
    for part in parts:
        total.update(part)
    return total


def _region_names(runs: PolicyRuns) -> Iterable[str]:
    yield from runs.by_home
    yield from runs.by_served
    for home, served in runs.flows:
        yield from (home, served)
