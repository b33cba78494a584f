"""The fleet view: whole snapshots, a roster number that tells when lists must be made anew, what is learnt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gslb.routing.health import HealthMarks, Outcome, State
from gslb.routing.view import FleetView
from gslb.types import ForcedState, LoadSample
from tests.support.builders import MARKS, eject, endpoint, endpoints, find, fleet, keys, region, sample

KEY = "eu/1"


def one(**members: Any) -> FleetView:
    return fleet([endpoint(**members)])


def slots(view: FleetView) -> float | None:
    return find(view.snapshot, KEY).slots


class TestSnapshots:
    def test_a_snapshot_in_hand_does_not_change(self) -> None:
        view = fleet(endpoints(region(), 3))
        held = view.snapshot
        before = [(v.state, v.forced, v.others, v.models, v.rtt_ms, v.slots) for v in held.endpoints]
        eject(view, "eu/1")
        view.force("eu/2", ForcedState.DRAINING)
        view.load_sampled("eu/3", sample(1.0, running=9, waiting=3))
        view.rtt_measured("eu/3", 55.0)
        view.configure([], MARKS)
        assert [(v.state, v.forced, v.others, v.models, v.rtt_ms, v.slots) for v in held.endpoints] == before
        assert len(held.endpoints) == 3
        assert view.snapshot.endpoints == ()

    def test_own_load_is_live_and_shared(self) -> None:
        view = one()
        own = view.own_load(KEY)
        assert own is not None
        assert find(view.snapshot, KEY).own is own
        view.load_sampled(KEY, sample())
        assert find(view.snapshot, KEY).own is own

    def test_only_the_endpoint_concerned_is_replaced(self) -> None:
        view = fleet(endpoints(region(), 3))
        before = view.snapshot.endpoints
        view.load_sampled("eu/2", sample(running=1))
        after = view.snapshot.endpoints
        assert [a is b for a, b in zip(before, after, strict=True)] == [True, False, True]

    def test_unknown_keys_are_ignored(self) -> None:
        view = one()
        before = view.snapshot
        view.probe_passed("gone", 0.0)
        view.probe_failed("gone", 0.0, "timed out")
        view.load_sampled("gone", sample())
        view.load_failed("gone", "timed out")
        view.models_learnt("gone", [{"id": "m"}])
        view.rtt_measured("gone", 1.0)
        assert not view.outcome("gone", Outcome.BROKEN, 0.0)
        assert not view.force("gone", ForcedState.CORDONED)
        assert view.own_load("gone") is None
        assert view.load_error("gone") is None
        assert view.snapshot is before


@pytest.mark.parametrize(
    ("act", "moves"),
    [
        (lambda view: view.load_sampled(KEY, sample(running=3)), False),
        (lambda view: view.load_failed(KEY, "timed out"), False),
        (lambda view: view.probe_passed(KEY, 1.0), False),
        (lambda view: view.probe_failed(KEY, 1.0, "timed out"), False),
        (lambda view: view.outcome(KEY, Outcome.SUCCESS, 1.0), False),
        (lambda view: view.outcome(KEY, Outcome.NEUTRAL, 1.0), False),
        (lambda view: view.tick(1.0), False),
        (lambda view: view.rtt_measured(KEY, 101.9), False),
        (lambda view: view.models_learnt(KEY, [{"id": "m"}]), False),
        (lambda view: view.outcome(KEY, Outcome.BROKEN, 1.0), True),
        (lambda view: view.rtt_measured(KEY, 106.0), True),
        (lambda view: view.models_learnt(KEY, [{"id": "m"}, {"id": "n"}]), True),
        (lambda view: view.force(KEY, ForcedState.CORDONED), True),
        (lambda view: view.configure([endpoint()], MARKS), True),
    ],
)
def test_the_roster_moves_with_all_but_load(act: Callable[[FleetView], object], moves: bool) -> None:
    view = one(models=None)
    view.rtt_measured(KEY, 100.0)
    view.models_learnt(KEY, [{"id": "m"}])
    before = view.snapshot.roster
    act(view)
    assert (view.snapshot.roster > before) == moves


class TestReload:
    def test_state_survives_by_key(self) -> None:
        view = fleet([*endpoints(region(), 2), endpoint(region("us"))])
        eject(view, "eu/1")
        view.force("eu/2", ForcedState.DRAINING)
        view.rtt_measured("eu/2", 33.0)
        view.load_sampled("eu/2", sample(5.0, running=4))
        own = view.own_load("eu/2")
        view.configure([endpoint(region("ap")), *reversed(endpoints(region(), 2, capacity=7))], MARKS)
        assert keys(view.snapshot) == ["ap/1", "eu/2", "eu/1"]
        assert find(view.snapshot, "eu/1").state is State.EJECTED
        stays = find(view.snapshot, "eu/2")
        assert (stays.forced, stays.rtt_ms, stays.others, stays.slots) == (ForcedState.DRAINING, 33.0, 4.0, 7)
        assert stays.own is own
        assert find(view.snapshot, "ap/1").state is State.UNKNOWN
        view.probe_passed("ap/1", 6.0)
        assert find(view.snapshot, "ap/1").state is State.ADMITTING

    def test_the_generation_counts_reloads_only(self) -> None:
        view = one()
        assert view.snapshot.generation == 1
        view.force(KEY, ForcedState.CORDONED)
        assert view.snapshot.generation == 1
        view.configure([endpoint()], MARKS)
        assert view.snapshot.generation == 2

    def test_new_marks_hold_for_old_endpoints(self) -> None:
        view = one()
        view.configure([endpoint()], HealthMarks(passive_fall=1))
        view.outcome(KEY, Outcome.SERVER_ERROR, 1.0, "status 500")
        assert find(view.snapshot, KEY).state is State.EJECTED

    def test_models_declared_learnt_and_declared_again(self) -> None:
        view = one(models=None)
        assert find(view.snapshot, KEY).models is None
        view.models_learnt(KEY, [{"id": "m", "max_model_len": 4096}])
        assert view.model_cards() == [{"id": "m", "max_model_len": 4096}]
        view.configure([endpoint(models=None)], MARKS)
        assert find(view.snapshot, KEY).models == frozenset({"m"}), "learnt models survive a reload"
        view.configure([endpoint(models=frozenset({"b", "a"}))], MARKS)
        assert find(view.snapshot, KEY).models == frozenset({"a", "b"})
        assert view.model_cards() == [{"id": "a"}, {"id": "b"}]
        view.models_learnt(KEY, [{"id": "m"}])
        assert find(view.snapshot, KEY).models == frozenset({"a", "b"}), (
            "what the operator declares is not overruled"
        )
        view.configure([endpoint(models=None)], MARKS)
        assert find(view.snapshot, KEY).models is None, "declared before, now to be learnt"
        assert view.known_models == frozenset()
        assert view.model_cards() == []

    def test_an_ejected_endpoint_lists_no_models(self) -> None:
        view = one()
        assert view.model_cards() == [{"id": "llama"}]
        eject(view, KEY)
        assert view.model_cards() == []


class TestLoad:
    def test_others_are_what_is_not_ours(self) -> None:
        view = one()
        view.load_sampled(KEY, sample(running=7, waiting=2, own_running_then=4))
        assert find(view.snapshot, KEY).others == 5
        view.load_sampled(KEY, sample(running=1, waiting=0, own_running_then=4))
        assert find(view.snapshot, KEY).others == 0, "own requests may not have reached the engine yet"

    def test_kv_is_full_only_with_a_queue(self) -> None:
        view = one()
        for waiting, kv_usage, is_full in ((1, 0.95, True), (0, 0.95, False), (1, 0.9, False), (1, None, False)):
            view.load_sampled(KEY, sample(running=1, waiting=waiting, kv_usage=kv_usage))
            assert find(view.snapshot, KEY).is_kv_full is is_full

    def test_an_empty_sample_tells_nothing(self) -> None:
        view = one()
        view.load_sampled(KEY, LoadSample(9.0, kv_usage=0.1))
        assert find(view.snapshot, KEY).at_s == float("-inf")

    def test_a_header_tells_the_queue_and_leaves_the_rest(self) -> None:
        view = one()
        view.load_sampled(KEY, sample(1.0, running=6, waiting=0, kv_usage=0.5, own_running_then=2))
        view.load_sampled(KEY, LoadSample(3.0, waiting=4.0, own_running_then=1))
        seen = find(view.snapshot, KEY)
        assert (seen.others, seen.at_s) == (8, 1.0), "what runs is as old as its scrape"
        assert seen.load is not None
        assert seen.load.kv_usage == 0.5
        view.load_sampled(KEY, LoadSample(4.0, kv_usage=0.0))
        seen = find(view.snapshot, KEY)
        assert seen.load is not None
        assert (seen.load.waiting, seen.load.kv_usage) == (4.0, 0.0), "a zero is told, an absent number is not"

    def test_an_engine_that_never_tells_what_runs_is_not_frozen_in_time(self) -> None:
        view = one()
        view.load_sampled(KEY, sample(1.0, running=None, waiting=0))
        view.load_sampled(KEY, sample(2.0, running=None, waiting=3))
        seen = find(view.snapshot, KEY)
        assert (seen.at_s, seen.others) == (2.0, 3)

    def test_a_header_before_the_first_scrape_says_nothing_of_what_is_usual(self) -> None:
        view = one()
        view.load_sampled(KEY, LoadSample(1.0, waiting=0.0))
        view.load_sampled(KEY, sample(2.0, running=100))
        assert find(view.snapshot, KEY).usual_others == 100

    def test_a_restarted_engine_counts_from_zero(self) -> None:
        view = one()
        view.load_sampled(KEY, sample(1.0, running=5, waiting=9, generation_tokens_total=9e6))
        view.load_sampled(KEY, sample(2.0, generation_tokens_total=0.0))
        assert find(view.snapshot, KEY).others == 0

    def test_a_failed_scrape_keeps_the_sample_and_says_why(self) -> None:
        view = one()
        view.load_sampled(KEY, sample(1.0, running=5))
        view.load_failed(KEY, "timed out")
        assert view.load_error(KEY) == "timed out"
        assert find(view.snapshot, KEY).others == 5
        view.load_sampled(KEY, sample(2.0, running=4))
        assert view.load_error(KEY) is None


class TestLearntSlots:
    def test_two_samples_in_a_row_with_a_queue_tell_the_slots(self) -> None:
        view = one()
        view.load_sampled(KEY, sample(1.0, running=60, waiting=2))
        assert slots(view) is None, "one queue may be one step's token budget"
        view.load_sampled(KEY, sample(2.0, running=64, waiting=5))
        assert slots(view) == 64

    def test_a_queue_with_a_pause_between_tells_nothing(self) -> None:
        view = one()
        for at_s, waiting in enumerate((2, 0, 2, 0, 2)):
            view.load_sampled(KEY, sample(float(at_s), running=60, waiting=waiting))
        assert slots(view) is None

    def test_too_low_a_guess_grows_while_as_many_run_without_a_queue(self) -> None:
        view = one()
        for at_s in (1.0, 2.0):
            view.load_sampled(KEY, sample(at_s, running=5, waiting=1))
        assert slots(view) == 5
        view.load_sampled(KEY, sample(3.0, running=4))
        assert slots(view) == 5
        view.load_sampled(KEY, sample(4.0, running=5))
        assert slots(view) == 6
        view.load_sampled(KEY, sample(5.0, running=20))
        assert slots(view) == 21

    def test_a_declared_capacity_wins(self) -> None:
        view = one(capacity=8)
        for at_s in (1.0, 2.0):
            view.load_sampled(KEY, sample(at_s, running=64, waiting=1))
        assert slots(view) == 8

    def test_a_header_teaches_no_slots(self) -> None:
        view = one()
        view.load_sampled(KEY, sample(1.0, running=6, waiting=2))
        for at_s in (1.1, 1.2, 1.3):
            view.load_sampled(KEY, LoadSample(at_s, waiting=2.0))
        assert slots(view) is None


def test_a_tick_ends_every_ejection_that_is_served() -> None:
    view = fleet(endpoints(region(), 3))
    eject(view, "eu/1", "eu/3")
    view.tick(9.9)
    assert find(view.snapshot, "eu/1").state is State.EJECTED
    view.tick(10.0)
    assert [v.state for v in view.snapshot.endpoints] == [State.PROBING, State.ADMITTING, State.PROBING]
