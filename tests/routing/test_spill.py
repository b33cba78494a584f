"""Spillover between tiers and regions: standby tiers, and the cap on foreign requests."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gslb.routing.load import Gate
from gslb.routing.priorities import priority_shares
from gslb.routing.router import NoRoom
from gslb.routing.view import FleetView
from tests.support.builders import (
    decided,
    eject,
    endpoint,
    endpoints,
    facts,
    fleet,
    fleet_at,
    occupy,
    region,
    sample,
)
from tests.support.builders import router as build_router


class TestPriorities:
    """Active-passive: a standby tier gets traffic only as the tiers above lose capacity."""

    @staticmethod
    def _fleet(main: int = 10) -> FleetView:
        primary, standby = region("main", priority=0), region("standby", priority=1)
        return fleet([*endpoints(primary, main), *endpoints(standby, 5)])

    @staticmethod
    def _share_of_standby(view: FleetView) -> float:
        asking = build_router()
        homes = [decided(asking.route(facts(), view.snapshot, 0.0)).region for _ in range(2000)]
        return homes.count("standby") / len(homes)

    @pytest.mark.parametrize(("lost", "share"), [(0, 0.0), (2, 0.0), (4, 0.16), (5, 0.3), (8, 0.72), (10, 1.0)])
    def test_a_standby_tier_takes_what_the_first_has_lost_beyond_its_reserve(
        self, lost: int, share: float
    ) -> None:
        """1.4 x live share stays: 60 % live keep 84 % of the traffic."""
        view = self._fleet()
        eject(view, *(f"main/{n}" for n in range(1, lost + 1)))
        assert self._share_of_standby(view) == pytest.approx(share, abs=0.04)

    def test_a_full_first_tier_flows_over(self) -> None:
        primary, standby = region("main", priority=0), region("standby", priority=1)
        view = fleet([*endpoints(primary, 1, capacity=2), *endpoints(standby, 1, capacity=2)])
        occupy(view, "main/1", 2)
        assert decided(build_router().route(facts(), view.snapshot, 0.0)).region == "standby"

    @given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=12))
    def test_shares_add_up_to_all(self, members: list[tuple[int, bool]]) -> None:
        view = fleet(endpoint(region(f"r{n}", priority=priority), 1) for n, (priority, _) in enumerate(members))
        eject(view, *(f"r{n}/1" for n, (_, is_live) in enumerate(members) if not is_live))
        shares = priority_shares(view.snapshot.endpoints, 1.4)
        live = {priority for priority, is_live in members if is_live}
        assert sum(shares.values()) == pytest.approx(1.0 if live else 0.0)
        assert set(shares) <= live
        assert not live or min(live) in shares


class TestSpillCap:
    def test_the_next_nearest_is_not_filled_by_foreign_requests_beyond_its_cap(self) -> None:
        """Must-show 4 of the damping: a dead region's load goes on to the one after the next."""
        view = fleet_at({"eu": 10, "uk": 30, "us": 90}, per_region=2, capacity=10)
        eject(view, "eu/1", "eu/2")
        asking = build_router(holds=True)
        tickets = []
        taken: Counter[str] = Counter()
        for _ in range(20):
            decision = decided(asking.route(facts(), view.snapshot, 0.0))
            # Ejected endpoints leave the list of tiers, not the home: the client's nearest stays its home.
            taken[decision.region] += 1
            tickets.append(decision.open_ticket(0.0))
        assert taken == {"uk": 10, "us": 10}
        for ticket in tickets:
            assert ticket is not None
            ticket.close()
        assert all(one.guests.requests == 0 for one in view.snapshot.endpoints)

    def test_it_yields_when_nobody_else_has_room(self) -> None:
        view = fleet_at({"eu": 10, "uk": 30}, capacity=10)
        occupy(view, "eu/1", 10)
        asking = build_router(holds=True)
        for _ in range(10):
            decision = decided(asking.route(facts(), view.snapshot, 0.0))
            assert decision.region == "uk"
            assert decision.open_ticket(0.0) is not None
        assert isinstance(asking.route(facts(), view.snapshot, 0.0), NoRoom)


class TestHerding:
    def test_arrivals_between_two_scrapes_spread_over_equal_endpoints(self) -> None:
        """40 arrivals in 100 ms, seen by nobody but the edge itself."""
        for seed in range(20):
            view = fleet_at({"eu": 10}, per_region=2, capacity=64)
            for key in ("eu/1", "eu/2"):
                view.load_sampled(key, sample(0.0, running=0))
            asking = build_router(seed=seed, holds=True)
            taken: Counter[str] = Counter()
            for n in range(40):
                decision = decided(asking.route(facts(prompt_tokens=500), view.snapshot, n * 0.0025))
                taken[decision.option.view.endpoint.key] += 1
                assert decision.open_ticket(0.0) is not None
            assert all(15 <= count <= 25 for count in taken.values()), (seed, taken)

    def test_a_load_that_hovers_at_a_mark_flips_the_gate_twice_at_most(self) -> None:
        """30 s with a sample a second, 4 points around the mark at which the gate shuts."""
        dice = Random(1)
        gate, flips, was_shut = Gate(0.85, 0.75), 0, False
        for _ in range(30):
            is_shut = gate.update(0.85 + dice.uniform(-0.04, 0.04))
            flips += is_shut is not was_shut
            was_shut = is_shut
        assert flips <= 2
