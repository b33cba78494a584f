"""What the router decides: home and spill, gates and tax, suspicion and last resort, retries."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from gslb.native import is_native
from gslb.routing.health import Outcome, State
from gslb.routing.router import Decision, Refusal, Router
from gslb.routing.rules import Damping
from gslb.routing.view import FleetView
from gslb.types import Facts, ForcedState, Place
from tests.support.builders import (
    FRANKFURT,
    MARKS,
    TOKYO,
    VIRGINIA,
    chosen_key,
    decided,
    eject,
    endpoint,
    endpoints,
    facts,
    find,
    fleet,
    fleet_at,
    keys,
    occupy,
    region,
    router,
    sample,
)

REGIONS = {"eu": 10.0, "us": 90.0, "ap": 200.0}


def choices(asking: Router, view: FleetView, times: int = 60, now_s: float = 0.0, **asked: Any) -> Counter[str]:
    return Counter(chosen_key(asking.route(facts(**asked), view.snapshot, now_s)) for _ in range(times))


def chain(asking: Router, view: FleetView, asked: Facts | None = None) -> list[str]:
    """All endpoints one exchange would try, each failing in turn."""
    asked = asked or facts()
    choice: Decision | Refusal | None = asking.route(asked, view.snapshot, 0.0)
    tried: list[str] = []
    failures: Counter[str] = Counter()
    while choice is not None:
        decision = decided(choice)
        tried.append(decision.option.view.endpoint.key)
        failures[decision.region] += 1
        choice = asking.next_attempt(asked, view.snapshot, 0.0, tried, failures)
    return tried


class TestHome:
    def test_the_best_if_all_were_idle(self) -> None:
        decision = decided(router().route(facts(), fleet_at(REGIONS).snapshot, 0.0))
        assert (decision.region, decision.home, decision.reason) == ("eu", "eu", "home")
        assert decision.predicted_ms == 10.0

    def test_without_a_placed_edge_the_clients_place_decides(self) -> None:
        members = [
            endpoint(region("eu", FRANKFURT)),
            endpoint(region("us", VIRGINIA)),
            endpoint(region("ap", TOKYO)),
        ]
        asking = router(edge_place=None)
        view = fleet(members)
        for place, key in ((FRANKFURT, "eu/1"), (VIRGINIA, "us/1"), (TOKYO, "ap/1")):
            decision = decided(asking.route(facts(place=place), view.snapshot, 0.0))
            assert decision.option.view.endpoint.key == key
            assert decision.edge_ttft_ms == decision.predicted_ms

    def test_an_edge_that_is_not_placed_sees_what_it_measures_itself(self) -> None:
        view, asking = fleet([endpoint(region("us", VIRGINIA))]), router(edge_place=None)
        before = decided(asking.route(facts(place=FRANKFURT), view.snapshot, 0.0))
        view.rtt_measured("us/1", 2.5, orders=False)
        decision = decided(asking.route(facts(place=FRANKFURT), view.snapshot, 0.0))
        assert decision.predicted_ms == before.predicted_ms > 60.0, "the decision goes by where the client is"
        assert decision.edge_ttft_ms == pytest.approx(2.5)

    def test_the_way_to_a_placed_edge_is_not_what_the_edge_sees(self) -> None:
        decision = decided(router().route(facts(place=VIRGINIA), fleet_at(REGIONS).snapshot, 0.0))
        assert decision.predicted_ms > 60.0
        assert decision.edge_ttft_ms == pytest.approx(10.0)

    def test_a_measured_round_trip_moves_home(self) -> None:
        view, asking = fleet_at(REGIONS), router()
        assert choices(asking, view, 1) == {"eu/1": 1}
        view.rtt_measured("eu/1", 300.0)
        decision = decided(asking.route(facts(), view.snapshot, 0.0))
        assert (decision.region, decision.home) == ("us", "us")

    def test_the_first_tier_comes_first_however_far(self) -> None:
        view = fleet([endpoint(region("far", priority=0), capacity=1), endpoint(region("near", priority=1))])
        view.rtt_measured("far/1", 250.0)
        view.rtt_measured("near/1", 1.0)
        asking = router()
        decision = decided(asking.route(facts(), view.snapshot, 0.0))
        assert (decision.region, decision.home) == ("far", "far")
        occupy(view, "far/1", 1)
        decision = decided(asking.route(facts(), view.snapshot, 0.0))
        assert (decision.region, decision.reason) == ("near", "full")


class TestSpill:
    def test_full_home_spills_to_the_next(self) -> None:
        view = fleet_at(REGIONS, capacity=4)
        occupy(view, "eu/1", 4)
        decision = decided(router().route(facts(), view.snapshot, 0.0))
        assert (decision.region, decision.home, decision.reason) == ("us", "eu", "full")

    def test_home_is_left_only_for_more_than_the_tax(self) -> None:
        view = fleet_at({"eu": 10, "us": 40}, prefill_ms_per_token=0.1)
        occupy(view, "eu/1", 1, pending_tokens=750)
        assert choices(router(), view) == {"eu/1": 60}, "55 ms at home against 40 + 30 abroad"
        occupy(view, "eu/1", 1, pending_tokens=500)
        asking = router()
        assert choices(asking, view) == {"us/1": 60}, "85 ms at home against 40 + 30 abroad"
        assert decided(asking.route(facts(), view.snapshot, 0.0)).reason == "faster"

    def test_a_gate_shuts_where_no_tax_is_asked_as_well(self) -> None:
        view, asking = fleet_at(REGIONS, capacity=20), router(damping=Damping(foreign_tax_ms=0.0))
        occupy(view, "eu/1", 20)
        occupy(view, "us/1", 18)
        assert choices(asking, view) == {"ap/1": 60}

    def test_near_equals_are_chosen_by_chance(self) -> None:
        view = fleet_at({"eu": 10, "uk": 15}, prefill_ms_per_token=0.1)
        occupy(view, "eu/1", 1, pending_tokens=500)
        occupy(view, "uk/1", 1)
        counts = choices(router(), view, 200)
        assert set(counts) == {"eu/1", "uk/1"}, "40 ms against 15 + 30"
        assert min(counts.values()) > 60

    def test_the_gate_shuts_and_opens_with_hysteresis(self) -> None:
        view, asking = fleet_at(REGIONS, capacity=20), router()
        occupy(view, "eu/1", 20)
        own = view.own_load("us/1")
        assert own is not None
        tickets = [own.open_ticket(0) for _ in range(18)]
        assert choices(asking, view) == {"ap/1": 60}, "0.90 used: shut to strangers"
        tickets.pop().close()
        tickets.pop().close()
        assert choices(asking, view) == {"ap/1": 60}, "0.80 used: still shut"
        tickets.pop().close()
        tickets.pop().close()
        assert choices(asking, view) == {"us/1": 60}, "0.70 used: open"
        tickets += [own.open_ticket(0) for _ in range(2)]
        assert choices(asking, view) == {"us/1": 60}, "0.80 used: still open"

    def test_a_shut_gate_yields_when_the_alternative_is_none(self) -> None:
        view = fleet_at({"eu": 10, "us": 90}, capacity=20)
        occupy(view, "eu/1", 20)
        occupy(view, "us/1", 19)
        decision = decided(router().route(facts(), view.snapshot, 0.0))
        assert (decision.region, decision.reason) == ("us", "full")

    def test_a_shut_gate_yields_before_a_suspect_gets_it(self) -> None:
        view = fleet_at(REGIONS, capacity=20)
        occupy(view, "eu/1", 20)
        occupy(view, "us/1", 19)
        view.outcome("ap/1", Outcome.BROKEN, 0.0, "reset")
        assert choices(router(), view) == {"us/1": 60}

    def test_home_has_no_gate(self) -> None:
        view = fleet_at(REGIONS, capacity=20)
        occupy(view, "eu/1", 19)
        assert choices(router(), view) == {"eu/1": 60}

    def test_ill_and_closed_endpoints_are_no_capacity_for_strangers(self) -> None:
        view = fleet([
            endpoint(region("eu"), capacity=10),
            *endpoints(region("us"), 3, capacity=10),
            endpoint(region("ap"), capacity=10),
        ])  # fmt: skip
        for key in keys(view.snapshot):
            view.rtt_measured(key, REGIONS[key.split("/")[0]])
        occupy(view, "eu/1", 10)
        occupy(view, "us/1", 9)
        assert set(choices(router(), view)) <= {"us/1", "us/2", "us/3"}
        view.force("us/2", ForcedState.DRAINING)
        eject(view, "us/3")
        assert choices(router(), view) == {"ap/1": 60}

    def test_all_full_the_shortest_wait_gets_it(self) -> None:
        view = fleet_at(REGIONS)
        for key, running in (("eu/1", 12), ("us/1", 8), ("ap/1", 9)):
            for at_s in (0.0, 0.1):
                view.load_sampled(key, sample(at_s, running=8, waiting=running - 8 or 1))
        decision = decided(router().route(facts(), view.snapshot, 0.1))
        assert not decision.option.has_room
        assert (decision.region, decision.reason) == ("us", "full")


class TestHerding:
    @pytest.mark.parametrize("seed", range(5))
    def test_forty_arrivals_at_once_spread(self, seed: int) -> None:
        view, asking = fleet(endpoints(region(), 2)), router(seed)
        counts: Counter[str] = Counter()
        for number in range(40):
            decision = decided(asking.route(facts(prompt_tokens=200), view.snapshot, number * 0.0025))
            key = decision.option.view.endpoint.key
            decision.option.view.own.open_ticket(200)
            counts[key] += 1
        assert all(15 <= counts[key] <= 25 for key in ("eu/1", "eu/2")), counts

    def test_edges_with_the_same_view_do_not_march_in_step(self) -> None:
        view = fleet(endpoints(region(), 4))
        counts = Counter(chosen_key(router(seed).route(facts(), view.snapshot, 0.0)) for seed in range(200))
        assert all(30 <= counts[f"eu/{n}"] <= 70 for n in range(1, 5)), counts

    def test_fc23_a_thousand_choices_over_four_equals(self) -> None:
        """FC-23."""
        view = fleet(endpoints(region(), 4))
        counts = choices(router(), view, 1000)
        assert all(190 <= counts[f"eu/{n}"] <= 310 for n in range(1, 5)), counts


class TestFailover:
    """FC-18: regions eu (2), us (2), ap (2), a client near eu."""

    @pytest.fixture
    def view(self) -> FleetView:
        return fleet_at(REGIONS, per_region=2)

    def test_fc18_a_home_is_ill(self, view: FleetView) -> None:
        eject(view, "eu/1", "eu/2")
        assert set(choices(router(), view)) == {"us/1", "us/2"}
        assert decided(router().route(facts(), view.snapshot, 0.0)).reason == "unhealthy"

    def test_fc18_b_half_of_home_is_ill(self, view: FleetView) -> None:
        eject(view, "eu/1")
        assert choices(router(), view) == {"eu/2": 60}

    def test_fc18_c_two_regions_are_ill(self, view: FleetView) -> None:
        eject(view, "eu/1", "eu/2", "us/1", "us/2")
        assert set(choices(router(), view)) == {"ap/1", "ap/2"}

    def test_fc18_d_all_are_ill_each_is_tried_once(self, view: FleetView) -> None:
        eject(view, *keys(view.snapshot))
        asking = router()
        assert asking.last_resorts(facts(), view.snapshot) == 6
        tried = chain(asking, view)
        assert sorted(tried) == sorted(keys(view.snapshot))
        assert tried[0].startswith("eu/")

    def test_fc18_e_home_is_well_again(self, view: FleetView) -> None:
        eject(view, "eu/1", "eu/2")
        asking = router()
        assert set(choices(asking, view)) == {"us/1", "us/2"}
        view.tick(10.0)
        view.outcome("eu/1", Outcome.SUCCESS, 11.0)
        view.outcome("eu/2", Outcome.SUCCESS, 11.0)
        assert set(choices(asking, view, now_s=11.0)) == {"eu/1", "eu/2"}

    def test_fc18_f_drained_regions_get_nothing_even_when_all_else_is_ill(self, view: FleetView) -> None:
        for key in ("eu/1", "eu/2", "us/1"):
            view.force(key, ForcedState.DRAINING)
        eject(view, "us/2", "ap/1", "ap/2")
        assert sorted(chain(router(), view)) == ["ap/1", "ap/2", "us/2"]

    def test_the_ill_are_no_answer_to_well_but_full_ones(self) -> None:
        view = fleet_at({"eu": 10, "us": 90}, capacity=4)
        eject(view, "eu/1")
        occupy(view, "us/1", 3)
        assert choices(router(), view) == {"us/1": 60}
        for at_s in (0.0, 0.1):
            view.load_sampled("us/1", sample(at_s, running=9, own_running_then=3))
        assert choices(router(), view) == {"us/1": 60}
        assert router().last_resorts(facts(), view.snapshot) == 0

    def test_the_unknown_come_after_the_well_and_before_the_suspect(self) -> None:
        view = fleet(endpoints(region(), 3), is_well=False)
        view.probe_passed("eu/2", 0.0)
        view.probe_passed("eu/3", 0.0)
        view.outcome("eu/3", Outcome.BROKEN, 0.0, "reset")
        assert [find(view.snapshot, key).state for key in keys(view.snapshot)] == [
            State.UNKNOWN, State.ADMITTING, State.SUSPECT,
        ]  # fmt: skip
        assert chain(router(), view)[:2] == ["eu/2", "eu/1"]

    def test_fc18_a_probing_endpoint_gets_one_request_at_a_time(self) -> None:
        view = fleet_at({"eu": 10, "us": 90}, capacity=4)
        eject(view, "eu/1")
        view.tick(10.0)
        asking = router()
        decided(asking.route(facts(), view.snapshot, 10.0)).option.view.own.open_ticket(0)
        assert choices(asking, view, now_s=10.0) == {"us/1": 60}
        for at_s in (10.0, 10.1):
            view.load_sampled("us/1", sample(at_s, running=20))
        assert choices(asking, view, now_s=10.1) == {"us/1": 60}, "a long queue is no second trial either"


class TestNextAttempt:
    def test_never_the_same_endpoint_twice(self) -> None:
        tried = chain(router(), fleet_at(REGIONS, per_region=3))
        assert len(tried) == len(set(tried)) == 9

    def test_after_two_strikes_a_region_comes_last(self) -> None:
        tried = chain(router(), fleet_at(REGIONS, per_region=3))
        assert [key.split("/")[0] for key in tried] == ["eu", "eu", "us", "us", "ap", "ap", "eu", "us", "ap"]

    def test_a_struck_regions_well_endpoint_comes_before_anothers_ill_one(self) -> None:
        view = fleet_at({"eu": 10, "us": 90}, per_region=3)
        eject(view, "us/1", "us/2", "us/3")
        assert [key.split("/")[0] for key in chain(router(), view)] == ["eu", "eu", "eu", "us", "us", "us"]

    def test_the_reason_is_failover_abroad_and_home_at_home(self) -> None:
        view, asking = fleet_at({"eu": 10, "us": 90}, per_region=2), router()
        second = asking.next_attempt(facts(), view.snapshot, 0.0, {"eu/1"}, {"eu": 1})
        assert decided(second).reason == "home"
        third = asking.next_attempt(facts(), view.snapshot, 0.0, {"eu/1", "eu/2"}, {"eu": 2})
        assert decided(third).reason == "failover"

    def test_fences_are_asked_anew(self) -> None:
        view, asking = fleet_at({"eu": 10, "us": 90}), router()
        asking.route(facts(), view.snapshot, 0.0)
        view.force("us/1", ForcedState.CORDONED)
        assert asking.next_attempt(facts(), view.snapshot, 0.0, {"eu/1"}, {"eu": 1}) is None

    def test_none_when_nothing_passes_the_fences(self) -> None:
        view = fleet_at({"eu": 10})
        assert router().next_attempt(facts(model="other"), view.snapshot, 0.0, (), {}) is None


class TestStaleLoad:
    """FC-24: scraped each 0.2 s, stale after 1 s."""

    def view(self, u1: tuple[float, int], u2: tuple[float, int]) -> FleetView:
        """Two equal endpoints with (when scraped, waiting)."""
        view = fleet(endpoints(region(), 2))
        for key, (at_s, waiting) in (("eu/1", u1), ("eu/2", u2)):
            view.load_sampled(key, sample(at_s, running=waiting * 2, waiting=waiting))
        return view

    def test_fc24_a_the_only_one_is_used_as_if_nothing_were(self) -> None:
        view = fleet_at({"eu": 10})
        view.load_sampled("eu/1", sample(0.0, running=3))
        decision = decided(router(stale_after_s=1.0).route(facts(), view.snapshot, 1000.0))
        assert decision.predicted_ms == 10.0

    def test_fc24_b_an_old_zero_does_not_win(self) -> None:
        view, asking = self.view((0.0, 0), (100.0, 3)), router(stale_after_s=1.0)
        occupy(view, "eu/2", 2)
        assert choices(asking, view, now_s=100.1) == {"eu/2": 60}

    def test_fc24_b_but_it_is_not_excluded(self) -> None:
        view, asking = self.view((0.0, 0), (100.0, 3)), router(stale_after_s=1.0)
        view.load_sampled("eu/2", sample(100.2, running=6, waiting=3))
        assert choices(asking, view, now_s=100.3) == {"eu/1": 60}, "the fresh one is full"

    def test_an_absent_number_is_no_zero_either(self) -> None:
        view = fleet(endpoints(region(), 2))
        view.load_sampled("eu/2", sample(0.0, running=5))
        assert choices(router(), view) == {"eu/2": 60}

    def test_fc24_c_all_stale_spread_by_own_in_flight(self) -> None:
        view, asking = self.view((0.0, 0), (0.0, 9)), router(stale_after_s=1.0)
        counts: Counter[str] = Counter()
        for _ in range(100):
            decision = decided(asking.route(facts(), view.snapshot, 100.0))
            decision.option.view.own.open_ticket(0)
            counts[decision.option.view.endpoint.key] += 1
        assert counts == {"eu/1": 50, "eu/2": 50}


class TestKeptLists:
    def test_they_hold_for_one_roster(self) -> None:
        view, asking = fleet_at(REGIONS), router()
        asked = facts()
        kept = asking._candidates(asked, view.snapshot)
        view.load_sampled("eu/1", sample())
        assert asking._candidates(asked, view.snapshot) is kept
        view.configure([endpoint(region("us"))], MARKS)
        assert asking._candidates(asked, view.snapshot) is not kept
        assert choices(asking, view, 1) == {"us/1": 1}

    def test_equal_places_that_are_not_one_object_get_the_same_answer(self) -> None:
        members = [endpoint(region("eu", FRANKFURT)), endpoint(region("ap", TOKYO))]
        view, asking = fleet(members), router(edge_place=None)
        for _ in range(300):
            for near, key in ((FRANKFURT, "eu/1"), (TOKYO, "ap/1")):
                place = Place(country=near.country, lat=near.lat, lon=near.lon)
                assert chosen_key(asking.route(facts(place=place), view.snapshot, 0.0)) == key
                del place

    def test_one_tenant_name_with_other_rights_is_another_client(self) -> None:
        view = fleet([endpoint(region(name, jurisdictions={name})) for name in ("eu", "us")])
        asking = router()
        for name in ("eu", "us", "eu"):
            asked = facts(tenant="a", tenant_jurisdictions=frozenset({name}))
            assert decided(asking.route(asked, view.snapshot, 0.0)).region == name

    def test_a_pin_is_another_wish(self) -> None:
        view, asking = fleet_at(REGIONS), router()
        for name in (None, "us", "ap", None):
            assert decided(asking.route(facts(pinned_region=name), view.snapshot, 0.0)).region == (name or "eu")

    @pytest.mark.skipif(is_native(), reason="compiled, a constant cannot be replaced")
    def test_they_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("gslb.routing.router._KEPT_ENTRIES", 100)
        view, asking = fleet_at(REGIONS), router()
        for number in range(1000):
            asking.route(facts(model=f"no-such-{number}"), view.snapshot, 0.0)
            assert asking._kept_entries <= 104
            assert len(asking._kept) <= 26
