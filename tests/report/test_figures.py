"""Results grouped and merged as the page shows them."""

from __future__ import annotations

from math import isclose

from gslb.report.figures import difference, worlds
from tests.report.built import comparison, run, setting


def test_runs_are_grouped_by_scenario_load_and_policy() -> None:
    a, b = setting("a"), setting("b")
    results = [run(world=b), run(world=a, load=0.9), run(world=a, load=0.7), run("nearest", world=a, load=0.7)]
    found = worlds(results, [a, b])
    assert [(world.scenario, world.load) for world in found] == [("b", None), ("a", 0.7), ("a", 0.9)]
    assert {runs.policy for runs in found[1].policies} == {"ttft", "nearest"}
    assert found[1].setting is a
    assert worlds([], []) == []


def test_counts_are_merged_over_seeds_and_goodput_is_their_mean() -> None:
    results = [run(seed=seed) for seed in (1, 2, 3)]
    ((runs,),) = [world.policies for world in worlds(results, [])]
    assert runs.total.offered == sum(result.total.offered for result in results)
    assert sum(tally.offered for tally in runs.by_home.values()) == runs.total.offered
    assert runs.flows.total() == runs.total.completed
    assert runs.goodput is not None
    assert isclose(runs.goodput.mean, sum(result.total.goodput for result in results) / 3)


def test_merging_leaves_the_results_alone() -> None:
    results = [run(seed=seed) for seed in (1, 2)]
    before = [result.total.ttft.count for result in results]
    for world in worlds(results, []):
        assert world.policies[0].total.ttft.count == sum(before)
        assert world.policies[0].by_home
    assert [result.total.ttft.count for result in results] == before


def test_partial_runs_count_only_where_there_is_nothing_better() -> None:
    results = [run(seed=1), run(seed=2, is_partial=True), run("nearest", seed=1, is_partial=True)]
    found = {runs.policy: runs for runs in worlds(results, [])[0].policies}
    assert [result.seed for result in found["ttft"].runs] == [1]
    assert found["ttft"].left_out == 1
    assert not found["ttft"].is_partial
    assert found["nearest"].is_partial
    assert difference(found["ttft"], found["nearest"]) is None


def test_a_difference_is_taken_seed_by_seed() -> None:
    results = [run(seed=seed) for seed in (1, 2, 3)] + [run("nearest", seed, skill=0.7) for seed in (2, 3, 4)]
    found = {runs.policy: runs for runs in worlds(results, [])[0].policies}
    compared = difference(found["ttft"], found["nearest"])
    assert compared is not None
    gap, seeds = compared
    assert seeds == 2
    by_run = {(result.policy, result.seed): result.total.goodput for result in results}
    assert isclose(gap.mean, sum(by_run["ttft", s] - by_run["nearest", s] for s in (2, 3)) / 2)


def test_the_best_comes_first_and_a_bound_is_no_contender() -> None:
    (world,) = worlds(comparison(seeds=2, requests=300), [setting()])
    means = [runs.goodput.mean for runs in world.policies if runs.goodput]
    assert means == sorted(means, reverse=True)
    assert "oracle" in [runs.policy for runs in world.policies]
    assert "oracle" not in [runs.policy for runs in world.contenders]


def test_regions_stand_in_the_settings_order_and_strangers_after_them() -> None:
    world = setting(regions=3)
    result = run(world=world)
    result.flows["", "elsewhere"] = 1
    (found,) = worlds([result], [world])
    assert found.regions == [*(region.name for region in world.regions), "", "elsewhere"]
