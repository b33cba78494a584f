"""The health machine beyond rows of failures: ratio, forward progress, capacity kept, slow start."""

from __future__ import annotations

import pytest

from gslb.routing.health import Cause, HealthMachine, HealthMarks, Outcome, State
from tests.routing.test_health import MARKS, break_requests, fail_probes, machine_in


def end(machine: HealthMachine, kinds: str, now_s: float = 0.0) -> None:
    """Requests that end one after the other: g(ood), e(rror), f(ull)."""
    outcomes = {"g": Outcome.SUCCESS, "e": Outcome.SERVER_ERROR, "f": Outcome.FULL}
    for kind in kinds:
        machine.observe(outcomes[kind], now_s, "status")


class TestSuccessRatio:
    def test_errors_that_never_come_three_in_a_row_eject_too(self) -> None:
        machine = machine_in("admitting")
        end(machine, "gee" * 6 + "g")
        assert machine.state is State.ADMITTING, "19 are too few"
        end(machine, "e")
        assert machine.state is State.EJECTED
        assert machine.reason == "requests: only 7 of the last 20 were served"

    def test_half_served_is_enough(self) -> None:
        machine = machine_in("admitting")
        end(machine, "ge" * 50)
        assert machine.state is State.ADMITTING

    def test_fc21_a_429_is_neutral_in_a_row_and_counted_in_the_ratio(self) -> None:
        machine = machine_in("admitting")
        end(machine, "g" * 9 + "ef" * 2)
        assert machine.failed_requests == 2, "neither counted nor forgiven"
        end(machine, "f" * 10)
        assert machine.state is State.EJECTED
        assert machine.reason == "requests: only 9 of the last 20 were served, 9 were answered 429"

    @pytest.mark.parametrize(
        ("kinds", "is_for_fullness"), [("gff" * 7, True), ("gee" * 7, False), ("gef" * 7, True)]
    )
    def test_the_fleet_is_asked_whether_it_is_only_full(self, kinds: str, is_for_fullness: bool) -> None:
        asked: list[bool] = []

        def may_eject(_now_s: float, is_full: bool) -> bool:
            asked.append(is_full)
            return False

        machine = HealthMachine(MARKS, may_eject=may_eject)
        machine.probe_passed(0.0)
        end(machine, kinds)
        assert asked
        assert set(asked) == {is_for_fullness}
        assert machine.state is (State.ADMITTING if is_for_fullness else State.SUSPECT)

    def test_what_is_long_ago_does_not_count(self) -> None:
        machine = machine_in("admitting")
        end(machine, "gee" * 6)
        end(machine, "gee" * 6, now_s=33.0)
        assert machine.state is State.ADMITTING

    def test_after_its_return_it_is_judged_anew(self) -> None:
        machine = machine_in("admitting")
        end(machine, "gee" * 7)
        machine.tick(10.0)
        end(machine, "g" + "eeg" * 6, now_s=10.0)
        assert machine.state is State.ADMITTING

    def test_switched_off(self) -> None:
        machine = HealthMachine(HealthMarks(min_success=0.0))
        end(machine, "eeg" * 100)
        assert machine.state is State.ADMITTING

    def test_a_trial_that_is_answered_429_is_over_but_no_second_offence(self) -> None:
        machine = machine_in("probing")
        machine.observe(Outcome.FULL, 10.0, "status 429")
        assert (machine.state, machine.until_s) == (State.EJECTED, 20.0)


class TestForwardProgress:
    def test_fc19_moving_counters_acquit_whom_standing_ones_condemned(self) -> None:
        machine = machine_in("ejected by progress")
        assert machine.moved(1.0)
        assert machine.state is State.ADMITTING

    def test_no_trial_while_samples_say_still(self) -> None:
        machine = machine_in("ejected by progress")
        for second in range(1, 40):
            assert not machine.stalled(float(second), "no token was made")
            assert not machine.tick(float(second))
        assert machine.tick(49.0), "nobody has said so for `stall_s`"
        assert machine.state is State.PROBING

    def test_an_idle_engine_gets_its_trial_when_the_time_is_served(self) -> None:
        machine = machine_in("ejected by progress")
        for second in range(1, 6):
            machine.stalled(float(second), "no token was made")
        machine.idled(6.0)
        assert not machine.tick(9.9)
        assert machine.tick(10.0)

    def test_traffic_ejects_and_then_the_counters_tell_why(self) -> None:
        machine = machine_in("ejected by traffic")
        assert machine.stalled(5.0, "2 requests run, but no token was made for 10 s")
        assert machine.reason.startswith("2 requests run")
        assert not machine.tick(14.9), "no trial request for a hung engine"
        assert machine.moved(15.0)

    def test_counters_alone_do_not_acquit_whom_traffic_condemned(self) -> None:
        machine = machine_in("ejected by traffic")
        assert not machine.moved(1.0)
        assert machine.state is State.EJECTED


class TestKeptForItsCapacity:
    def test_it_stays_suspect_as_long_as_it_would_have_been_out(self) -> None:
        machine = machine_in("kept")
        assert "still used" in machine.reason
        for second in range(2, 11):
            machine.probe_passed(float(second))
            machine.observe(Outcome.SUCCESS, float(second))
            assert machine.state is State.SUSPECT
        machine.probe_passed(11.0)
        assert machine.state.value == "admitting"

    def test_each_further_failure_starts_the_time_anew(self) -> None:
        machine = machine_in("kept")
        assert not machine.observe(Outcome.BROKEN, 8.0, "reset")
        machine.probe_passed(12.0)
        assert machine.state is State.SUSPECT

    def test_once_the_fleet_can_bear_it_it_goes(self) -> None:
        can_bear = False
        machine = HealthMachine(MARKS, may_eject=lambda _now_s, _is_for_fullness: can_bear)
        break_requests(machine, 4)
        assert machine.state is State.SUSPECT
        can_bear = True
        break_requests(machine, 1, 1.0)
        assert machine.state.value == "ejected"

    def test_the_fleet_is_asked_once_a_second(self) -> None:
        asked: list[float] = []

        def may_eject(now_s: float, _is_for_fullness: bool) -> bool:
            asked.append(now_s)
            return False

        machine = HealthMachine(MARKS, may_eject=may_eject)
        for tenth in range(30):
            machine.observe(Outcome.BROKEN, tenth / 10, "reset")
        assert asked == [0.2, 1.2, 2.2]

    def test_that_it_may_not_go_for_being_full_says_nothing_of_being_ill(self) -> None:
        machine = HealthMachine(MARKS, may_eject=lambda _now_s, is_for_fullness: not is_for_fullness)
        end(machine, "f" * 20 + "eee")
        assert machine.state is State.EJECTED

    def test_probes_ask_nobody(self) -> None:
        machine = machine_in("kept")
        fail_probes(machine, 3, 2.0)
        assert (machine.state, machine.cause) == (State.EJECTED, Cause.PROBES)


class TestSlowStart:
    def test_the_share_grows_from_a_tenth(self) -> None:
        machine = machine_in("probing")
        machine.observe(Outcome.SUCCESS, 100.0)
        shares = []
        for second in (100.0, 101.0, 115.0, 129.0, 130.0, 200.0):
            machine.tick(second)
            shares.append(machine.share)
        assert shares == [0.1, 0.1, 0.5, pytest.approx(29 / 30), 1.0, 1.0]

    @pytest.mark.parametrize("state", ["unknown", "suspect", "kept"])
    def test_who_was_never_out_has_all_of_it(self, state: str) -> None:
        machine = machine_in(state)
        machine.tick(11.0)
        machine.observe(Outcome.SUCCESS, 11.0)
        assert (machine.state, machine.share) == (State.ADMITTING, 1.0)

    @pytest.mark.parametrize(("is_new", "share"), [(True, 0.1), (False, 1.0)])
    def test_what_a_reload_has_added_starts_slowly(self, is_new: bool, share: float) -> None:
        machine = HealthMachine(MARKS, is_new=is_new)
        machine.probe_passed(5.0)
        assert machine.share == share
        machine.observe(Outcome.BROKEN, 40.0, "reset")
        machine.tick(40.0)
        machine.probe_passed(40.0)
        assert machine.share == 1.0, "once"

    def test_switched_off_also_while_it_runs(self) -> None:
        machine = machine_in("probing")
        machine.observe(Outcome.SUCCESS, 10.0)
        machine.set_marks(HealthMarks(slow_start_s=0.0))
        machine.tick(10.5)
        assert machine.share == 1.0
