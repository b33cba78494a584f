"""What binds the health of endpoints: nodes, capacity, token counters, and how slowly they come back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gslb.routing.health import HealthMarks, Outcome, State
from gslb.routing.view import FleetView
from gslb.types import Endpoint, LoadSample
from tests.support.builders import eject, endpoint, endpoints, find, fleet, keys, occupy, region, sample

BOUND = HealthMarks(stall_s=10.0, slow_start_s=30.0)


def of_nodes(*nodes: str | None, where: str = "eu") -> list[Endpoint]:
    """One endpoint of ten slots per node named."""
    return [endpoint(region(where), number, node=node, capacity=10) for number, node in enumerate(nodes, 1)]


def states(view: FleetView) -> list[str]:
    return [one.state.value for one in view.snapshot.endpoints]


class TestNeighbours:
    """Endpoints of one node are suspected together, and never ejected for each other."""

    @pytest.fixture
    def view(self) -> FleetView:
        return fleet([*of_nodes("a", "a", "b", None, None), endpoint(region("us"), node="a")], marks=BOUND)

    def test_who_they_are(self, view: FleetView) -> None:
        assert view.neighbours("eu/1") == ["eu/2"]
        assert view.neighbours("us/1") == [], "another region's node of that name is another machine"
        assert view.neighbours("eu/4") == view.neighbours("gone") == []

    def test_a_broken_connection_makes_them_suspect(self, view: FleetView) -> None:
        assert view.outcome("eu/1", Outcome.BROKEN, 1.0, "reset")
        assert states(view) == ["suspect", "suspect", *["admitting"] * 4]
        assert find(view.snapshot, "eu/2").reason == "shares node a with eu/1, which is in doubt"

    def test_so_does_any_ejection_but_for_being_full(self, view: FleetView) -> None:
        for _ in range(3):
            view.outcome("eu/1", Outcome.SERVER_ERROR, 1.0, "status 500")
        assert states(view)[:2] == ["ejected", "suspect"]
        view.probe_passed("eu/2", 2.0)
        for _ in range(20):
            view.outcome("eu/3", Outcome.SUCCESS, 3.0)
            view.outcome("eu/2", Outcome.FULL, 3.0)
        assert states(view)[1:3] == ["ejected", "admitting"]

    def test_probes_and_standing_counters_too(self) -> None:
        view = fleet(of_nodes("a", "a", "b", "b"), marks=BOUND)
        for _ in range(3):
            view.probe_failed("eu/1", 1.0, "timed out")
        stand_still(view, "eu/3", 1.0)
        assert states(view) == ["ejected", "suspect", "ejected", "suspect"]

    def test_a_good_probe_ends_it(self, view: FleetView) -> None:
        view.outcome("eu/1", Outcome.BROKEN, 1.0, "reset")
        view.probe_passed("eu/2", 1.1)
        assert states(view)[:2] == ["suspect", "admitting"]

    def test_old_streams_of_an_ejected_one_accuse_nobody(self, view: FleetView) -> None:
        eject(view, "eu/1")
        view.probe_passed("eu/2", 1.0)
        assert not view.outcome("eu/1", Outcome.BROKEN, 2.0, "reset")
        assert states(view)[:2] == ["ejected", "admitting"]


def stand_still(view: FleetView, key: str, since_s: float, for_s: int = 10, **members: Any) -> None:
    """Scrapes once a second: requests run, counters do not move."""
    members = {"running": 3.0, "generation_tokens_total": 77.0, "prompt_tokens_total": 9.0} | members
    for second in range(for_s + 1):
        view.load_sampled(key, sample(since_s + second, **members))


class TestForwardProgress:
    """FC-19: `/health` and `/metrics` answer, the engine does not."""

    @pytest.fixture
    def view(self) -> FleetView:
        return fleet(of_nodes(None, None), marks=BOUND)

    def test_fc19_standing_counters_eject_and_moving_ones_bring_back(self, view: FleetView) -> None:
        stand_still(view, "eu/1", 1.0, 9)
        assert states(view) == ["admitting", "admitting"]
        view.load_sampled("eu/1", sample(11.0, 3.0, generation_tokens_total=77.0, prompt_tokens_total=9.0))
        hung = find(view.snapshot, "eu/1")
        assert hung.state is State.EJECTED
        assert hung.reason == "3 requests run, but no token was made for 10 s"
        view.probe_passed("eu/1", 12.0)
        view.tick(12.0)
        assert find(view.snapshot, "eu/1").state is State.EJECTED
        view.load_sampled("eu/1", sample(13.0, 3.0, generation_tokens_total=78.0, prompt_tokens_total=9.0))
        back = find(view.snapshot, "eu/1")
        assert (back.state, back.slots) == (State.ADMITTING, 1)

    def test_fc19_once_nothing_runs_a_trial_tells(self, view: FleetView) -> None:
        stand_still(view, "eu/1", 0.0)
        view.load_sampled("eu/1", sample(15.0, 0.0, generation_tokens_total=77.0, prompt_tokens_total=9.0))
        for second in range(16, 20):
            view.tick(float(second))
        assert states(view)[0] == "ejected"
        view.tick(20.0)
        assert states(view)[0] == "probing"
        view.outcome("eu/1", Outcome.SUCCESS, 21.0)
        assert states(view)[0] == "admitting"

    def test_fc20_prompts_of_our_own_are_waited_for(self, view: FleetView) -> None:
        occupy(view, "eu/1", 1, pending_tokens=100_000)
        stand_still(view, "eu/1", 0.0, 14)
        assert states(view)[0] == "admitting", "0.05 ms a token: 5 s more"
        stand_still(view, "eu/1", 15.0, 0)
        assert states(view)[0] == "ejected"

    def test_fc20_an_answer_is_a_sign_of_life(self, view: FleetView) -> None:
        stand_still(view, "eu/1", 0.0, 9)
        view.outcome("eu/1", Outcome.SUCCESS, 8.0)
        stand_still(view, "eu/1", 10.0, 7)
        assert states(view)[0] == "admitting"

    @pytest.mark.parametrize(
        "members",
        [{"running": 0.0}, {"running": None}, {"generation_tokens_total": None, "prompt_tokens_total": None}],
        ids=["idle", "running absent", "counters absent"],
    )
    def test_what_is_not_known_is_not_judged(self, view: FleetView, members: dict[str, Any]) -> None:
        stand_still(view, "eu/1", 0.0, 30, **members)
        assert states(view)[0] == "admitting"

    def test_failing_scrapes_are_no_sign(self, view: FleetView) -> None:
        stand_still(view, "eu/1", 0.0, 5)
        for second in range(6, 30):
            view.load_failed("eu/1", "timed out")
            view.tick(float(second))
        stand_still(view, "eu/1", 30.0, 9)
        assert states(view)[0] == "admitting"

    def test_a_header_tells_nothing_of_it(self, view: FleetView) -> None:
        for second in range(30):
            view.load_sampled("eu/1", LoadSample(float(second), waiting=4.0))
        assert states(view)[0] == "admitting"

    def test_switched_off(self) -> None:
        view = fleet(of_nodes(None, None), marks=HealthMarks(stall_s=0.0))
        stand_still(view, "eu/1", 0.0, 60)
        assert states(view)[0] == "admitting"


class TestCapacity:
    def test_the_last_half_is_kept_as_suspects(self) -> None:
        view = fleet(of_nodes(*[None] * 4), marks=BOUND)
        eject(view, "eu/1", "eu/2", "eu/3", "eu/4")
        assert states(view) == ["ejected", "ejected", "suspect", "suspect"]
        assert find(view.snapshot, "eu/3").reason == (
            "requests: 3 in a row failed, the last: connection refused; "
            "still used: the rest would be too little capacity"
        )

    def test_probes_eject_whatever_is_left(self) -> None:
        view = fleet(of_nodes(None, None), marks=BOUND)
        for key in ("eu/1", "eu/2"):
            for _ in range(3):
                view.probe_failed(key, 1.0, "timed out")
        assert states(view) == ["ejected", "ejected"]

    def test_two_endpoints_one_failing_now_and_then(self) -> None:
        """The mark is absolute: no mean of others is needed to see that one is ill."""
        view = fleet(of_nodes(None, None), marks=BOUND)
        for number in range(20):
            view.outcome("eu/1", Outcome.SUCCESS if number % 3 == 0 else Outcome.SERVER_ERROR, 1.0, "status 500")
            view.outcome("eu/2", Outcome.SUCCESS, 1.0)
        assert states(view) == ["ejected", "admitting"]

    def test_a_dead_region_goes_as_a_whole(self) -> None:
        view = fleet([*of_nodes(*[None] * 4), *of_nodes(*[None] * 4, where="us")], marks=BOUND)
        eject(view, *(f"eu/{number}" for number in range(1, 5)))
        assert states(view) == ["ejected"] * 4 + ["admitting"] * 4

    def test_a_fleet_that_is_too_small_is_not_made_smaller(self) -> None:
        """All say 429 as often: nobody is ill."""
        view = fleet(of_nodes(*[None] * 4), marks=BOUND)
        for number in range(100):
            for key in keys(view.snapshot):
                view.outcome(key, Outcome.SUCCESS if number % 4 == 0 else Outcome.FULL, number / 10, "status 429")
        assert states(view) == ["admitting"] * 4

    def test_one_that_says_429_while_others_serve_goes(self) -> None:
        view = fleet(of_nodes(*[None] * 4), marks=BOUND)
        for number in range(20):
            view.outcome("eu/1", Outcome.SUCCESS if number % 4 == 0 else Outcome.FULL, 1.0, "status 429")
            for key in ("eu/2", "eu/3", "eu/4"):
                view.outcome(key, Outcome.SUCCESS if number % 4 else Outcome.FULL, 1.0, "status 429")
        assert states(view) == ["ejected", "admitting", "admitting", "admitting"]

    @given(
        st.lists(st.one_of(st.none(), st.integers(1, 50)), min_size=2, max_size=6),
        st.lists(st.tuples(st.integers(0, 5), st.sampled_from(Outcome), st.floats(0.0, 8.0))),
    )
    @settings(deadline=None)
    def test_traffic_never_ejects_more(
        self, capacities: list[int | None], events: list[tuple[int, Outcome, float]]
    ) -> None:
        """Whatever requests suffer: no ejection leaves less than half of the slots in use."""
        view = fleet([endpoint(number=i, capacity=slots) for i, slots in enumerate(capacities, 1)], marks=BOUND)
        known = [slots for slots in capacities if slots is not None]
        mean = sum(known) / len(known) if known else 1.0
        sizes = [mean if slots is None else slots for slots in capacities]

        def in_use() -> float:
            listed = zip(sizes, states(view), strict=True)
            return sum(size for size, state in listed if state not in ("ejected", "probing"))

        now_s = 0.0
        for number, outcome, passed_s in events:
            now_s += passed_s
            view.tick(now_s)
            before = in_use()
            view.outcome(f"eu/{number % len(capacities) + 1}", outcome, now_s, "why", 5)
            assert in_use() >= min(before, sum(sizes) / 2 - 1e-6)


class TestSlowStart:
    def back(self) -> FleetView:
        view = fleet(of_nodes(None, None), marks=BOUND)
        eject(view, "eu/1")
        view.tick(10.0)
        view.outcome("eu/1", Outcome.SUCCESS, 10.0)
        return view

    def test_slots_grow_with_the_share(self) -> None:
        view, grown = self.back(), []
        roster = view.snapshot.roster
        for second in range(10, 42):
            view.tick(float(second))
            one = find(view.snapshot, "eu/1")
            grown.append((one.share, one.slots, one.all_slots))
        assert grown[0] == (0.1, 1, 10)
        assert grown[15] == (0.5, 5, 10)
        assert grown[-1] == (1.0, 10, 10)
        assert grown == sorted(grown)
        assert view.snapshot.roster == roster, "it is load: lists made of the roster hold"

    def test_without_known_slots_only_the_share_grows(self) -> None:
        view = fleet(endpoints(region(), 2), marks=BOUND)
        eject(view, "eu/1")
        view.tick(10.0)
        view.outcome("eu/1", Outcome.SUCCESS, 10.0)
        one = find(view.snapshot, "eu/1")
        assert (one.share, one.slots) == (0.1, None)

    def test_the_first_configuration_starts_at_once_and_a_reload_slowly(self) -> None:
        view = fleet(of_nodes(None), marks=BOUND)
        assert find(view.snapshot, "eu/1").slots == 10
        view.configure(of_nodes(None, None), BOUND)
        view.probe_passed("eu/2", 5.0)
        assert [one.slots for one in view.snapshot.endpoints] == [10, 1]
