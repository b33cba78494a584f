"""What turns the clockless parts over: one timer for all engines of a server, one for each delayed wire."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from gslb.mock.engine import Engine, Token, Work


class Timer(Protocol):
    """A pending call."""

    def cancel(self) -> None:
        """Make it not happen."""


class Loop(Protocol):
    """The two things needed of an event loop (a test passes its own)."""

    def time(self) -> float:
        """Monotonic seconds."""

    def call_at(self, when: float, callback: Callable[..., Any]) -> Timer:
        """Call `callback` at `when`."""


class EngineDriver:
    """Runs engines in the loop's time. New work goes to the engine with the least of it (data parallel)."""

    def __init__(self, loop: Loop, engines: Sequence[Engine]) -> None:
        self.engines = list(engines)
        self._loop = loop
        self._now_s = loop.time()
        self._timer: Timer | None = None
        self._timer_s = 0.0
        self._takers: dict[int, tuple[Engine, Callable[[Token], None]]] = {}

    @property
    def running(self) -> int:
        """Requests with a slot, over all engines."""
        return sum(engine.running for engine in self.engines)

    @property
    def waiting(self) -> int:
        """Requests without one, over all engines."""
        return sum(engine.waiting for engine in self.engines)

    @property
    def kv_usage(self) -> float:
        """The fullest engine's KV share, 0..1."""
        return max(engine.kv_usage for engine in self.engines)

    def submit(self, work: Work, on_token: Callable[[Token], None]) -> None:
        """Start `work`; `on_token` is called for each token, never from inside `submit`. Raises QueueFull."""
        engine = min(self.engines, key=lambda one: one.running + one.waiting)
        engine.submit(work, self._now())
        self._takers[work.work_id] = (engine, on_token)
        self._rearm()

    def abort(self, work_id: int) -> bool:
        """Drop `work_id` from its engine; no token of it is delivered any more. False if it is not there."""
        taker = self._takers.pop(work_id, None)
        if taker is None:
            return False
        taker[0].abort(work_id, self._now())
        self._rearm()
        return True

    def set_frozen(self, is_frozen: bool) -> None:
        """Hang all engines, or let them go on."""
        for engine in self.engines:
            if is_frozen:
                engine.freeze(self._now())
            else:
                engine.thaw(self._now())
        self._rearm()

    def close(self) -> None:
        """Forget all work and stop the timer."""
        self._takers.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _now(self) -> float:
        # A loop may fire a timer a little before its time; the engine's time must not go back after that.
        self._now_s = max(self._now_s, self._loop.time())
        return self._now_s

    def _rearm(self) -> None:
        due = [due_s for engine in self.engines if (due_s := engine.next_event_s()) is not None]
        next_s = min(due, default=None)
        if self._timer is not None:
            if next_s == self._timer_s:
                return
            self._timer.cancel()
            self._timer = None
        if next_s is not None and self._takers:
            self._timer_s = next_s
            self._timer = self._loop.call_at(next_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._now_s = max(self._now(), self._timer_s)
        for engine in self.engines:
            for token in engine.advance(self._now_s):
                taker = self._takers.get(token.work_id)
                if taker is None:
                    continue
                if token.finish_reason is not None:
                    del self._takers[token.work_id]
                taker[1](token)
        self._rearm()


class DelayedWire:
    """Actions that reach the far end later, in the order they were put in whatever their delays."""

    __slots__ = ("_loop", "_queue", "_timer")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._queue: deque[tuple[float, Callable[[], None]]] = deque()
        self._timer: Timer | None = None

    @property
    def is_empty(self) -> bool:
        """True when nothing is under way."""
        return not self._queue

    def put(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do `action` in `delay_s` seconds, not before what was put earlier; at once if nothing delays it."""
        if delay_s <= 0 and not self._queue:
            action()
            return
        due_s = self._loop.time() + delay_s
        if self._queue:
            due_s = max(due_s, self._queue[-1][0])
        self._queue.append((due_s, action))
        if self._timer is None:
            self._timer = self._loop.call_at(due_s, self._deliver)

    def clear(self) -> None:
        """Drop what is under way."""
        self._queue.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _deliver(self) -> None:
        # What the timer was set for is due now, even if the loop's clock is a hair behind.
        now_s = max(self._loop.time(), self._queue[0][0] if self._queue else 0.0)
        while self._queue and self._queue[0][0] <= now_s:
            _, action = self._queue.popleft()
            action()
        self._timer = self._loop.call_at(self._queue[0][0], self._deliver) if self._queue else None
