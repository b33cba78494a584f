"""Results summed up over seeds: one JSON document, or tables to read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gslb.sim.result import RunResult, Tally, Times
from gslb.sim.setting import Setting
from gslb.sim.statistics import summarise

Document = dict[str, Any]

_QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))


def as_document(
    setting: Setting, results: Sequence[RunResult], runs_wanted: int, load: float | None = None
) -> Document:
    """Everything there is to say, for a machine. Counts are sums over seeds, shares means over all requests,
    `goodput` and `cost` means over seeds (`goodput_ci95`: half the width of the 95 % interval, null for one seed).
    Times are in ms. A policy is named with the parts of gslb that it ran `without`. `is_partial` tells that fewer
    than `runs_wanted` runs were finished; `load` is the share of capacity that was asked, where that is what was
    set."""
    by_policy: dict[str, list[RunResult]] = {}
    for result in results:
        by_policy.setdefault(result.policy, []).append(result)
    return {
        "scenario": setting.name,
        "seeds": sorted({result.seed for result in results}),
        "simulated_s": setting.duration_s,
        "warm_up_s": setting.warm_up_s,
        "synthetic_geography": setting.synthetic_geography,
        "load": load,
        "runs": len(results),
        "runs_wanted": runs_wanted,
        "is_partial": len(results) < runs_wanted or any(result.is_partial for result in results),
        "policies": {policy: _policy(setting, runs) for policy, runs in by_policy.items()},
    }


def _policy(setting: Setting, runs: Sequence[RunResult]) -> Document:
    total = _merged(run.total for run in runs)
    goodput = summarise([run.total.goodput for run in runs])
    busy = _mean_by_name([run.busy_share for run in runs])
    decisions = sum(run.decisions for run in runs)
    wall_s = sum(run.wall_s for run in runs)
    return {
        "without": list(runs[0].without),
        "runs": len(runs),
        "is_partial": any(run.is_partial for run in runs),
        **_counts(total),
        "goodput": goodput.mean,
        "goodput_ci95": goodput.margin,
        "goodput_by_seed": {str(run.seed): run.total.goodput for run in runs},
        **_experience(total),
        "busy_share": _busy(setting, busy),
        "cost": sum(run.cost for run in runs) / len(runs),
        "decisions": decisions,
        "decision_us": _share(sum(run.decision_s for run in runs) * 1e6, decisions),
        "requests_simulated_per_s": _share(total.offered, wall_s),
        "reasons": dict(sum((run.reasons for run in runs), Counter[str]()).most_common()),
        "by_region": {region.name: _region(region.name, runs, busy) for region in setting.regions},
        "flows": _flows(runs),
        "notes": list(dict.fromkeys(note for run in runs for note in run.notes)),
    }


def _region(name: str, runs: Sequence[RunResult], busy: Mapping[str, float]) -> Document:
    """`home`: what became of the requests of clients nearest to it; `served`: of those it answered."""
    home = _merged(run.by_home[name] for run in runs if name in run.by_home)
    served = _merged(run.by_served[name] for run in runs if name in run.by_served)
    return {
        "home": {**_counts(home), "goodput": home.goodput, **_experience(home)},
        "served": {**_counts(served), **_experience(served)},
        "busy_share": busy.get(name),
    }


def _counts(tally: Tally) -> Document:
    names = ("offered", "completed", "good", "shed", "failed", "overdue", "unfinished", "held", "attempts")
    return {name: getattr(tally, name) for name in names}


def _experience(tally: Tally) -> Document:
    error = {name: tally.prediction_error.quantile(share) for name, share in _QUANTILES}
    return {
        "ttft_ms": _quantiles(tally.ttft),
        "end_to_end_ms": _quantiles(tally.end_to_end),
        "held_ms": _quantiles(tally.held_time),
        "spill_share": _share(tally.spilled, tally.completed),
        "cross_region_share": _share(tally.crossed, tally.completed),
        "prefix_hit_rate": _share(tally.cached_tokens, tally.prompt_tokens),
        "prediction_error": {name: None if value is None else value / 1000 for name, value in error.items()},
    }


def _quantiles(times: Times) -> Document:
    return {name: times.quantile(share) for name, share in _QUANTILES}


def _flows(runs: Sequence[RunResult]) -> list[Document]:
    """Completed requests by (nearest region, region that answered), the most first."""
    flows = sum((run.flows for run in runs), Counter[tuple[str, str]]())
    return [{"home": home, "served": served, "count": count} for (home, served), count in flows.most_common()]


def _merged(tallies: Any) -> Tally:
    total = Tally()
    for tally in tallies:
        total.merge(tally)
    return total


def _mean_by_name(maps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for each in maps for name in each)
    return {name: sum(each.get(name, 0.0) for each in maps) / len(maps) for name in names}


def _busy(setting: Setting, by_region: Mapping[str, float]) -> float | None:
    """The mean over endpoints."""
    shares = [by_region[e.region.name] for e in setting.endpoints if e.region.name in by_region]
    return _share(sum(shares), len(shares))


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
