"""What is relaxed when too little is left, and in which order: slow start, suspicion, ejection; never a fence."""

from __future__ import annotations

import pytest

from gslb.routing.health import HealthMarks, Outcome, State
from gslb.routing.panic import live_share
from gslb.routing.refusal import NoRoom
from gslb.routing.router import Decision
from gslb.routing.view import FleetView
from gslb.types import ForcedState, Place, Region
from tests.routing.test_router import chain
from tests.support.builders import (
    chosen_key,
    decided,
    eject,
    endpoint,
    endpoints,
    facts,
    find,
    fleet,
    occupy,
    region,
    router,
)

MARKS = HealthMarks(kept_capacity=0.0)


def eu(count: int, marks: HealthMarks = MARKS) -> FleetView:
    return fleet(endpoints(region(), count, capacity=10), marks=marks)


def come_back(view: FleetView, *keys: str, now_s: float = 10.0) -> None:
    """Let trials of ejected endpoints go well."""
    view.tick(now_s)
    for key in keys:
        view.outcome(key, Outcome.SUCCESS, now_s)


class TestSlowStart:
    def test_one_that_is_back_gets_a_tenth_while_another_serves(self) -> None:
        view = eu(2)
        eject(view, "eu/1")
        come_back(view, "eu/1")
        occupy(view, "eu/1", 1)
        occupy(view, "eu/2", 10)
        assert isinstance(router(holds=True).route(facts(), view.snapshot, 10.0), NoRoom)

    def test_where_all_are_just_back_it_is_lifted(self) -> None:
        view = eu(2)
        eject(view, "eu/1", "eu/2")
        come_back(view, "eu/1", "eu/2")
        asking, served = router(holds=True), 0
        while isinstance(choice := asking.route(facts(), view.snapshot, 10.0), Decision):
            choice.option.view.own.open_ticket(0, choice.option.view.endpoint.capacity)
            served += 1
            assert served <= 20
        assert served == 20, "all their slots, and no more"

    def test_it_counts_what_this_request_may_use(self) -> None:
        view = fleet([endpoint(region("eu"), capacity=10), endpoint(region("us"), capacity=10)], marks=MARKS)
        eject(view, "eu/1")
        come_back(view, "eu/1")
        occupy(view, "eu/1", 5)
        occupy(view, "us/1", 10)
        asking = router(holds=True)
        assert isinstance(asking.route(facts(), view.snapshot, 10.0), NoRoom)
        assert chosen_key(asking.route(facts(pinned_region="eu"), view.snapshot, 10.0)) == "eu/1"

    def test_an_ejected_one_beside_it_spares_nobody(self) -> None:
        view = eu(2)
        eject(view, "eu/1", "eu/2")
        view.tick(10.0)
        view.outcome("eu/1", Outcome.SUCCESS, 10.0)
        eject(view, "eu/2", now_s=10.0)
        occupy(view, "eu/1", 5)
        assert chosen_key(router(holds=True).route(facts(), view.snapshot, 10.0)) == "eu/1"

    def test_why_is_told(self) -> None:
        view = eu(2)
        eject(view, "eu/1")
        come_back(view, "eu/1")
        _, told = router().explain(facts(), view.snapshot, 10.0)
        assert {one.endpoint: one.note for one in told.ranked} == {"eu/1": "slow start at 10%", "eu/2": ""}


class TestSuspicion:
    def test_a_suspect_is_used_once_no_well_one_has_room(self) -> None:
        view = eu(2)
        view.outcome("eu/1", Outcome.BROKEN, 0.0, "reset")
        asking = router(holds=True)
        assert {chosen_key(asking.route(facts(), view.snapshot, 0.0)) for _ in range(40)} == {"eu/2"}
        occupy(view, "eu/2", 10)
        assert chosen_key(asking.route(facts(), view.snapshot, 0.0)) == "eu/1"


class TestEjection:
    def view(self) -> FleetView:
        """One of three is in use, and full."""
        view = eu(3)
        for _ in range(3):
            view.probe_failed("eu/1", 0.0, "timed out")
        eject(view, "eu/2")
        occupy(view, "eu/3", 10)
        return view

    def test_by_default_the_full_are_waited_for(self) -> None:
        assert isinstance(router(holds=True).route(facts(), self.view().snapshot, 0.0), NoRoom)

    def test_below_the_operators_share_the_least_suspected_is_used(self) -> None:
        view, asking = self.view(), router(holds=True, panic_below=0.5)
        assert chosen_key(asking.route(facts(), view.snapshot, 0.0)) == "eu/2", "it still answers probes"
        occupy(view, "eu/2", 10)
        assert chosen_key(asking.route(facts(), view.snapshot, 0.0)) == "eu/1"
        occupy(view, "eu/1", 10)
        assert isinstance(asking.route(facts(), view.snapshot, 0.0), NoRoom)

    def test_not_before_the_well_have_no_room(self) -> None:
        view = eu(3)
        eject(view, "eu/1", "eu/2")
        occupy(view, "eu/3", 9)
        asking = router(panic_below=0.5)
        assert {chosen_key(asking.route(facts(), view.snapshot, 0.0)) for _ in range(40)} == {"eu/3"}

    def test_at_the_share_there_is_no_panic(self) -> None:
        asking = router(holds=True, panic_below=0.33)
        assert isinstance(asking.route(facts(), self.view().snapshot, 0.0), NoRoom)

    def test_a_request_that_failed_at_the_well_ones_may_go_there_too(self) -> None:
        view = eu(3)
        eject(view, "eu/1", "eu/2")
        asking = router(panic_below=0.5)
        assert decided(asking.next_attempt(facts(), view.snapshot, 0.0, {"eu/3"}, {"eu": 1})).region == "eu"

    def test_the_last_resort_goes_from_the_least_suspected_on(self) -> None:
        view = eu(4)
        for key in ("eu/1", "eu/3"):
            for _ in range(3):
                view.probe_failed(key, 0.0, "timed out")
        eject(view, "eu/2", "eu/4")
        tried = chain(router(), view)
        assert (set(tried[:2]), set(tried[2:])) == ({"eu/2", "eu/4"}, {"eu/1", "eu/3"})

    def test_they_are_explained_as_choices(self) -> None:
        _, told = router(panic_below=0.5).explain(facts(), self.view().snapshot, 0.0)
        assert {one.endpoint for one in told.ranked} == {"eu/1", "eu/2", "eu/3"}
        assert not told.dropped


@pytest.mark.parametrize("panic_below", [0.0, 1.0])
def test_never_a_fence_and_never_the_operators_hand(panic_below: float) -> None:
    def stays_in_eu(_place: Place, where: Region) -> str | None:
        return None if where.name == "eu" else "the law"

    members = [*endpoints(region("eu"), 2, capacity=1), *endpoints(region("us"), 2, capacity=1)]
    view = fleet(members, marks=MARKS)
    view.force("eu/2", ForcedState.CORDONED)
    eject(view, "eu/1")
    asking = router(residency=stays_in_eu, panic_below=panic_below)
    assert chain(asking, view) == ["eu/1"]
    occupy(view, "eu/1", 1)
    assert not isinstance(asking.route(facts(), view.snapshot, 0.0), Decision), "nor the declared capacity"


def test_one_trial_at_a_time_also_in_a_panic() -> None:
    view = eu(2)
    eject(view, "eu/1")
    view.tick(10.0)
    assert find(view.snapshot, "eu/1").state is State.PROBING
    occupy(view, "eu/1", 1)
    occupy(view, "eu/2", 10)
    assert isinstance(router(holds=True, panic_below=1.0).route(facts(), view.snapshot, 10.0), NoRoom)


def test_the_share_in_use() -> None:
    view = fleet(
        [endpoint(number=1, capacity=30), endpoint(number=2, capacity=10), endpoint(number=3)], marks=MARKS
    )
    assert live_share(view.snapshot.endpoints) == 1.0
    eject(view, "eu/1")
    assert live_share(view.snapshot.endpoints) == 0.5, "30 of 30 + 10 + 20, the mean"
    assert live_share([]) == 1.0
