"""Each policy on small fleets, and the pruning of `ttft` against looking at everything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gslb.native import is_native
from gslb.routing.affinity import Affinity
from gslb.routing.policies import POLICIES, _nearly_best, _one_of_front, lighter_of_two
from gslb.routing.predict import Option
from gslb.routing.router import Router
from gslb.routing.rules import Damping, RoutingRules
from gslb.routing.slate import Entry, Slate, Tier
from gslb.routing.snapshot import Snapshot
from gslb.routing.view import FleetView
from tests.support.builders import (
    allow_all,
    chosen_key,
    endpoint,
    endpoints,
    facts,
    find,
    fleet,
    fleet_at,
    occupy,
    region,
    sample,
)
from tests.support.builders import router as build_router


def option(own: int = 0, share: float = 1.0) -> Option:
    """An option with `own` requests under way there, at `share` of its slow start."""
    view = fleet([endpoint()])
    occupy(view, "eu/1", own)
    find(view.snapshot, "eu/1").share = share
    return Option(find(view.snapshot, "eu/1"), 10.0, 0.0, 0.0, 0, True)


def picks(policy: str, view: FleetView, times: int = 100, **rules: Any) -> Counter[str]:
    """How often each endpoint is chosen, load unchanged."""
    asking = build_router(policy=policy, **rules)
    return Counter(chosen_key(asking.route(facts(), view.snapshot, 0.0)) for _ in range(times))


class TestLighterOfTwo:
    def test_alone_it_is_taken(self) -> None:
        only = option()
        assert lighter_of_two([only], Random(1)) is only

    def test_of_two_the_lighter_always(self) -> None:
        light, heavy = option(1), option(2)
        assert all(
            lighter_of_two(pair, Random(n)) is light
            for n in range(50)
            for pair in ([light, heavy], [heavy, light])
        )

    def test_one_in_slow_start_is_due_its_share(self) -> None:
        back = option(1, share=0.25)
        for own, is_lighter in ((6, False), (8, True)):
            other = option(own)
            assert all(
                (lighter_of_two(pair, Random(n)) is back) is is_lighter
                for n in range(50)
                for pair in ([back, other], [other, back])
            )

    def test_equals_are_chosen_evenly(self) -> None:
        dice, equals = Random(1), [option() for _ in range(5)]
        counts = Counter(id(lighter_of_two(equals, dice)) for _ in range(5000))
        assert all(850 < counts[id(one)] < 1150 for one in equals)

    def test_the_heaviest_of_many_never_wins(self) -> None:
        many = [option(own) for own in (3, 3, 9, 3)]
        dice = Random(1)
        assert all(lighter_of_two(many, dice) is not many[2] for _ in range(500))


class TestEveryPolicy:
    @pytest.mark.parametrize("policy", POLICIES)
    def test_it_takes_the_only_endpoint(self, policy: str) -> None:
        assert picks(policy, fleet_at({"eu": 10})) == {"eu/1": 100}

    @pytest.mark.parametrize("policy", [name for name in POLICIES if name != "nearest"])
    def test_it_leaves_a_full_endpoint_for_one_with_room(self, policy: str) -> None:
        view = fleet_at({"eu": 10, "us": 90}, capacity=4)
        occupy(view, "eu/1", 4)
        assert picks(policy, view, order=("eu", "us")) == {"us/1": 100}

    @pytest.mark.skipif(is_native(), reason="a compiled class is not inherited from by one that is not")
    @pytest.mark.parametrize("policy", POLICIES)
    def test_a_slate_of_full_ones_has_no_answer_but_is_seen(self, policy: str) -> None:
        view = fleet([endpoint(capacity=1)])
        occupy(view, "eu/1", 1)
        full = Option(find(view.snapshot, "eu/1"), 10.0, 0.0, 0.0, 0.0, False)
        assert full.is_capped
        slate = slate_of([full])
        assert POLICIES[policy](slate) is None
        assert full in slate.seen


class OfferedSlate(Slate):
    """A slate whose options are given instead of predicted."""

    offered: list[Option]

    def option(self, entry: Entry) -> Option | None:
        return self.offered[entry.index]


def slate_of(options: list[Option], gate: Callable[[str], bool] = lambda _region: False) -> Slate:
    """A slate that offers exactly these, whatever their totals; each option's tax marks it as foreign."""
    entries = [Entry(i, f"r{i}", o.network_ms, o.tax_ms, not o.tax_ms) for i, o in enumerate(options)]
    rules = RoutingRules(order=("r0", "r1"))
    slate = OfferedSlate(
        facts(), Snapshot((), 0, 0), 0.0, rules, "r0", Random(1), 0, lambda region, *_: (gate(region), 0.0)
    )
    slate.offered = options
    slate.tier = Tier(entries, rules.damping.near_equal_ms)
    return slate


class TestBaselines:
    def test_near_room_takes_the_nearest_with_a_slot(self) -> None:
        view = fleet_at({"eu": 10, "uk": 20, "us": 90}, per_region=2, capacity=4)
        occupy(view, "eu/1", 4)
        assert picks("near_room", view) == {"eu/2": 100}
        occupy(view, "eu/2", 4)
        assert set(picks("near_room", view)) == {"uk/1", "uk/2"}

    def test_nearest_never_spills_however_long_the_queue(self) -> None:
        view = fleet_at({"eu": 10, "us": 11})
        for at_s in (0.0, 1.0):
            view.load_sampled("eu/1", sample(at_s, running=4, waiting=99))
        assert picks("nearest", view) == {"eu/1": 100}

    def test_nearest_goes_on_when_the_near_one_was_tried(self) -> None:
        view = fleet_at({"eu": 10, "us": 90})
        asking = build_router(policy="nearest")
        assert chosen_key(asking.next_attempt(facts(), view.snapshot, 0.0, {"eu/1"}, {"eu": 1})) == "us/1"

    def test_ordered_follows_the_list_until_the_gate_shuts(self) -> None:
        view = fleet_at({"eu": 10, "us": 90, "ap": 200}, capacity=10)
        marks: dict[str, Any] = {"order": ("us", "eu"), "gate_shut": 0.7, "gate_open": 0.5}
        assert picks("ordered", view, **marks) == {"us/1": 100}
        occupy(view, "us/1", 8)
        assert picks("ordered", view, **marks) == {"eu/1": 100}
        occupy(view, "eu/1", 8)
        assert picks("ordered", view, **marks) == {"eu/1": 100}, "all shut: the nearest with a slot"

    def test_gorgo_is_the_plain_argmin_without_tax(self) -> None:
        view = fleet_at({"eu": 10, "us": 90}, prefill_ms_per_token=0.1)
        occupy(view, "eu/1", 1, pending_tokens=1350)
        assert picks("gorgo", view) == {"us/1": 100}
        assert picks("ttft", view) == {"eu/1": 100}

    def test_lmetric_multiplies_tokens_and_batch(self) -> None:
        view = fleet_at({"eu": 10, "us": 90})
        occupy(view, "eu/1", 4)
        occupy(view, "us/1", 3)
        asking = build_router(policy="lmetric")
        assert chosen_key(asking.route(facts(prompt_tokens=10), view.snapshot, 0.0)) == "us/1"

    def test_hot_cold_leaves_the_hot_one(self) -> None:
        view = fleet_at({"a": 10, "b": 20, "c": 30, "d": 40, "e": 50})
        occupy(view, "a/1", 20)
        assert picks("hot_cold", view) == {"b/1": 100}
        for key in ("b/1", "c/1", "d/1", "e/1"):
            occupy(view, key, 20)
        assert picks("hot_cold", view) == {"a/1": 100}, "all alike: none is hot, least ms"

    def test_least_load_counts_ours_and_theirs(self) -> None:
        view = fleet_at({"eu": 10, "us": 90, "ap": 200})
        occupy(view, "eu/1", 2)
        view.load_sampled("us/1", sample(running=3))
        assert picks("least_load", view) == {"ap/1": 100}

    def test_round_robin_takes_turns(self) -> None:
        assert picks("round_robin", fleet_at({"eu": 10, "us": 90, "ap": 200}), times=99) == {
            "eu/1": 33, "us/1": 33, "ap/1": 33,
        }  # fmt: skip


class TestCost:
    def view(self) -> FleetView:
        view = fleet([
            endpoint(region("near"), price_per_hour=9.0),
            endpoint(region("cheap"), price_per_hour=2.0),
            endpoint(region("cheaper"), price_per_hour=1.0),
            endpoint(region("unpriced")),
        ])  # fmt: skip
        for key, rtt_ms in (("near/1", 10.0), ("cheap/1", 100.0), ("cheaper/1", 300.0), ("unpriced/1", 1.0)):
            view.rtt_measured(key, rtt_ms)
        return view

    @pytest.mark.parametrize(
        ("budget_ms", "key"),
        [
            (None, "cheaper/1"),
            (301, "cheaper/1"),
            (299, "cheap/1"),
            (50, "near/1"),
            (5, "unpriced/1"),
            (0.5, "unpriced/1"),
        ],
    )
    def test_the_cheapest_that_meets_the_budget(self, budget_ms: float | None, key: str) -> None:
        asking = build_router(objective="cost")
        choice = asking.route(facts(budget_ms=budget_ms), self.view().snapshot, 0.0)
        assert chosen_key(choice) == key

    def test_equal_prices_are_chosen_by_milliseconds_and_near_ones_by_chance(self) -> None:
        view = fleet(endpoint(region(name), price_per_hour=1.0) for name in ("a", "b", "c"))
        for key, rtt_ms in (("a/1", 50.0), ("b/1", 60.0), ("c/1", 70.0)):
            view.rtt_measured(key, rtt_ms)
        asking = build_router(objective="cost", damping=Damping(foreign_tax_ms=0.0))
        seen = Counter(chosen_key(asking.route(facts(), view.snapshot, 0.0)) for _ in range(200))
        assert set(seen) == {"a/1", "b/1"}


ENDPOINTS = st.lists(
    st.tuples(
        st.floats(0, 300),  # round trip
        st.integers(0, 12),  # own requests
        st.integers(0, 4000),  # pending tokens
        st.integers(0, 12),  # of others
        st.sampled_from([0.01, 0.05, 0.2]),  # prefill
        st.sampled_from([None, 8, 12]),  # capacity
        st.sampled_from(["eu", "us", "ap"]),
    ),
    min_size=1,
    max_size=14,
)


@given(ENDPOINTS, st.integers(0, 20_000), st.sets(st.sampled_from(["eu", "us", "ap"])), st.booleans())
@settings(deadline=None)
def test_pruning_finds_what_looking_everywhere_finds(
    members: list[tuple[float, int, int, int, float, int | None, str]], tokens: int, shut: set[str], through: bool
) -> None:
    view = fleet(
        endpoint(region(name), number, prefill_ms_per_token=rate, capacity=capacity)
        for number, (*_, rate, capacity, name) in enumerate(members)
    )
    for one, (rtt_ms, own, pending, others, *_) in zip(view.snapshot.endpoints, members, strict=True):
        view.rtt_measured(one.endpoint.key, rtt_ms)
        view.load_sampled(one.endpoint.key, sample(running=others))
        occupy(view, one.endpoint.key, own)
        occupy(view, one.endpoint.key, 1, pending)
    asking = build_router()
    asked = facts(prompt_tokens=tokens)
    candidates = asking._candidates(asked, view.snapshot)
    slate = asking._slate(candidates, asked, view.snapshot, 0.0, (), frozenset())
    slate._ask_gate = lambda region, *_: (region in shut, 0.0)
    (slate.tier,) = candidates.tiers
    found, gated = _nearly_best(slate, through_shut_gates=through)

    everything = [o for entry in slate.tier.entries if (o := slate.option(entry)) is not None]
    usable = [o for o in everything if o.has_room and not o.is_capped]
    open_ones = [o for o in usable if through or not (o.tax_ms and o.view.endpoint.region.name in shut)]
    least_ms = min((o.total_ms for o in open_ones), default=0.0)
    expected = {
        o.view.endpoint.key for o in open_ones if o.total_ms <= least_ms + slate.rules.damping.near_equal_ms
    }
    assert {o.view.endpoint.key for o in found} == expected
    if not found:
        assert gated == bool(usable), "a shut gate is told when it is the only reason"
        assert len(slate.seen) == len(everything), "nothing found means everything was looked at"

    quick = _one_of_front(slate)
    if quick is not None:
        assert quick.view.endpoint.key in expected, "the short way finds nothing the long way would not"
        assert not quick.tax_ms
        assert slate.is_known(quick)


def test_far_regions_are_not_looked_at() -> None:
    view = fleet_at({f"r{n}": 10.0 + 20 * n for n in range(20)}, per_region=10)
    asking = build_router()
    asked = facts(prompt_tokens=20_000)
    candidates = asking._candidates(asked, view.snapshot)
    slate = asking._slate(candidates, asked, view.snapshot, 0.0, (), frozenset())
    (slate.tier,) = candidates.tiers
    assert POLICIES["ttft"](slate) is not None
    assert {o.view.endpoint.region.name for o in slate.seen} == {"r0"}, "even with a prompt of a second's prefill"


def test_computing_what_a_crowded_endpoint_has_cached_elsewhere_is_taxed() -> None:
    """A conversation does not leave its cache for a little less waiting: everybody there would wait for it."""
    view = fleet(endpoints(region(), 2, capacity=10, prefill_ms_per_token=0.1))
    affinity = Affinity()
    asked = facts(prompt_tokens=2048, prefix_blocks=(1, 2, 3, 4), block_tokens=512)
    affinity.prefilled("eu/1", asked, 0.0)
    occupy(view, "eu/1", 1, pending_tokens=4000)  # 240 ms; all anew are 205, taxed 256
    occupy(view, "eu/2", 5)
    chosen = {
        tax: chosen_key(
            Router(RoutingRules(damping=Damping(crowd_tax=tax)), allow_all, Random(1), affinity).route(
                asked, view.snapshot, 0.0
            )
        )
        for tax in (0.0, 1.0)
    }
    assert chosen == {0.0: "eu/2", 1.0: "eu/1"}


def test_endpoints_of_one_region_share_its_turn() -> None:
    counts = picks("ttft", fleet(endpoints(region(), 4)), times=1000)
    assert all(190 <= counts[f"eu/{n}"] <= 310 for n in range(1, 5)), counts
