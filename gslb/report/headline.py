"""The page's first sentences: which policy came first, by how much, and whether that could be chance."""

from __future__ import annotations

from gslb.report.figures import PolicyRuns, World, difference
from gslb.report.wording import count, listed, percent, plural, points
from gslb.sim.statistics import Summary

OURS = "ttft"
"""The policy that gslb routes by unless told otherwise: where it is not first, the page says by how much."""


def headline(world: World) -> list[str]:
    """Sentences for one world, the verdict first."""
    ranked = [runs for runs in world.contenders if runs.goodput is not None]
    if not ranked:
        return ["No request came to an end: there is nothing to compare.", *_caveats(world)]
    best = ranked[0]
    whole = [runs for runs in ranked if not runs.is_partial] or ranked
    sentences = [_verdict(whole), *_ours(ranked), *_bound(world, best), *_worst_home(best)]
    return [*sentences, *_caveats(world)]


def _verdict(ranked: list[PolicyRuns]) -> str:
    best = ranked[0]
    share = _within_budget(best)
    if len(ranked) == 1:
        return f"{best.policy}: {share}. No other policy finished a run to compare it with."
    second = ranked[1]
    compared = difference(best, second)
    if compared is None or best.is_partial:
        return f"{best.policy} is ahead: {share}, {second.policy} {_mean(second)}. No seed was finished by both."
    gap, seeds = compared
    if gap.margin is None:
        return (
            f"{best.policy} came first: {share}, {points(gap.mean, sign=False)} points more than {second.policy}. "
            "One seed cannot tell whether that is chance."
        )
    if gap.is_sure and gap.mean > 0:
        return (
            f"{best.policy} won: {share}, {points(gap.mean, sign=False)} points more than the next best, "
            f"{second.policy} ({_confidence(gap, seeds)})."
        )
    level = [runs.policy for runs in ranked if runs is best or _is_level(best, runs)]
    return (
        f"No clear winner among {listed(level)}: {best.policy} is first, {share}, but its lead over "
        f"{second.policy} is {points(gap.mean, sign=False)} points ({_confidence(gap, seeds)}). "
        "More seeds may tell them apart."
    )


def _ours(ranked: list[PolicyRuns]) -> list[str]:
    ours = next((runs for runs in ranked if runs.policy == OURS), None)
    compared = difference(ours, ranked[0]) if ours is not None else None
    if ours is None or ours is ranked[0] or compared is None:
        return []
    gap, seeds = compared
    confidence = f" ({_confidence(gap, seeds)})" if gap.margin is not None else ""
    return [f"{OURS} itself reached {_mean(ours)}: {points(gap.mean)} points{confidence}."]


def _bound(world: World, best: PolicyRuns) -> list[str]:
    bounds = [runs for runs in world.policies if runs.is_bound and runs.goodput is not None]
    if not bounds or best.goodput is None:
        return []
    bound = bounds[0]
    assert bound.goodput is not None
    of_it = (
        f": {best.policy} got {percent(best.goodput.mean / bound.goodput.mean)} of that"
        if bound.goodput.mean
        else ""
    )
    return [f"The {bound.policy}, which sees the true state without delay, reached {_mean(bound)}{of_it}."]


def _worst_home(best: PolicyRuns) -> list[str]:
    shares = {name: best.goodput_at(name) for name in best.by_home}
    known = {name: share.mean for name, share in shares.items() if share is not None}
    if len(known) < 2 or best.goodput is None:
        return []
    worst = min(known, key=lambda name: known[name])
    if known[worst] >= best.goodput.mean - 0.0005:
        return []
    return [f"Worst off under {best.policy} are clients at home in {worst}: {percent(known[worst], 2)}."]


def _caveats(world: World) -> list[str]:
    sentences = []
    setting = world.setting
    if setting is not None and setting.warm_up_s:
        sentences.append(
            f"The first {setting.warm_up_s:g} s of each run are not counted; drawings over time show them."
        )
    if setting is not None and setting.synthetic_geography:
        sentences.append(
            "Synthetic geography: the trace does not say where its requests came from; places were made up."
        )
    partial = [runs for runs in world.policies if runs.is_partial]
    left_out = sum(runs.left_out for runs in world.policies)
    if partial:
        sentences.append(
            f"Interrupted: {listed([runs.policy for runs in partial])} finished no run; the figures cover the "
            "part that was done and are marked partial."
        )
    if left_out:
        were = "was" if left_out == 1 else "were"
        sentences.append(f"Interrupted: {plural(left_out, 'unfinished run')} {were} left out.")
    unfinished = sum(runs.total.unfinished for runs in world.policies)
    if unfinished:
        total = sum(runs.total.offered for runs in world.policies)
        sentences.append(
            f"{count(unfinished)} of {count(total)} requests were still under way at the end: not judged."
        )
    return sentences


def _within_budget(runs: PolicyRuns) -> str:
    return f"{_mean(runs)} of the requests got their first token within the budget"


def _mean(runs: PolicyRuns) -> str:
    return percent(runs.goodput.mean if runs.goodput else None, 2)


def _confidence(gap: Summary, seeds: int) -> str:
    assert gap.low is not None
    assert gap.high is not None
    return f"95 % interval {points(gap.low)} to {points(gap.high)}, {seeds} equal seeds"


def _is_level(best: PolicyRuns, other: PolicyRuns) -> bool:
    compared = difference(best, other)
    return compared is not None and not compared[0].is_sure
