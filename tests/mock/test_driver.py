"""The engine's timer and the delayed wire, under a loop whose time the test moves."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gslb.mock.driver import DelayedWire, EngineDriver
from gslb.mock.engine import Engine, Token, Work
from gslb.mock.settings import MockSettings


class FakeTimer:
    """A pending call of FakeLoop."""

    def __init__(self, callback: Callable[..., Any]) -> None:
        self.callback: Callable[..., Any] | None = callback

    def cancel(self) -> None:
        self.callback = None


class FakeLoop:
    """`time` and `call_at` of an event loop; `run` moves time from timer to timer.

    `early_s` fires timers a little before their time, as loops with a coarse clock do.
    """

    def __init__(self, early_s: float = 0.0) -> None:
        self.now_s = 0.0
        self.early_s = early_s
        self._count = itertools.count()
        self._timers: list[tuple[float, int, FakeTimer]] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, when: float, callback: Callable[..., Any]) -> FakeTimer:
        timer = FakeTimer(callback)
        heapq.heappush(self._timers, (when, next(self._count), timer))
        return timer

    def run(self, until_s: float = float("inf")) -> None:
        while self._timers and self._timers[0][0] <= until_s:
            when, _, timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                self.now_s = max(self.now_s, when - self.early_s)
                timer.callback()
        if until_s != float("inf"):
            self.now_s = max(self.now_s, until_s)

    @property
    def pending(self) -> int:
        return sum(1 for _, _, timer in self._timers if timer.callback is not None)


def driver_of(loop: FakeLoop, engines: int = 1, **numbers: float) -> EngineDriver:
    settings = MockSettings(prefill_ms_per_token=1.0, itl_ms=10.0, itl_per_seq_ms=0.0, **numbers)  # type: ignore[arg-type]
    return EngineDriver(loop, [Engine(settings) for _ in range(engines)])


def test_tokens_come_when_they_are_due() -> None:
    loop = FakeLoop()
    driver = driver_of(loop)
    seen: list[tuple[float, int]] = []
    driver.submit(Work(1, 100, 3), lambda token: seen.append((round(loop.now_s, 6), token.made)))
    assert seen == []
    loop.run()
    assert seen == [(0.1, 1), (0.11, 2), (0.12, 3)]
    assert (driver.running, loop.pending) == (0, 0)


def test_a_loop_that_fires_early_does_not_spin() -> None:
    loop = FakeLoop(early_s=0.0004)
    driver = driver_of(loop)
    seen: list[int] = []
    driver.submit(Work(1, 100, 3), lambda token: seen.append(token.made))
    loop.run()
    assert seen == [1, 2, 3]


def test_one_timer_serves_many_requests() -> None:
    loop = FakeLoop()
    driver = driver_of(loop, slots=100)
    for work_id in range(100):
        driver.submit(Work(work_id, 1, 5), lambda token: None)
    assert loop.pending == 1
    loop.run()
    assert driver.running == 0


def test_aborted_work_gets_no_more_tokens_not_even_those_of_the_same_step() -> None:
    loop = FakeLoop()
    driver = driver_of(loop)
    seen: list[int] = []

    def first_taker(token: Token) -> None:
        seen.append(token.work_id)
        driver.abort(2)

    driver.submit(Work(1, 1, 2), first_taker)
    driver.submit(Work(2, 1, 2), lambda token: seen.append(token.work_id))
    loop.run()
    assert 2 not in seen
    assert not driver.abort(2)


def test_new_work_goes_to_the_emptier_engine() -> None:
    driver = driver_of(FakeLoop(), engines=2, slots=1)
    for work_id in range(4):
        driver.submit(Work(work_id, 1, 2), lambda token: None)
    assert [(engine.running, engine.waiting) for engine in driver.engines] == [(1, 1), (1, 1)]
    assert (driver.running, driver.waiting) == (2, 2)


def test_frozen_driver_has_no_timer_and_goes_on_later() -> None:
    loop = FakeLoop()
    driver = driver_of(loop)
    seen: list[int] = []
    driver.submit(Work(1, 1, 2), lambda token: seen.append(token.made))
    driver.set_frozen(True)
    assert loop.pending == 0
    loop.run(until_s=5.0)
    assert seen == []
    driver.set_frozen(False)
    loop.run()
    assert seen == [1, 2]


def test_close_forgets_everything() -> None:
    loop = FakeLoop()
    driver = driver_of(loop)
    driver.submit(Work(1, 1, 2), lambda token: None)
    driver.close()
    assert loop.pending == 0


def test_wire_without_delay_is_direct() -> None:
    loop, seen = FakeLoop(), []
    wire = DelayedWire(loop)
    wire.put(0.0, lambda: seen.append("a"))
    assert seen == ["a"]
    assert loop.pending == 0


def test_wire_delivers_when_the_way_is_done() -> None:
    loop, seen = FakeLoop(), []
    wire = DelayedWire(loop)
    wire.put(0.04, lambda: seen.append(loop.now_s))
    loop.run(until_s=0.01)
    wire.put(0.04, lambda: seen.append(loop.now_s))
    loop.run()
    assert seen == [0.04, 0.05]


def test_shorter_way_does_not_overtake() -> None:
    loop, seen = FakeLoop(), []
    wire = DelayedWire(loop)
    wire.put(0.1, lambda: seen.append("far"))
    wire.put(0.0, lambda: seen.append("near"))
    assert seen == []
    loop.run()
    assert seen == ["far", "near"]


def test_cleared_wire_delivers_nothing() -> None:
    loop, seen = FakeLoop(), []
    wire = DelayedWire(loop)
    wire.put(0.1, lambda: seen.append("a"))
    wire.clear()
    loop.run()
    assert seen == []


@given(
    puts=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 100)), max_size=40),
    early_ms=st.sampled_from([0.0, 0.4]),
)
def test_wire_keeps_order_and_time_whatever_is_put_when(puts: list[tuple[int, int]], early_ms: float) -> None:
    loop = FakeLoop(early_s=early_ms / 1e3)
    wire = DelayedWire(loop)
    seen: list[tuple[int, float]] = []
    earliest: list[float] = []
    for index, (pause_ms, delay_ms) in enumerate(puts):
        loop.run(until_s=loop.now_s + pause_ms / 1e3)
        earliest.append(loop.now_s + delay_ms / 1e3)
        wire.put(delay_ms / 1e3, lambda index=index: seen.append((index, loop.now_s)))  # type: ignore[misc]
    loop.run()
    assert [index for index, _ in seen] == list(range(len(puts)))
    assert all(at_s >= earliest[index] - early_ms / 1e3 - 1e-9 for index, at_s in seen)
    assert loop.pending == 0
