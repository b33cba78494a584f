"""A worker's view follows the supervisor's: the same snapshot, and only what matters is told back."""

from __future__ import annotations

from typing import Any

import orjson

from gslb.routing.health import Outcome, State
from gslb.routing.learn import Moments
from gslb.routing.load import OwnLoad
from gslb.routing.view import FleetView
from gslb.state.fleet import FollowingView, LeadingView, changes, told_of
from gslb.types import ForcedState, LoadSample
from tests.support.builders import MARKS, MODEL, endpoint, find, region, sample

MEMBERS = [endpoint(region("eu"), 1), endpoint(region("eu"), 2, models=None)]
KEY = "eu/2"


def pair() -> tuple[LeadingView, FollowingView, list[tuple[Any, ...]]]:
    """A leading and a following view; changes go over as JSON. And what the follower tells."""
    told: list[tuple[Any, ...]] = []
    following = FollowingView(MARKS, lambda _key: OwnLoad(), lambda *outcome: told.append(outcome))
    before: dict[str, Any] = {}
    leading: LeadingView

    def pass_on(key: str) -> None:
        known = leading.known(key)
        assert known is not None
        now = orjson.loads(orjson.dumps(told_of(known)))
        following.hear({key: changes(before.get(key, {}), now)})
        before[key] = now

    leading = LeadingView(MARKS, own_load_of=lambda _key: OwnLoad(), on_change=pass_on)
    for view in (leading, following):
        view.configure(MEMBERS, MARKS)
    return leading, following, told


def seen(view: Any) -> list[tuple[Any, ...]]:
    names = (
        "state", "reason", "suspicion", "share", "forced", "models", "rtt_ms", "load", "slots", "others", "at_s",
        "is_kv_full",
    )  # fmt: skip
    return [tuple(getattr(one, name) for name in names) for one in view.snapshot.endpoints]


def test_everything_known_goes_over() -> None:
    leading, following, _ = pair()
    assert seen(following) == seen(leading)
    leading.probe_passed(KEY, 1.0)
    leading.models_learnt(KEY, [{"id": "m1", "max_model_len": 8}])
    leading.rtt_measured(KEY, 12.5)
    for second in (1.0, 2.0):
        leading.load_sampled(KEY, sample(second, 10.0, 2.0, kv_usage=0.95, own_running_then=4))
    leading.force("eu/1", ForcedState.DRAINING)
    for _ in range(MARKS.passive_fall):
        leading.outcome("eu/1", Outcome.BROKEN, 3.0, "refused")
    assert seen(following) == seen(leading)
    assert find(following.snapshot, "eu/1").state is State.EJECTED
    assert following.known_models == leading.known_models
    assert following.model_cards() == leading.model_cards()


def test_load_alone_keeps_the_roster() -> None:
    leading, following, _ = pair()
    leading.probe_passed(KEY, 1.0)
    before = following.snapshot.roster
    leading.load_sampled(KEY, sample(2.0, 3.0))
    assert following.snapshot.roster == before
    assert find(following.snapshot, KEY).others == 3.0
    leading.force(KEY, ForcedState.CORDONED)
    assert following.snapshot.roster > before


def test_successes_and_429s_of_a_well_endpoint_are_counted_and_told_once_a_second() -> None:
    leading, following, told = pair()
    leading.probe_passed(KEY, 1.0)
    for tenth in range(30):
        assert following.outcome(KEY, Outcome.SUCCESS, 10.0 + tenth / 10) is False
        assert following.outcome(KEY, Outcome.FULL, 10.05 + tenth / 10, "status 429") is False
        if tenth % 10 == 9:
            following.tell_counts()
    assert told == [
        (KEY, outcome, now_s, "", 10)
        for second in (10.9, 11.9, 12.9)
        for outcome, now_s in ((Outcome.SUCCESS, second), (Outcome.FULL, second + 0.05))
    ]
    following.tell_counts()
    assert len(told) == 6, "nothing new"


def test_fc21_successes_of_all_are_told_before_any_429s() -> None:
    """The 429s of one may come to a verdict, which asks whether the others serve: all that is heard by then."""
    leading, following, told = pair()
    for member in MEMBERS:
        leading.probe_passed(member.key, 1.0)
    leading.models_learnt(KEY, [{"id": MODEL}])
    for number in range(20):
        following.outcome("eu/1", Outcome.FULL, 10.0 + number / 100, "status 429")
        following.outcome(KEY, Outcome.SUCCESS, 10.005 + number / 100)
    following.tell_counts()
    assert [(key, outcome, count) for key, outcome, _, _, count in told] == [
        (KEY, Outcome.SUCCESS, 20), ("eu/1", Outcome.FULL, 20),
    ]  # fmt: skip
    for key, outcome, now_s, why, count in told:
        leading.outcome(key, outcome, now_s, why, count)
    assert find(leading.snapshot, "eu/1").state is State.EJECTED


def test_a_failure_comes_after_all_that_went_before_it() -> None:
    leading, following, told = pair()
    leading.probe_passed(KEY, 1.0)
    for tenth in range(5):
        following.outcome(KEY, Outcome.SUCCESS, 10.0 + tenth / 10)
    following.outcome("eu/1", Outcome.BROKEN, 10.5, "another endpoint's")
    following.outcome(KEY, Outcome.BROKEN, 10.6, "reset")
    assert told[1:] == [(KEY, Outcome.SUCCESS, 10.4, "", 5), (KEY, Outcome.BROKEN, 10.6, "reset", 1)]


def test_both_judge_alike_by_the_ratio() -> None:
    """What a worker counts and tells ejects as what one process sees does."""
    leading, following, told = pair()
    alone = FleetView(MARKS)
    alone.configure(MEMBERS, MARKS)
    for view in (leading, alone):
        for member in MEMBERS:
            view.probe_passed(member.key, 1.0)
        view.models_learnt(KEY, [{"id": MODEL}])

    def pass_on() -> None:
        for key, outcome, now_s, why, count in told:
            leading.outcome(key, outcome, now_s, why, count)
        told.clear()

    for number in range(19):
        outcome = Outcome.SUCCESS if number % 3 == 0 else Outcome.FULL
        for view in (following, alone):
            view.outcome("eu/1", outcome, 10.0 + number / 100, "")
            view.outcome(KEY, Outcome.SUCCESS, 10.0 + number / 100)
    following.tell_counts()
    pass_on()
    assert find(leading.snapshot, "eu/1").state is find(alone.snapshot, "eu/1").state is State.ADMITTING
    for view in (following, alone):
        view.outcome("eu/1", Outcome.FULL, 10.3, "status 429")
    following.tell_counts()
    pass_on()
    for view in (leading, following, alone):
        assert find(view.snapshot, "eu/1").state is State.EJECTED
    assert find(leading.snapshot, "eu/1").reason == find(alone.snapshot, "eu/1").reason


def test_a_success_that_ends_a_row_of_failures_is_told_at_once() -> None:
    leading, following, told = pair()
    leading.probe_passed(KEY, 1.0)
    leading.outcome(KEY, Outcome.SERVER_ERROR, 10.1, "another worker's")
    following.outcome(KEY, Outcome.SUCCESS, 10.2)
    assert told == [(KEY, Outcome.SUCCESS, 10.2, "", 1)]
    leading.outcome(KEY, Outcome.SUCCESS, 10.2)
    following.outcome(KEY, Outcome.SUCCESS, 10.3)
    assert len(told) == 1, "and no longer once the row has ended"


def test_what_a_trial_comes_to_is_told_at_once() -> None:
    leading, following, told = pair()
    for _ in range(MARKS.passive_fall):
        leading.outcome(KEY, Outcome.BROKEN, 0.0, "refused")
    leading.tick(10.0)
    for outcome in (Outcome.FULL, Outcome.SUCCESS):
        following.outcome(KEY, outcome, 10.1)
        assert told.pop()[1] is outcome


def test_failures_are_told_and_nobodys_fault_is_not() -> None:
    _, following, told = pair()
    following.outcome(KEY, Outcome.BROKEN, 5.0, "reset")
    following.outcome(KEY, Outcome.NEUTRAL, 5.0)
    following.outcome("eu/gone", Outcome.BROKEN, 5.0)
    assert told == [(KEY, Outcome.BROKEN, 5.0, "reset", 1)]
    assert find(following.snapshot, KEY).state is State.UNKNOWN, "judged by the supervisor alone"


def test_what_first_tokens_teach_a_worker_comes_back_as_a_belief() -> None:
    leading, following, _ = pair()
    for _ in range(50):
        following.first_token_seen(KEY, 1000.0, 0.0, 150.0)
        following.answer_seen(KEY, 9000.0)
    for key, numbers in orjson.loads(orjson.dumps(following.take_seen())).items():
        leading.learnt_elsewhere(key, Moments.from_told(numbers))
    assert following.take_seen() == {}
    leading.tick(1.0)
    mine, theirs = find(following.snapshot, KEY), find(leading.snapshot, KEY)
    assert mine.base_ms + 1000 * mine.rate_ms > 100
    assert mine.slot_hold_ms > 5000
    for name in ("base_ms", "rate_ms", "drain_ms", "slot_hold_ms", "usual_others"):
        assert getattr(mine, name) == getattr(theirs, name)


def test_a_load_header_takes_no_lesson_from_the_supervisor() -> None:
    """An engine without metrics may tell its queue with its answers, which only a worker sees."""
    leading, following, _ = pair()
    before = find(following.snapshot, KEY).base_ms
    following.first_token_seen(KEY, 1000.0, 0.0, 500.0)
    following.load_sampled(KEY, LoadSample(1.0, waiting=0.0))
    assert find(following.snapshot, KEY).base_ms == before
    for key, numbers in following.take_seen().items():
        leading.learnt_elsewhere(key, Moments.from_told(numbers))
    leading.tick(1.0)
    assert find(following.snapshot, KEY).base_ms > before
