"""What each kind of fault does, seen from outside: on the requests, and on what the edges believe."""

from __future__ import annotations

import pytest

from gslb.routing.health import State
from gslb.sim.desk import Desk
from gslb.sim.result import RunResult
from gslb.sim.setting import Fault, Setting
from gslb.sim.world import World
from tests.sim.test_world import play, small


def states_at(setting: Setting, policy: str, at_s: float) -> dict[str, set[State]]:
    """Endpoint key -> the states that the edges see it in at `at_s`."""
    world = World(setting, policy, 1, lambda: 0.0)
    world.play(lambda share: share * setting.duration_s < at_s)
    states: dict[str, set[State]] = {}
    for edge in world.edges.values():
        assert isinstance(edge.chooser, Desk)
        for view in edge.chooser.fleet.snapshot.endpoints:
            states.setdefault(view.endpoint.key, set()).add(view.state)
    return states


def running_at(result: RunResult, region: str, second: int) -> int:
    return result.timeline[second].running[region]


def failed_share(result: RunResult, since_s: int, until_s: int) -> float:
    moments = result.timeline[since_s:until_s]
    return sum(moment.failed for moment in moments) / max(1, sum(moment.offered for moment in moments))


def test_a_lost_region_cuts_its_streams_and_the_others_take_over() -> None:
    setting = small(rate_per_s=25.0, duration_s=60.0, faults=(Fault("region_loss", "tokyo", 20.0, 40.0),))
    result = play(setting)
    assert running_at(result, "tokyo", 18) > 0
    assert running_at(result, "tokyo", 21) == 0
    assert running_at(result, "tokyo", 58) > 0
    assert result.timeline[20].failed > 0  # streams that had begun cannot go elsewhere
    assert failed_share(result, 22, 40) == 0.0  # a refused connection costs an attempt, not the request
    assert states_at(setting, "ttft", 30.0)["tokyo/1"] == {State.EJECTED}
    assert states_at(setting, "ttft", 59.0)["tokyo/1"] == {State.ADMITTING}


def test_a_region_that_comes_back_is_cold() -> None:
    world = World(small(faults=(Fault("region_loss", "tokyo", 5.0, 6.0),)), "ttft", 1, lambda: 0.0)
    world.play(lambda share: share < 0.29)
    assert world.sites["tokyo/1"].engine.running == 0
    assert not world.sites["tokyo/1"].is_gone or world.sites["tokyo/1"].engine.memory.held_tokens == 0


def test_a_brown_out_makes_answers_slower_and_ends() -> None:
    fault = Fault("brown_out", "virginia", 0.0, 100.0, factor=4.0)
    setting = small(rate_per_s=4.0, duration_s=60.0)
    well = play(setting, "nearest")
    slow = play(small(rate_per_s=4.0, duration_s=60.0, faults=(fault,)), "nearest")
    assert slow.by_home["virginia"].ttft.quantile(0.5) > 1.8 * well.by_home["virginia"].ttft.quantile(0.5)
    assert slow.by_home["frankfurt"].ttft.quantile(0.5) == well.by_home["frankfurt"].ttft.quantile(0.5)
    short = play(small(rate_per_s=4.0, duration_s=60.0, faults=(Fault("brown_out", "virginia", 0.0, 1.0, 4.0),)))
    assert short.by_home["virginia"].ttft.quantile(0.5) < 1.2 * well.by_home["virginia"].ttft.quantile(0.5)


def test_a_slow_node_is_one_endpoint_only() -> None:
    fault = Fault("slow_node", "virginia/1", 0.0, 100.0, factor=6.0)
    world = World(small(rate_per_s=6.0, faults=(fault,)), "round_robin", 1, lambda: 0.0)
    world.play(lambda _share: True)
    assert world.sites["virginia/1"].engine.slowness == 6.0
    assert world.sites["virginia/2"].engine.slowness == 1.0


def test_fc19_a_hung_engine_is_out_although_every_probe_passes() -> None:
    # It hangs for good at 10 s; first tokens that do not come are the only sign (or counters that stand still).
    setting = small(rate_per_s=25.0, duration_s=200.0, faults=(Fault("hung_engine", "virginia/1", 10.0, 1e9),))
    result = play(setting)
    assert states_at(setting, "ttft", 150.0)["virginia/1"] <= {State.EJECTED, State.PROBING}
    assert failed_share(result, 120, 200) < 0.05  # trials cost a minute each
    healthy = play(small(rate_per_s=25.0, duration_s=200.0))
    assert result.total.goodput > healthy.total.goodput - 0.08


def test_a_hung_engine_that_recovers_ends_what_it_had_begun() -> None:
    setting = small(rate_per_s=10.0, duration_s=60.0, faults=(Fault("hung_engine", "virginia/1", 10.0, 14.0),))
    result = play(setting)
    assert result.total.failed == 0


def test_streams_of_an_engine_that_hangs_are_cut_after_a_minute_of_silence() -> None:
    setting = small(rate_per_s=10.0, duration_s=80.0, faults=(Fault("hung_engine", "virginia/1", 10.0, 1e9),))
    result = play(setting, "nearest")
    assert sum(moment.failed for moment in result.timeline[:65]) == 0
    assert sum(moment.failed for moment in result.timeline[65:72]) > 0


def test_lost_scrapes_leave_the_fleet_serving() -> None:
    fault = Fault("scrape_loss", "virginia", 5.0, 1e9)
    world = World(small(rate_per_s=25.0, duration_s=40.0, faults=(fault,)), "ttft", 1, lambda: 0.0)
    world.play(lambda _share: True)
    result = world.result(0.0, True)
    assert result.total.failed == 0
    desk = world.edges["virginia"].chooser
    assert isinstance(desk, Desk)
    assert desk.fleet.load_error("virginia/1") is not None
    ages = {view.endpoint.key: 40.0 - view.at_s for view in desk.fleet.snapshot.endpoints}
    assert ages["virginia/1"] > 30.0
    assert ages["oregon/1"] < 3.0
    assert result.by_served["virginia"].completed > 0


def test_old_signals_are_as_old_as_the_setting_says() -> None:
    world = World(small(rate_per_s=5.0, duration_s=30.0, signal_age_s=7.0), "ttft", 1, lambda: 0.0)
    world.play(lambda _share: True)
    desk = world.edges["virginia"].chooser
    assert isinstance(desk, Desk)
    for view in desk.fleet.snapshot.endpoints:
        assert 7.0 <= 30.0 - view.at_s < 9.0


def test_wrong_health_does_not_take_out_what_requests_find_well() -> None:
    # FC-20: while requests succeed, failed probes make it suspect, not gone.
    fault = Fault("wrong_health", "virginia", 5.0, 1e9)
    setting = small(rate_per_s=25.0, duration_s=40.0, faults=(fault,))
    result = play(setting, "nearest")
    assert result.total.failed == 0
    assert result.by_served["virginia"].completed > 0


def test_a_spot_instance_with_notice_drains_before_it_goes() -> None:
    fault = Fault("spot_reclaim", "virginia/1", 40.0, 1e9, notice_s=30.0)
    with_notice = play(small(rate_per_s=15.0, duration_s=60.0, faults=(fault,)))
    without = play(
        small(rate_per_s=15.0, duration_s=60.0, faults=(Fault("spot_reclaim", "virginia/1", 40.0, 1e9),))
    )
    assert with_notice.timeline[40].failed < without.timeline[40].failed
    assert with_notice.total.failed < without.total.failed
    assert with_notice.total.shed == 0


@pytest.mark.parametrize("policy", ["skywalker", "oracle"])
def test_the_baselines_survive_a_lost_region_and_a_hung_engine(policy: str) -> None:
    faults = (Fault("region_loss", "tokyo", 20.0, 40.0), Fault("hung_engine", "virginia/1", 10.0, 1e9))
    result = play(small(rate_per_s=25.0, duration_s=60.0, faults=faults), policy)
    assert failed_share(result, 22, 60) < 0.02
    assert result.by_served["tokyo"].completed > 0
