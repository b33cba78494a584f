"""Waiting for the full endpoint that has a prompt cached: when it is worth it, and how long."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from gslb.routing.affinity import Affinity
from gslb.routing.decision import Decision
from gslb.routing.hold import Held, HoldQueue, HoldRules
from gslb.routing.refusal import NoRoom, Refusal
from gslb.routing.router import Router
from gslb.routing.rules import RoutingRules
from gslb.routing.view import FleetView
from gslb.types import Facts
from tests.support.builders import (
    FRANKFURT,
    allow_all,
    chosen_key,
    decided,
    endpoints,
    facts,
    fleet,
    occupy,
    region,
)

HAS = "eu/1"
BLOCKS = tuple(range(10))


def asked(**members: Any) -> Facts:
    """A prompt of 5120 tokens, all of it cached at HAS: computed anew it takes 819 ms (8192 units of work)."""
    return facts(prompt_tokens=5120, prefix_blocks=BLOCKS, block_tokens=512, **members)


def two(taken: tuple[int, int], slot_hold_ms: float = 4000.0, capacity: int = 40) -> FleetView:
    """Two endpoints, a slot coming free every 100 ms at each, with so many requests."""
    view = fleet(endpoints(region(), 2, capacity=capacity, slot_hold_ms=slot_hold_ms, prefill_ms_per_token=0.1))
    for key, requests in zip((HAS, "eu/2"), taken, strict=True):
        occupy(view, key, requests)
    return view


def asking(**rules: Any) -> Router:
    affinity = Affinity()
    affinity.prefilled(HAS, asked(), 0.0)
    rules.setdefault("holds", True)
    return Router(RoutingRules(edge_place=FRANKFURT, **rules), allow_all, Random(1), affinity)


def waits(choice: object) -> NoRoom:
    assert isinstance(choice, NoRoom), choice
    return choice


def test_with_room_it_goes_there() -> None:
    assert chosen_key(asking().route(asked(), two((39, 0)).snapshot, 0.0)) == HAS  # type: ignore[arg-type]


def test_full_it_is_waited_for_as_long_as_that_saves() -> None:
    no_room = waits(asking().route(asked(), two((40, 0)).snapshot, 0.0))
    assert no_room.waits_for == HAS
    assert no_room.worth_ms == pytest.approx(819.2, rel=0.01)
    assert no_room.drain_per_s == 10.0
    assert no_room.instead is not None
    assert chosen_key(no_room.instead) == "eu/2"


@pytest.mark.parametrize(
    ("rules", "members"),
    [
        ({"holds": False}, {}),
        ({"waits_for_caches": False}, {}),
        ({"policy": "gorgo"}, {}),
        ({"objective": "cost"}, {}),
        ({}, {"prefix_blocks": (77,)}),
    ],
)
def test_others_do_not_wait(rules: dict[str, Any], members: dict[str, Any]) -> None:
    """Nor does a prompt that is cached nowhere."""
    one = asked()
    for name, value in members.items():
        setattr(one, name, value)
    choice = asking(**rules).route(one, two((40, 0)).snapshot, 0.0)
    assert chosen_key(choice) == "eu/2"  # type: ignore[arg-type]


def test_a_retry_does_not_wait() -> None:
    choice = asking().next_attempt(asked(), two((40, 0)).snapshot, 0.0, (), {})
    assert chosen_key(choice) == "eu/2"


def test_where_nobody_has_room_it_waits_for_its_own_and_others_for_any() -> None:
    view = two((40, 40))
    assert waits(asking().route(asked(), view.snapshot, 0.0)).waits_for == HAS
    assert waits(asking().route(facts(prompt_tokens=5120), view.snapshot, 0.0)).waits_for is None


def test_one_that_is_gone_is_not_waited_for() -> None:
    view = two((40, 0))
    view.configure([one for one in endpoints(region(), 2, capacity=40) if one.key != HAS], view._marks)
    view.probe_passed("eu/2", 0.0)
    assert chosen_key(asking().route(asked(), view.snapshot, 0.0)) == "eu/2"  # type: ignore[arg-type]


def test_the_explanation_says_so() -> None:
    assert asking().explain(asked(), two((40, 0)).snapshot, 0.0)[1].reason == f"waits for its cache at {HAS}"


# --- in the queue -----------------------------------------------------------------------------------

INSTEAD = decided(asking(holds=False).route(asked(), two((40, 0)).snapshot, 0.0))  # type: ignore[arg-type]
WAIT = NoRoom("eu", 100.0, 10.0, HAS, worth_ms=450.0, instead=INSTEAD)
ANY = NoRoom("eu", 100.0, 10.0)


def queue(**rules: Any) -> HoldQueue:
    return HoldQueue(HoldRules(doubt=0.0, **rules))


def test_the_line_is_as_long_as_it_is_worth() -> None:
    """A slot every 100 ms: the fifth would wait 500 ms, which costs more than going elsewhere."""
    line = queue()
    told = [line.add(facts(), "g", number, 0.0, WAIT) for number in range(6)]
    assert [isinstance(one, Held) for one in told] == [True] * 4 + [False] * 2
    assert told[4] is INSTEAD


def test_who_would_be_refused_goes_elsewhere() -> None:
    line = queue(max_requests=1)
    assert isinstance(line.add(facts(), "g", "first", 0.0, WAIT), Held)
    assert line.add(facts(), "g", "no place", 0.0, WAIT) is INSTEAD
    strict = queue(refuses_late=True)
    assert strict.add(facts(budget_ms=150.0), "g", "late there", 0.0, WAIT) is INSTEAD
    assert isinstance(strict.add(facts(budget_ms=150.0), "g", "late", 0.0, ANY), Refusal)


def test_who_goes_elsewhere_overtakes_nobody_that_waits_for_any_slot() -> None:
    line = queue()
    assert isinstance(line.add(facts(), "g", "first", 0.0, ANY), Held)
    for number in range(4):
        line.add(facts(), "g", number, 0.1, WAIT)
    behind = line.add(facts(), "g", "behind", 0.2, WAIT)
    assert isinstance(behind, Held)
    assert behind.group == ("g", None)
    gone = [held.cookie for held, _ in line.release(0.3, lambda held: WAIT if held.group[1] else INSTEAD)]
    assert gone == ["first", "behind"]


def test_a_newcomer_waits_behind_who_waits_for_any_slot_or_for_the_one_it_would_take() -> None:
    line = queue()
    line.add(facts(), "g", "cached", 0.0, WAIT)
    assert line.must_wait("g", 0, HAS)
    assert not line.must_wait("g", 0, "eu/2")
    line.add(facts(), "g", "any", 0.0, ANY)
    assert line.must_wait("g", 0, "eu/2")


def test_only_who_waits_for_what_came_free_is_asked_and_they_hold_up_nobody() -> None:
    line = queue()
    for number, no_room in enumerate((WAIT, WAIT, ANY)):
        line.add(facts(), "g", number, 0.1 * number, no_room)
    asked_of: list[object] = []

    def place(held: Held) -> Decision | NoRoom:
        asked_of.append(held.cookie)
        return WAIT if held.group[1] == HAS else INSTEAD

    assert [held.cookie for held, _ in line.release(0.2, place, ("eu/2",))] == [2]
    assert asked_of == [2]
    assert not list(line.release(0.2, place, (HAS,)))
    assert asked_of == [2, 0], "the first finds its endpoint full, the second is not asked"


def test_who_waits_for_any_slot_takes_one_though_its_cache_is_elsewhere() -> None:
    line = queue()
    line.add(facts(), "g", "any", 0.0, ANY)
    assert [choice for _, choice in line.release(0.1, lambda held: WAIT)] == [INSTEAD]


def test_slots_that_do_not_come_free_as_they_should_are_waited_for_no_longer() -> None:
    line = queue()
    line.add(facts(), "g", "cached", 0.0, WAIT)
    for tenth in range(1, 5):
        assert not list(line.release(tenth / 10, lambda held: WAIT))
    gone_s = next(t / 10 for t in range(5, 300) if list(line.release(t / 10, lambda held: WAIT)))
    assert 1.0 < gone_s < 15.0
    assert len(line) == 0
