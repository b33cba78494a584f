"""Rendezvous with bounded load: stable, fair, and nobody is drowned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import permutations
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from gslb.routing.predict import Option
from gslb.routing.rendezvous import rendezvous, rendezvous_key, salt_of, weight
from tests.support.builders import endpoint, facts, fleet, occupy, region
from tests.support.interpreters import printed_elsewhere


def options(count: int, loads: Sequence[int] = ()) -> list[Option]:
    view = fleet(endpoint(region("eu"), number) for number in range(count))
    for number, load in enumerate(loads):
        occupy(view, f"eu/{number}", load)
    return [Option(one, 0.0, 0.0, 0.0, 0, True) for one in view.snapshot.endpoints]


def key_of(option: Option) -> str:
    return option.view.endpoint.key


DICE = Random(7)
KEYS = [DICE.getrandbits(64) for _ in range(6000)]


def test_keys_spread_evenly() -> None:
    several = options(8)
    counts = Counter(key_of(rendezvous(key, several)) for key in KEYS)
    assert len(counts) == 8
    # 750 each; four standard deviations of a fair choice are 102
    assert all(abs(count - 750) < 102 for count in counts.values()), counts


def test_the_second_choices_spread_evenly_too() -> None:
    salts = {name: salt_of(name) for name in ("eu/0", "eu/1", "eu/2", "eu/3")}
    orders = Counter(tuple(sorted(salts, key=lambda name: weight(key, salts[name]), reverse=True)) for key in KEYS)
    # 24 orders of 250 each; five standard deviations are 77
    assert all(abs(orders[order] - 250) < 77 for order in permutations(salts)), orders


def test_similar_keys_spread_as_well() -> None:
    counts = Counter(key_of(rendezvous(key, options(4))) for key in range(1000))
    assert min(counts.values()) > 150, counts


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=30), st.integers(2, 9), st.data())
def test_an_endpoint_that_goes_moves_its_own_keys_only(keys: list[int], count: int, data: st.DataObject) -> None:
    all_of_them = options(count)
    gone = data.draw(st.sampled_from(all_of_them))
    rest = [option for option in all_of_them if option is not gone]
    for key in keys:
        before = rendezvous(key, all_of_them)
        after = rendezvous(key, rest)
        assert after is before or before is gone


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**64 - 1), st.lists(st.integers(0, 20), min_size=1, max_size=9))
def test_nobody_above_the_bound_is_chosen_and_somebody_always_is(key: int, loads: list[int]) -> None:
    several = options(len(loads), loads)
    chosen = rendezvous(key, several)
    load = chosen.view.own.requests
    assert load == 0 or load + 1 <= -(-1.25 * (sum(loads) + 1) // len(loads))
    assert load <= max(1.25 * (sum(loads) + 1) / len(loads), min(loads))


def test_one_popular_key_spills_over_in_a_fixed_order() -> None:
    several = options(4)
    for _ in range(400):
        rendezvous(42, several).view.own.open_ticket(0)
    loads = [option.view.own.requests for option in several]
    assert sum(loads) == 400
    assert max(loads) <= 126


def test_idle_endpoints_get_what_belongs_to_them() -> None:
    for key in KEYS[:50]:
        several = options(3)
        first = rendezvous(key, several)
        weights = {key_of(option): weight(key, salt_of(key_of(option))) for option in several}
        assert weights[key_of(first)] == max(weights.values())


def test_every_process_agrees() -> None:
    code = "from gslb.routing.rendezvous import salt_of, weight; print(weight(42, salt_of('eu/1')))"
    assert printed_elsewhere(code) == {f"{weight(42, salt_of('eu/1'))}\n"}


def test_what_belongs_together() -> None:
    assert rendezvous_key(facts()) is None
    assert rendezvous_key(facts(prefix_blocks=(7, 8))) == 7
    assert rendezvous_key(facts(prefix_blocks=(7, 8), affinity_key=0)) == 0
