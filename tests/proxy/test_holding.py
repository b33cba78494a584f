"""When held requests are looked at: at once when told, regularly otherwise, and after another worker's that wait
much longer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gslb.config.load import check_text
from gslb.native import is_native
from gslb.proxy.holding import Holding, hold_rules
from gslb.routing.hold import HoldRules
from gslb.routing.refusal import NoRoom
from gslb.routing.router import Decision, Refusal
from tests.support.builders import facts, fleet_at, router

pytestmark = pytest.mark.skipif(is_native(), reason="compiled rooms take no stand-ins for each other")


class Loop:
    """A loop whose turns and time are given by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.soon: list[Callable[[], None]] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.errors: list[dict[str, Any]] = []

    def time(self) -> float:
        return self.now_s

    def call_soon(self, call: Callable[[], None]) -> None:
        self.soon.append(call)

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Any:
        entry = (self.now_s + delay_s, call)
        self.timers.append(entry)
        return SimpleNamespace(cancel=lambda: self.timers.remove(entry))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context)

    def turn(self) -> None:
        calls, self.soon = self.soon, []
        for call in calls:
            call()

    def advance(self, by_s: float) -> None:
        self.now_s += by_s
        due = [entry for entry in self.timers if entry[0] <= self.now_s]
        for entry in due:
            self.timers.remove(entry)
            entry[1]()


class Others:
    """Other workers; `told` is what this one has said."""

    def __init__(self) -> None:
        self.since = inf
        self.told: list[float] = []

    def tell(self, since_s: float) -> None:
        self.told.append(since_s)

    def since_s(self) -> float:
        return self.since


class Edge:
    """One endpoint of capacity 1, taken, and requests that want it."""

    def __init__(self, others: Others | None = None, **rules: Any) -> None:
        self.loop = Loop()
        self.holding = Holding(cast(asyncio.AbstractEventLoop, self.loop), others)
        self.holding.queue.rules = HoldRules(**rules)
        self.fleet = fleet_at({"eu": 10}, capacity=1)
        (self.view,) = self.fleet.snapshot.endpoints
        self.view.own.add(1, 0)
        door = SimpleNamespace(fleet=self.fleet, holding=self.holding)
        self.generation = SimpleNamespace(router=router(holds=True), door=door, strangers=lambda snapshot: ())
        self.released: list[tuple[str, Decision | Refusal]] = []

    def exchange(self, name: str) -> Any:
        one = SimpleNamespace(
            name=name, generation=self.generation, facts=facts(), client=SimpleNamespace(now_s=self.loop.time),
            admitted=SimpleNamespace(reading=SimpleNamespace(asks_why=False)), total_at_s=inf, held=None,
            held_s=0.0,
        )  # fmt: skip
        one.take_place = lambda decision: decision.option.view.own.open_ticket(0, 1)
        one.released = lambda choice: self.released.append((name, choice))
        return one

    def hold(self, name: str) -> Any:
        one = self.exchange(name)
        assert self.holding.hold(one, NoRoom("eu", 10, 1.0)) is None
        return one

    def free(self, count: int = 1, *, tells: bool = True) -> None:
        self.view.own.add(-count, 0)
        if tells:
            self.holding.room_may_have_come()

    @property
    def served(self) -> list[str]:
        return [name for name, choice in self.released if isinstance(choice, Decision)]


def test_many_events_are_one_look() -> None:
    edge = Edge()
    edge.hold("a")
    edge.hold("b")
    edge.free()
    for _ in range(50):
        edge.holding.room_may_have_come()
    assert len(edge.loop.soon) == 1
    edge.loop.turn()
    assert edge.served == ["a"]
    assert edge.loop.soon == []


def test_nothing_is_looked_for_while_nothing_is_held() -> None:
    edge = Edge()
    edge.holding.room_may_have_come()
    assert (edge.loop.soon, edge.loop.timers) == ([], [])
    one = edge.hold("a")
    assert len(edge.loop.timers) == 1
    edge.holding.leave(one)
    edge.loop.advance(0.05)
    assert edge.loop.timers == []


def test_what_nobody_tells_is_seen_within_50_ms() -> None:
    edge = Edge()
    edge.hold("a")
    edge.loop.advance(0.05)
    assert edge.served == []
    edge.free(tells=False)
    edge.loop.advance(0.05)
    assert edge.served == ["a"]


def test_who_has_waited_too_long_is_refused_by_then() -> None:
    edge = Edge(max_wait_s=0.12)
    one = edge.hold("a")
    for _ in range(3):
        edge.loop.advance(0.05)
    ((_, refusal),) = edge.released
    assert isinstance(refusal, Refusal)
    assert (refusal.code, one.held, one.held_s) == ("saturated", None, pytest.approx(0.15))


def test_a_turn_of_the_loop_lets_a_bounded_number_go() -> None:
    edge = Edge(max_wait_s=0.01)
    for number in range(200):
        edge.hold(str(number))
    edge.loop.advance(0.05)
    assert 0 < len(edge.released) < 100
    for _ in range(5):
        edge.loop.turn()
    assert len(edge.released) == 200
    assert edge.loop.soon == []


def test_a_fault_of_one_costs_no_other_its_turn() -> None:
    edge = Edge(max_wait_s=0.01)

    def fail(choice: object) -> None:
        raise RuntimeError("planted")

    edge.hold("a").released = fail
    edge.hold("b")
    edge.loop.advance(0.05)
    assert [name for name, _ in edge.released] == ["b"]
    assert [str(error["exception"]) for error in edge.loop.errors] == ["planted"]


def test_a_place_lost_to_another_worker_is_tried_again_and_then_waited_for() -> None:
    edge = Edge()
    losses = [6]

    def take_place(decision: Decision) -> object:
        losses[0] -= 1
        return None if losses[0] >= 0 else decision.option.view.own.open_ticket(0, 1)

    edge.hold("a").take_place = take_place
    edge.free()
    edge.loop.turn()
    assert (edge.served, losses) == ([], [2])
    edge.loop.advance(0.05)
    assert edge.served == ["a"]


def test_others_are_told_since_when_the_longest_waits() -> None:
    others = Others()
    edge = Edge(others)
    first = edge.hold("a")
    edge.loop.now_s += 1
    second = edge.hold("b")
    edge.holding.leave(first)
    edge.holding.leave(second)
    assert others.told == [100.0, 100.0, 101.0, inf]


def test_a_place_is_left_to_who_waits_much_longer_elsewhere() -> None:
    others = Others()
    edge = Edge(others)
    edge.hold("a")
    others.since = 99.8
    edge.free()
    assert len(edge.loop.soon) == 1, "hardly longer"
    edge.loop.soon.clear()
    edge = Edge(others)
    edge.hold("a")
    others.since = 99.0
    edge.free()
    assert edge.loop.soon == []
    edge.loop.advance(0.02)
    assert edge.served == [], "the other looks first"
    edge.loop.advance(0.02)
    assert edge.served == ["a"], "it had its chance: the place is no use to it"


def test_each_worker_has_its_share_of_the_bounds() -> None:
    text = """
listen: 127.0.0.1:0
regions: {eu: {location: Frankfurt, endpoints: [{url: "http://127.0.0.1:1"}]}}
routing: {over_budget: refuse, hold: {max_requests: 101, max_wait: 7s}}
"""
    settings = check_text(text, "x.yaml", {}, Path())
    assert hold_rules(settings, 1) == HoldRules(101, 7.0, refuses_late=True)
    assert hold_rules(settings, 4).max_requests == 26
