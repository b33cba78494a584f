"""A worker's view follows the supervisor's: the same snapshot, and only what matters is told back."""

from __future__ import annotations

from typing import Any

import orjson

from gslb.routing.health import Outcome, State
from gslb.routing.load import OwnLoad
from gslb.state.fleet import FollowingView, LeadingView, changes, told_of
from gslb.types import ForcedState
from tests.support.builders import MARKS, endpoint, find, region, sample

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
    names = ("state", "reason", "forced", "models", "rtt_ms", "load", "slots", "others", "at_s", "is_kv_full")
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


def test_successes_of_a_well_endpoint_are_told_once_a_second() -> None:
    leading, following, told = pair()
    leading.probe_passed(KEY, 1.0)
    for tenth in range(30):
        assert following.outcome(KEY, Outcome.SUCCESS, 10.0 + tenth / 10) is False
    assert [now_s for _, _, now_s, _ in told] == [10.0, 11.0, 12.0]


def test_a_success_that_ends_a_row_of_failures_is_told_at_once() -> None:
    leading, following, told = pair()
    leading.probe_passed(KEY, 1.0)
    following.outcome(KEY, Outcome.SUCCESS, 10.0)
    leading.outcome(KEY, Outcome.SERVER_ERROR, 10.1, "another worker's")
    following.outcome(KEY, Outcome.SUCCESS, 10.2)
    assert told[-1][1:3] == (Outcome.SUCCESS, 10.2)
    leading.outcome(KEY, Outcome.SUCCESS, 10.2)
    following.outcome(KEY, Outcome.SUCCESS, 10.3)
    assert len(told) == 2, "and no longer once the row has ended"


def test_failures_are_told_and_nobodys_fault_is_not() -> None:
    _, following, told = pair()
    following.outcome(KEY, Outcome.BROKEN, 5.0, "reset")
    following.outcome(KEY, Outcome.NEUTRAL, 5.0)
    following.outcome("eu/gone", Outcome.BROKEN, 5.0)
    assert told == [(KEY, Outcome.BROKEN, 5.0, "reset")]
    assert find(following.snapshot, KEY).state is State.UNKNOWN, "judged by the supervisor alone"
