"""The health machine: every state against every event, then the field's stories."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gslb.routing.health import SUSPICION, HealthMachine, HealthMarks, Outcome, State

MARKS = HealthMarks(fall=3, rise=2, passive_fall=3, ejection_s=10.0, window_s=6.0)


def fail_probes(machine: HealthMachine, times: int, now_s: float = 0.0) -> None:
    for _ in range(times):
        machine.probe_failed(now_s, "timed out")


def break_requests(machine: HealthMachine, times: int, now_s: float = 0.0) -> None:
    for _ in range(times):
        machine.observe(Outcome.BROKEN, now_s, "connection refused")


def machine_in(state: str) -> HealthMachine:
    """A machine just arrived in `state` at second 0."""
    machine = HealthMachine(MARKS, may_eject=lambda _now_s, _is_for_fullness: state != "kept")
    if state != "unknown":
        machine.probe_passed(0.0)
    match state:
        case "suspect":
            break_requests(machine, 1)
        case "ejected by traffic":
            break_requests(machine, 3)
        case "ejected by probes":
            fail_probes(machine, 3)
        case "ejected by progress":
            machine.stalled(0.0, "no token was made")
        case "kept":
            break_requests(machine, 3, 1.0)
        case "probing":
            break_requests(machine, 3)
            machine.tick(10.0)
    assert machine.state.value == state.split()[0].replace("kept", "suspect")
    return machine


def send(machine: HealthMachine, event: str) -> bool:
    """One event, at second 10; `*3` sends it three times and tells whether any changed the state."""
    name, _, times = event.partition(" x")
    changed = False
    for _ in range(int(times or 1)):
        match name:
            case "probe passed":
                changed |= machine.probe_passed(10.0)
            case "probe failed":
                changed |= machine.probe_failed(10.0, "timed out")
            case "tick":
                changed |= machine.tick(10.0)
            case "stalled":
                changed |= machine.stalled(10.0, "still")
            case "moved":
                changed |= machine.moved(10.0)
            case "neighbour":
                changed |= machine.suspect("its neighbour is ill")
            case _:
                changed |= machine.observe(Outcome(name), 10.0, "why")
    return changed


TABLE = {
    "unknown": {
        "probe passed": "admitting", "probe failed": "unknown", "probe failed x3": "ejected",
        "success": "admitting", "broken": "unknown", "broken x3": "ejected", "server_error": "unknown",
        "server_error x3": "ejected", "neutral x9": "unknown", "full x9": "unknown", "tick": "unknown",
        "stalled": "ejected", "moved": "unknown", "neighbour": "unknown",
    },
    "admitting": {
        "probe passed": "admitting", "probe failed": "admitting", "probe failed x3": "ejected",
        "success": "admitting", "broken": "suspect", "broken x3": "ejected", "server_error": "admitting",
        "server_error x3": "ejected", "neutral x9": "admitting", "full x9": "admitting", "full x20": "ejected",
        "tick": "admitting", "stalled": "ejected", "moved": "admitting", "neighbour": "suspect",
    },
    "suspect": {
        "probe passed": "admitting", "probe failed": "suspect", "probe failed x3": "ejected",
        "success": "admitting", "broken": "suspect", "broken x2": "ejected", "server_error x2": "ejected",
        "neutral x9": "suspect", "full x9": "suspect", "tick": "suspect", "stalled": "ejected",
        "moved": "suspect", "neighbour": "suspect",
    },
    "ejected by probes": {
        "probe passed": "ejected", "probe passed x2": "admitting", "probe failed": "ejected",
        "success": "ejected", "broken x9": "ejected", "server_error x9": "ejected", "neutral": "ejected",
        "full x20": "ejected", "tick": "ejected", "stalled": "ejected", "moved": "ejected", "neighbour": "ejected",
    },
    "ejected by traffic": {
        "probe passed": "probing", "probe failed": "ejected", "probe failed x3": "ejected",
        "success": "ejected", "broken x9": "ejected", "server_error x9": "ejected", "neutral": "ejected",
        "full x20": "ejected", "tick": "probing", "stalled": "ejected", "moved": "ejected",
        "neighbour": "ejected",
    },
    "ejected by progress": {
        "probe passed": "probing", "probe failed": "ejected", "probe failed x3": "ejected",
        "success": "ejected", "broken x9": "ejected", "server_error x9": "ejected", "neutral": "ejected",
        "full x20": "ejected", "tick": "probing", "stalled": "ejected", "moved": "admitting",
        "neighbour": "ejected",
    },
    "kept": {
        "probe passed": "suspect", "probe failed": "suspect", "probe failed x3": "ejected", "success": "suspect",
        "broken x9": "suspect", "neutral": "suspect", "full x30": "suspect", "tick": "suspect",
        "stalled": "suspect", "moved": "suspect", "neighbour": "suspect",
    },
    "probing": {
        "probe passed x9": "probing", "probe failed": "probing", "probe failed x3": "ejected",
        "success": "admitting", "broken": "ejected", "server_error": "ejected", "neutral x9": "probing",
        "full": "ejected", "tick": "probing", "stalled": "ejected", "moved": "probing", "neighbour": "probing",
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("state", "event", "after"),
    [(state, event, after) for state, row in TABLE.items() for event, after in row.items()],
)
def test_the_table(state: str, event: str, after: str) -> None:
    machine = machine_in(state)
    before = (machine.state, machine.cause)
    is_news = send(machine, event)
    assert machine.state.value == after
    assert is_news == ((machine.state, machine.cause) != before)
    assert machine.reason


def test_suspicion_ranks_every_state() -> None:
    assert sorted(State, key=SUSPICION.__getitem__) == sorted(SUSPICION, key=SUSPICION.__getitem__)
    assert SUSPICION[State.ADMITTING] < SUSPICION[State.UNKNOWN] < SUSPICION[State.SUSPECT]
    assert SUSPICION[State.SUSPECT] < SUSPICION[State.EJECTED]


class TestFrozenEngine:
    """FC-19: `/health` says 200, the engine is silent."""

    def test_fc19_three_timeouts_eject_although_every_probe_passes_between_them(self) -> None:
        machine = machine_in("admitting")
        for second in (0.0, 30.0, 60.0):
            machine.observe(Outcome.BROKEN, second, "no first byte")
            if second < 60.0:
                machine.probe_passed(second + 1)
                assert machine.state is State.ADMITTING
        assert machine.state is State.EJECTED

    def test_fc19_good_probes_alone_do_not_bring_it_back(self) -> None:
        machine = machine_in("ejected by traffic")
        for second in range(10):
            machine.probe_passed(float(second))
        assert machine.state is State.EJECTED
        machine.probe_passed(10.0)
        assert machine.state.value == "probing", "its time is served: a trial request, no more"

    def test_fc19_one_lost_probe_does_not_hand_the_acquittal_to_probes(self) -> None:
        machine = machine_in("ejected by traffic")
        fail_probes(machine, 1, 1.0)
        for second in range(2, 9):
            machine.probe_passed(float(second))
        assert machine.state is State.EJECTED

    def test_fc19_once_probes_see_the_illness_good_probes_end_it(self) -> None:
        machine = machine_in("ejected by traffic")
        fail_probes(machine, 3, 1.0)
        machine.probe_passed(2.0)
        assert machine.state is State.EJECTED
        machine.probe_passed(3.0)
        assert machine.state.value == "admitting"

    def test_fc19_each_failed_trial_doubles_the_time_up_to_eightfold(self) -> None:
        machine = machine_in("admitting")
        break_requests(machine, 3)
        now_s, served = 0.0, []
        for _ in range(6):
            served.append(machine.until_s - now_s)
            assert not machine.tick(machine.until_s - 0.001)
            now_s = machine.until_s
            assert machine.tick(now_s)
            machine.observe(Outcome.SERVER_ERROR, now_s, "status 500")
        assert served == [10.0, 20.0, 40.0, 80.0, 80.0, 80.0]

    @pytest.mark.parametrize(("fails_at_s", "time_s"), [(21.1, 10.0), (20.9, 20.0)])
    def test_fc19_in_use_for_longer_than_it_was_out_it_starts_anew(self, fails_at_s: float, time_s: float) -> None:
        machine = machine_in("probing")
        machine.observe(Outcome.SUCCESS, 11.0)
        break_requests(machine, 3, fails_at_s)
        assert machine.until_s == fails_at_s + time_s

    def test_the_time_is_longer_by_chance_never_shorter(self) -> None:
        times = []
        for seed in range(200):
            machine = HealthMachine(MARKS, Random(seed))
            break_requests(machine, 3)
            times.append(machine.until_s)
        assert 10.0 <= min(times) < 10.2
        assert 12.3 < max(times) <= 12.5

    def test_fc19_a_good_request_after_good_probes_resets_it_too(self) -> None:
        machine = machine_in("ejected by traffic")
        fail_probes(machine, 3, 1.0)
        machine.probe_passed(2.0)
        machine.probe_passed(3.0)
        machine.observe(Outcome.SUCCESS, 4.0)
        break_requests(machine, 3, 20.0)
        assert machine.until_s == 30.0


class TestBusyIsNotDead:
    """FC-20."""

    def test_fc20_a_slow_probes_while_requests_succeed_do_not_eject(self) -> None:
        machine = machine_in("admitting")
        machine.observe(Outcome.SUCCESS, 5.0)
        fail_probes(machine, 9, 11.0)
        assert machine.state is State.SUSPECT
        assert "requests succeed" in machine.reason
        machine.probe_failed(11.1, "timed out")
        assert machine.state.value == "ejected", "the success is older than the window now"

    def test_fc20_b_one_lost_probe_of_ten_changes_nothing(self) -> None:
        machine = machine_in("admitting")
        for number in range(100):
            assert not (machine.probe_failed(0.0, "lost") if number % 10 == 3 else machine.probe_passed(0.0))
        assert machine.state is State.ADMITTING

    @pytest.mark.parametrize("state", ["admitting", "ejected by probes"])
    def test_fc20_c_alternating_probes_change_nothing(self, state: str) -> None:
        machine = machine_in(state)
        before = machine.state
        for number in range(100):
            if number % 2:
                machine.probe_failed(0.0, "lost")
            else:
                machine.probe_passed(0.0)
        assert machine.state is before

    def test_fc20_d_it_starts_unknown(self) -> None:
        machine = HealthMachine(MARKS)
        assert machine.state is State.UNKNOWN
        assert machine.reason == "no probe yet"


class TestWhoIsToBlame:
    """FC-21."""

    def test_fc21_neutral_outcomes_neither_count_nor_clear(self) -> None:
        machine = machine_in("admitting")
        for number in range(3):
            assert machine.state is not State.EJECTED
            machine.observe(Outcome.SERVER_ERROR, 0.0, "status 500")
            if number < 2:
                for _ in range(10):
                    machine.observe(Outcome.NEUTRAL, 0.0)
        assert machine.state is State.EJECTED

    def test_fc21_a_success_clears_earlier_failures(self) -> None:
        machine = machine_in("admitting")
        for _ in range(10):
            machine.observe(Outcome.SERVER_ERROR, 0.0, "status 500")
            machine.observe(Outcome.SERVER_ERROR, 0.0, "status 500")
            for _ in range(3):
                machine.observe(Outcome.SUCCESS, 0.0)
        assert machine.state is State.ADMITTING

    def test_fc21_an_orderly_error_does_not_make_it_suspect(self) -> None:
        machine = machine_in("admitting")
        assert not machine.observe(Outcome.SERVER_ERROR, 0.0, "status 503")
        assert machine.state is State.ADMITTING

    def test_fc21_failures_of_old_requests_do_not_count_after_the_return(self) -> None:
        machine = machine_in("ejected by probes")
        break_requests(machine, 5)
        machine.probe_passed(1.0)
        machine.probe_passed(2.0)
        machine.observe(Outcome.BROKEN, 3.0, "reset")
        assert machine.state is State.SUSPECT


def test_probes_that_still_come_back_are_less_suspicious_than_those_that_do_not() -> None:
    assert machine_in("ejected by traffic").suspicion < machine_in("ejected by probes").suspicion


def test_a_refused_probe_is_no_slow_one() -> None:
    machine = machine_in("admitting")
    machine.observe(Outcome.SUCCESS, 5.0)
    for _ in range(3):
        machine.probe_failed(6.0, "no connection: Connection refused", is_refused=True)
    assert machine.state is State.EJECTED


def test_new_marks_leave_the_state() -> None:
    machine = machine_in("suspect")
    machine.set_marks(HealthMarks(passive_fall=9))
    assert machine.state is State.SUSPECT
    break_requests(machine, 7)
    assert machine.state is State.SUSPECT
    break_requests(machine, 1)
    assert machine.state.value == "ejected"


EVENTS = st.sampled_from([
    "probe passed", "probe failed", "probe refused", "tick", "stalled", "moved", "idled", "neighbour",
    *(outcome.value for outcome in Outcome),
])  # fmt: skip
HISTORY = st.lists(st.tuples(EVENTS, st.floats(0.0, 30.0), st.booleans()))


def live(machine: HealthMachine, event: str, now_s: float) -> bool:
    match event:
        case "probe passed":
            return machine.probe_passed(now_s)
        case "probe failed" | "probe refused":
            return machine.probe_failed(now_s, "why", is_refused=event == "probe refused")
        case "tick":
            return machine.tick(now_s)
        case "stalled":
            return machine.stalled(now_s, "why")
        case "moved":
            return machine.moved(now_s)
        case "idled":
            machine.idled(now_s)
            return False
        case "neighbour":
            return machine.suspect("why")
    return machine.observe(Outcome(event), now_s, "why")


@given(HISTORY, st.booleans(), st.integers(0, 99))
@settings(deadline=None)
def test_no_sequence_traps_it(events: list[tuple[str, float, bool]], is_new: bool, seed: int) -> None:
    """Whatever came before, and whatever the fleet allowed: an endpoint that is well again is used again, with all
    of its share. And others hear of every change."""
    can_bear = False
    machine = HealthMachine(MARKS, Random(seed), lambda _now_s, _is_full: can_bear, is_new=is_new)
    now_s = 0.0
    for event, passed_s, is_rich in events:
        now_s += passed_s
        can_bear = is_rich
        before = (machine.state, machine.cause)
        is_news = live(machine, event, now_s)
        assert is_news == ((machine.state, machine.cause) != before)
        assert machine.share >= 0.1
        if machine.state is State.EJECTED:
            assert machine.cause is not None
        elif machine.state is not State.SUSPECT:
            assert machine.cause is None
    now_s += MARKS.ejection_s * 10 + MARKS.stall_s
    for _ in range(MARKS.rise):
        machine.tick(now_s)
        machine.probe_passed(now_s)
    if machine.state is State.PROBING:
        machine.observe(Outcome.SUCCESS, now_s)
    assert machine.state is State.ADMITTING
    machine.tick(now_s + MARKS.slow_start_s + 1.0)
    assert machine.share == 1.0
