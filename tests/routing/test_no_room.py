"""When nobody has room: what the router says of it, and which requests that is true of together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gslb.policy.residency import ResidencyFence, ResidencyFenceRule
from gslb.routing.policies import POLICIES
from gslb.routing.refusal import NoRoom
from gslb.routing.router import Decision
from gslb.types import UNKNOWN_PLACE, Facts, ForcedState, Place
from tests.routing.test_router_properties import LAWS, MODELS, NAMES, World, worlds
from tests.support.builders import (
    FRANKFURT,
    TOKYO,
    VIRGINIA,
    endpoint,
    facts,
    fleet,
    fleet_at,
    occupy,
    refused,
    region,
    router,
)

PARIS = Place(country="FR", lat=48.86, lon=2.35, source="config")
LYON = Place(country="FR", lat=45.76, lon=4.84, source="config")
BOSTON = Place(country="US", lat=42.36, lon=-71.06, source="config")


def full(choice: object) -> NoRoom:
    """`choice`, which must say that there is no room."""
    assert isinstance(choice, NoRoom), choice
    return choice


class TestNoRoom:
    def test_it_tells_the_least_that_is_left_once_there_is(self) -> None:
        view = fleet_at({"eu": 10, "us": 90}, capacity=2, slot_hold_ms=4000.0, prefill_ms_per_token=0.1)
        occupy(view, "eu/1", 2)
        occupy(view, "us/1", 2)
        told = full(router(holds=True).route(facts(prompt_tokens=500), view.snapshot, 0.0))
        assert told.home == "eu"
        assert told.least_ms == pytest.approx(60.0)
        assert told.drain_per_s == pytest.approx(1.0), "two slots each, 4 s long"

    def test_of_those_only_that_may_serve_it(self) -> None:
        view = fleet_at({"eu": 10, "us": 90}, capacity=2, slot_hold_ms=4000.0)
        occupy(view, "us/1", 2)
        told = full(router(holds=True).route(facts(pinned_region="us"), view.snapshot, 0.0))
        assert (told.least_ms, told.drain_per_s) == (90.0, 0.5)

    def test_the_same_while_there_is_room_that_is_somebody_elses_turn(self) -> None:
        view = fleet_at({"eu": 10, "us": 90}, capacity=2, slot_hold_ms=4000.0)
        asking = router(holds=True)
        waits = asking.no_room(facts(), view.snapshot, 0.0)
        occupy(view, "eu/1", 2)
        occupy(view, "us/1", 2)
        assert full(asking.route(facts(), view.snapshot, 0.0)) == waits

    def test_unless_held_it_is_refused_or_queued(self) -> None:
        view = fleet_at({"eu": 10}, capacity=1)
        occupy(view, "eu/1", 1)
        assert refused(router().route(facts(), view.snapshot, 0.0)).code == "saturated"  # type: ignore[arg-type]

    def test_a_second_attempt_is_never_held(self) -> None:
        view = fleet_at({"eu": 10, "us": 90}, capacity=1)
        occupy(view, "us/1", 1)
        asking = router(holds=True)
        assert asking.next_attempt(facts(), view.snapshot, 0.0, ["eu/1"], {"eu": 1}) is None

    def test_what_was_added_since_is_not_waited_for(self) -> None:
        view = fleet_at({"eu": 10, "us": 90}, capacity=1)
        asking = router(holds=True)
        assert isinstance(asking.route(facts(), view.snapshot, 0.0, {"us/1"}), Decision)
        occupy(view, "eu/1", 1)
        assert isinstance(asking.route(facts(), view.snapshot, 0.0), Decision)
        full(asking.route(facts(), view.snapshot, 0.0, {"us/1"}))
        choice, explanation = asking.explain(facts(), view.snapshot, 0.0, {"us/1"})
        full(choice)
        assert [ranked.endpoint for ranked in explanation.ranked] == ["eu/1"]
        gone = refused(asking.route(facts(), view.snapshot, 0.0, {"eu/1", "us/1"}))  # type: ignore[arg-type]
        assert gone.code == "no_healthy_region"


RULE = ResidencyFenceRule(("FR",), frozenset({"EU"}))


class TestGroups:
    def groups(self, *asked: Facts, **rules: Any) -> int:
        """How many groups these requests make."""
        view = fleet([endpoint(region("eu", FRANKFURT)), endpoint(region("us", VIRGINIA))])
        asking = router(residency=ResidencyFence([RULE], "allow").deny_reason, **rules)
        return len({asking.group_of(one, view.snapshot) for one in asked})

    def test_who_and_how_much_does_not_matter(self) -> None:
        one = facts(place=PARIS)
        others = [
            replace(one, tenant="a"), replace(one, prompt_tokens=9000), replace(one, budget_ms=5.0),
            replace(one, priority=3), replace(one, is_stream=True), replace(one, place=LYON),
        ]  # fmt: skip
        assert self.groups(one, *others) == 1

    def test_whatever_a_fence_looks_at_does(self) -> None:
        one = facts(place=PARIS)
        others = [
            replace(one, model="other"), replace(one, pinned_region="us"), replace(one, place=FRANKFURT),
            replace(one, tenant_jurisdictions=frozenset({"US"})),
        ]  # fmt: skip
        assert self.groups(one, *others) == 5

    def test_countries_of_one_law_are_together(self) -> None:
        assert self.groups(facts(place=FRANKFURT), facts(place=TOKYO), facts(place=UNKNOWN_PLACE)) == 1

    def test_not_from_where_home_is_another(self) -> None:
        assert self.groups(facts(place=FRANKFURT), facts(place=BOSTON), edge_place=None) == 2

    def test_a_group_outlives_what_happens_to_the_fleet(self) -> None:
        view = fleet_at({"eu": 10, "us": 90})
        asking = router()
        before = asking.group_of(facts(), view.snapshot)
        view.rtt_measured("us/1", 300.0)
        view.force("us/1", ForcedState.CORDONED)
        assert asking.group_of(facts(), view.snapshot) == before


PLACES = [FRANKFURT, PARIS, LYON, VIRGINIA, BOSTON, TOKYO, UNKNOWN_PLACE]
asks = st.builds(
    Facts,
    model=st.sampled_from(MODELS),
    place=st.sampled_from(PLACES),
    tenant=st.sampled_from(["a", "b"]),
    prompt_tokens=st.integers(0, 5000),
    budget_ms=st.sampled_from([None, 50.0, 5000.0]),
    pinned_region=st.sampled_from([None, None, *NAMES]),
    tenant_jurisdictions=st.none() | LAWS,
)


@given(worlds(), st.lists(asks, min_size=8, max_size=20), st.sampled_from(sorted(POLICIES)))
@settings(max_examples=200, deadline=None)
def test_one_of_a_group_without_room_is_all_of_it(world: World, asked: list[Facts], policy: str) -> None:
    """What lets a release ask once for a whole group."""
    asking = router(
        residency=world.residency.deny_reason, policy=policy, holds=True, order=tuple(NAMES),
        edge_place=world.router.rules.edge_place,
    )  # fmt: skip
    snapshot = world.view.snapshot
    found: dict[object, bool] = {}
    for one in asked:
        has_room = not isinstance(asking.route(one, snapshot, 100.0), NoRoom)
        assert found.setdefault(asking.group_of(one, snapshot), has_room) == has_room
