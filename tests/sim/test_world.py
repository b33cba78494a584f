"""Laws of a whole world under every policy: all that is offered ends, nothing leaks, dice decide alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from gslb.routing.policies import POLICIES
from gslb.sim.desk import Desk
from gslb.sim.faults import UnknownTarget
from gslb.sim.result import RunResult
from gslb.sim.setting import Ask, Fault, Setting
from gslb.sim.world import World, run
from tests.sim.worlds import five_regions

EVERY = (*POLICIES, "skywalker", "oracle")
TROUBLE = (
    Fault("region_loss", "tokyo", 5.0, 12.0),
    Fault("hung_engine", "virginia/1", 4.0, 14.0),
    Fault("brown_out", "oregon", 6.0, 15.0, factor=3.0),
)


def small(rate_per_s: float = 30.0, duration_s: float = 20.0, **members: Any) -> Setting:
    """Five regions of two endpoints with sixteen slots each."""
    return five_regions(rate_per_s, duration_s, per_region=2, slots=16, **members)


def play(setting: Setting, policy: str = "ttft", seed: int = 1) -> RunResult:
    return run(setting, policy, seed, lambda: 0.0, lambda _share: True)


def quiet_end(setting: Setting, until_s: float) -> Setting:
    """The same world, but nobody asks after `until_s`."""

    def offered(dice: Random) -> Iterator[Ask]:
        for ask in setting.offered(dice):
            if ask.at_s >= until_s:
                return
            yield ask

    return replace(setting, offered=offered)


@pytest.mark.parametrize("policy", EVERY)
def test_everything_offered_ends_somewhere(policy: str) -> None:
    result = play(small(rate_per_s=60.0, warm_up_s=3.0, faults=TROUBLE), policy)
    total = result.total
    assert total.offered > 900
    assert total.offered == total.completed + total.shed + total.failed + total.overdue + total.unfinished
    assert min(total.completed, total.shed + 1, total.failed + 1, total.unfinished + 1) > 0
    assert total.good <= total.completed
    assert total.ttft.count == total.end_to_end.count == total.completed
    assert sum(tally.offered for tally in result.by_home.values()) == total.offered
    assert sum(tally.completed for tally in result.by_home.values()) == total.completed
    assert sum(tally.completed for tally in result.by_served.values()) == total.completed
    assert sum(result.flows.values()) == total.completed
    assert sum(count for (home, served), count in result.flows.items() if home != served) == total.spilled
    assert len(result.timeline) == 20
    assert [moment.at_s for moment in result.timeline] == list(range(20))
    assert all(0.0 <= share <= 1.0 for share in result.busy_share.values())


@pytest.mark.parametrize("policy", EVERY)
def test_when_nobody_asks_any_more_nothing_is_left(policy: str) -> None:
    setting = quiet_end(small(rate_per_s=20.0, duration_s=120.0, faults=TROUBLE), 20.0)
    world = World(setting, policy, 1, lambda: 0.0)
    assert world.play(lambda _share: True)
    result = world.result(0.0, True)
    assert result.total.unfinished == 0
    assert sum(moment.offered for moment in result.timeline) == result.total.offered
    assert sum(moment.completed for moment in result.timeline) == result.total.completed
    for edge in world.edges.values():
        assert edge.chooser.held == 0
        if isinstance(edge.chooser, Desk):
            for view in edge.chooser.fleet.snapshot.endpoints:
                assert (view.own.requests, view.own.pending_tokens) == (0, 0)
    for site in world.sites.values():
        engine = site.engine
        assert (engine.running, engine.waiting, engine.memory.held_tokens) == (0, 0, 0)


@pytest.mark.parametrize("policy", ["ttft", "round_robin", "skywalker", "oracle"])
def test_the_same_seed_gives_the_same_result(policy: str) -> None:
    setting = small(rate_per_s=60.0, faults=TROUBLE)
    first, second, other = play(setting, policy), play(setting, policy), play(setting, policy, seed=2)
    assert first == second
    assert first.total.offered != other.total.offered


def test_all_policies_meet_the_same_requests() -> None:
    offered = {play(small(), policy).total.offered for policy in EVERY}
    assert len(offered) == 1


def test_what_comes_in_the_warm_up_is_served_but_not_counted() -> None:
    cold, warm = play(small()), play(small(warm_up_s=10.0))
    assert 0.4 * cold.total.offered < warm.total.offered < 0.6 * cold.total.offered
    assert sum(moment.completed for moment in warm.timeline) == sum(m.completed for m in cold.timeline)


def test_a_run_can_be_ended_and_tells_what_it_has() -> None:
    shares: list[float] = []

    def until_half(share: float) -> bool:
        shares.append(share)
        return share < 0.5

    result = run(small(), "ttft", 1, lambda: 0.0, until_half)
    assert result.is_partial
    assert result.simulated_s == 10.0
    assert shares == [pytest.approx(n / 20) for n in range(1, 11)]
    assert result.total.completed > 0


def test_money_is_price_times_hours_of_the_whole_fleet() -> None:
    setting = small(duration_s=36.0, rate_per_s=5.0)
    priced = replace(setting, endpoints=tuple(replace(one, price_per_hour=20.0) for one in setting.endpoints))
    assert play(priced).cost == pytest.approx(10 * 20.0 * 0.01)
    assert play(setting).cost == 0.0


def test_decisions_are_timed_by_the_clock_handed_in() -> None:
    ticks = iter(range(10**9))
    result = run(small(), "ttft", 1, lambda: float(next(ticks)), lambda _share: True)
    assert result.decisions >= result.total.offered - 10
    assert result.decision_s == result.decisions


def test_an_idle_far_answer_takes_the_round_trips_and_the_prefill() -> None:
    setting = small(rate_per_s=0.5, duration_s=60.0, jitter=0.0)
    result = play(setting)
    # Clients stand at their edge (the prior's base, twice half a trip), the region in the edge's city.
    truth = next(iter(setting.engines.values())).profile
    least_ms = setting.rtt_ms(setting.edges[0].place, setting.edges[0].place) + 1.0 + truth.prefill_step_ms
    first = result.total.ttft.quantile(0.0)
    assert first is not None
    assert least_ms < first < least_ms + 40.0


def test_a_policy_or_a_fault_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(UnknownTarget, match="atlantis"):
        play(small(faults=(Fault("region_loss", "atlantis", 1.0, 2.0),)))
    with pytest.raises(ValueError, match="known: region_loss"):
        play(small(faults=(Fault("meteor", "tokyo", 1.0, 2.0),)))


def test_a_prompt_longer_than_the_memory_fails_and_is_not_tried_elsewhere() -> None:
    setting = small(rate_per_s=1.0)
    most_tokens = max(spec.kv_tokens for spec in setting.engines.values())

    def offered(_dice: Random) -> Iterator[Ask]:
        yield Ask(1.0, setting.edges[0].place, setting.edges[0].name, most_tokens - 9, 10, 1e6)

    result = play(replace(setting, offered=offered))
    assert (result.total.failed, result.total.attempts) == (1, 1)


def test_what_is_kept_does_not_grow_with_the_run() -> None:
    def kept(duration_s: float) -> int:
        world = World(small(rate_per_s=20.0, duration_s=duration_s, jitter=0.2), "ttft", 1, lambda: 0.0)
        world.play(lambda _share: True)
        edges = world.edges.values()
        return len(world._agenda.heap) + sum(len(edge._silent) + len(edge._late) for edge in edges)

    assert kept(120.0) < 1.5 * kept(30.0)


def test_who_waits_in_vain_at_the_end_has_missed_its_budget() -> None:
    """Else a policy that lets everybody wait would look good in a run that ends soon enough."""
    setting = small(200.0, duration_s=10.0)
    result = play(replace(setting, rules=replace(setting.rules, holds=False)), "round_robin")
    total = result.total
    assert total.overdue > 100
    assert total.goodput < total.good / (total.offered - total.unfinished - total.overdue)
