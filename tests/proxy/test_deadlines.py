"""One timer for many deadlines: none early, none lost, each called once."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st

from gslb.proxy.deadlines import NEVER_S, TICK_S, Deadlines


class Handle:
    """A timer that can be cancelled."""

    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class ManualLoop:
    """As much of an event loop as a ring needs; time moves when told to."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self._timers: list[tuple[float, int, Handle, Callable[[], None]]] = []
        self.told: list[dict[str, object]] = []
        self._count = 0

    def call_exception_handler(self, context: dict[str, object]) -> None:
        self.told.append(context)

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Handle:
        handle = Handle()
        self._count += 1
        heapq.heappush(self._timers, (self.now_s + delay_s, self._count, handle, callback))
        return handle

    def run_until(self, end_s: float, late_s: float = 0.0) -> None:
        """Let time pass; every timer is `late_s` late."""
        while self._timers and self._timers[0][0] + late_s <= end_s:
            at_s, _, handle, callback = heapq.heappop(self._timers)
            self.now_s = max(self.now_s, at_s + late_s)
            if not handle.is_cancelled:
                callback()
        self.now_s = end_s

    @property
    def waiting(self) -> int:
        return sum(not handle.is_cancelled for _, _, handle, _ in self._timers)


class Item:
    """Something watched. `again` are deadlines it sets itself when called, one after the other."""

    def __init__(self, loop: ManualLoop, ring: Deadlines, again: list[float] | None = None) -> None:
        self._loop = loop
        self._ring = ring
        self._again = list(again or ())
        self.deadline_s = self.next_look_s = NEVER_S
        self.calls: list[float] = []

    def on_deadline(self, now_s: float) -> None:
        assert self.deadline_s == NEVER_S, "called once for a deadline"
        self.calls.append(now_s)
        if self._again:
            self._ring.arm(self, now_s + self._again.pop(0))


def ring() -> tuple[ManualLoop, Deadlines]:
    loop = ManualLoop()
    made = Deadlines(cast(asyncio.AbstractEventLoop, loop))
    made.start()
    return loop, made


def test_a_deadline_is_called_once_and_not_early() -> None:
    loop, deadlines = ring()
    item = Item(loop, deadlines)
    deadlines.arm(item, 100.5)
    loop.run_until(100.49)
    assert item.calls == []
    loop.run_until(100.6)
    assert len(item.calls) == 1
    assert 100.5 <= item.calls[0] <= 100.5 + 2 * TICK_S
    loop.run_until(110)
    assert len(item.calls) == 1


def test_a_deadline_far_away_and_one_in_the_past() -> None:
    loop, deadlines = ring()
    far, past = Item(loop, deadlines), Item(loop, deadlines)
    deadlines.arm(far, 175.0)
    deadlines.arm(past, 1.0)
    loop.run_until(101)
    assert len(past.calls) == 1
    loop.run_until(174.9)
    assert far.calls == []
    loop.run_until(175.1)
    assert len(far.calls) == 1


def test_moving_later_costs_nothing_and_moving_sooner_works() -> None:
    loop, deadlines = ring()
    item = Item(loop, deadlines)
    for i in range(1, 200):
        deadlines.arm(item, loop.now_s + 0.3)
        loop.run_until(100 + i * 0.1)
    assert item.calls == []
    deadlines.arm(item, loop.now_s + 50)
    deadlines.arm(item, loop.now_s + 0.1)
    loop.run_until(loop.now_s + 0.2)
    assert len(item.calls) == 1


def test_never_takes_a_deadline_back() -> None:
    loop, deadlines = ring()
    item = Item(loop, deadlines)
    deadlines.arm(item, 100.2)
    deadlines.arm(item, NEVER_S)
    loop.run_until(105)
    assert item.calls == []
    deadlines.arm(item, 105.2)
    loop.run_until(106)
    assert len(item.calls) == 1


def test_a_deadline_set_while_being_called() -> None:
    loop, deadlines = ring()
    item = Item(loop, deadlines, again=[0.0, 0.1, 1.5])
    deadlines.arm(item, 100.1)
    loop.run_until(103)
    assert len(item.calls) == 4


def test_stop_ends_all_calls() -> None:
    loop, deadlines = ring()
    item = Item(loop, deadlines)
    deadlines.arm(item, 100.1)
    deadlines.stop()
    deadlines.stop()
    loop.run_until(105)
    assert item.calls == []
    assert loop.waiting == 0


Step = tuple[float, int, float]
STEPS = st.lists(st.tuples(st.floats(0, 1.5), st.integers(0, 3), st.floats(-0.1, 3)), max_size=40)


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, late_s=st.sampled_from([0.0, 0.004, 0.05]))
def test_against_a_plain_model(steps: list[Step], late_s: float) -> None:
    """`steps` are (time that passes, item, its new deadline from then)."""
    loop, deadlines = ring()
    items = [Item(loop, deadlines) for _ in range(4)]
    expected: dict[int, float] = {}
    for passes_s, which, in_s in steps:
        before = {i: len(item.calls) for i, item in enumerate(items)}
        loop.run_until(loop.now_s + passes_s, late_s)
        for i, item in enumerate(items):
            fired = len(item.calls) - before[i]
            due_s = expected.get(i, NEVER_S)
            assert fired <= 1
            if fired:
                assert item.calls[-1] >= due_s
                expected.pop(i)
            else:
                assert due_s > loop.now_s - 1.2 - 50 * late_s, "overdue"
        deadlines.arm(items[which], loop.now_s + in_s)
        expected[which] = loop.now_s + in_s
    loop.run_until(loop.now_s + 60, late_s)
    for i, item in enumerate(items):
        assert item.deadline_s == NEVER_S, f"{i} was forgotten"


def test_no_tick_while_nothing_is_watched() -> None:
    loop, deadlines = ring()
    loop.run_until(101)
    assert loop.waiting == 0
    loop.run_until(150.003)
    item = Item(loop, deadlines, again=[2.5])
    deadlines.arm(item, 150.2)
    assert deadlines.now_s == 150.003, "whoever is watched from now on reads the time"
    assert loop.waiting == 1
    loop.run_until(154)
    assert [round(call_s, 1) for call_s in item.calls] == [150.2, 152.7]
    assert all(call_s <= due_s + 2 * TICK_S for call_s, due_s in zip(item.calls, (150.2, 152.74), strict=True))
    assert loop.waiting == 0
    deadlines.stop()
    deadlines.arm(item, 154.1)
    assert loop.waiting == 0, "it has been stopped"


def test_a_finished_item_is_let_go() -> None:
    loop, deadlines = ring()
    for _ in range(100):
        item = Item(loop, deadlines)
        deadlines.arm(item, loop.now_s + 60)
        item.deadline_s = NEVER_S  # what a closed connection does
    loop.run_until(loop.now_s + 1.1)
    assert sum(len(tick) for tick in deadlines._ring) == 0


def test_a_call_that_raises_costs_the_others_nothing() -> None:
    loop, deadlines = ring()
    items = [Item(loop, deadlines) for _ in range(5)]

    def broken(_now_s: float) -> None:
        raise RuntimeError("a fault of one")

    items[0].on_deadline = broken  # type: ignore[method-assign]
    for item in items:
        deadlines.arm(item, loop.now_s + 0.1)
    loop.run_until(loop.now_s + 1.0)
    assert [len(item.calls) for item in items[1:]] == [1] * 4
    assert len(loop.told) == 1
