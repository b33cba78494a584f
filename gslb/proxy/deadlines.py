"""Deadlines for tens of thousands of connections with one timer.

A watched object carries `deadline_s`; moving it later is one slot write, which is what a stream does at every
event. A ring of ticks looks at each watched object at least once a second; only a deadline sooner than the
next look costs an insertion. While nothing is watched there is no tick.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

TICK_S: Final = 0.02
_HORIZON: Final = 50
"""Ticks until everything is looked at again: 1 s. A finished object is held no longer than that."""
NEVER_S = float("inf")


class Watched(Protocol):
    """Something with a deadline. `next_look_s` belongs to the ring; start it at NEVER_S."""

    deadline_s: float
    next_look_s: float

    def on_deadline(self, now_s: float) -> None:
        """The deadline has passed. Set a new one, or be forgotten."""


class Deadlines:
    """The ring. `start()` and `stop()` bound its one timer."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ring: list[list[tuple[Watched, float]]] = [[] for _ in range(_HORIZON)]
        self._position = 0
        self._entries = 0
        self._is_on = False
        self._timer: asyncio.TimerHandle | None = None
        self.now_s = loop.time()
        """Monotonic seconds as of the last tick, for those who are watched."""

    def start(self) -> None:
        """Begin to tick."""
        self._is_on = True
        self._wake()

    def stop(self) -> None:
        """Stop ticking; what was watched is not called any more."""
        self._is_on = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def arm(self, item: Watched, deadline_s: float) -> None:
        """Set `item`'s deadline (monotonic seconds; NEVER_S: none for now)."""
        item.deadline_s = deadline_s
        if deadline_s < item.next_look_s:
            self._insert(item, deadline_s)

    def _insert(self, item: Watched, deadline_s: float) -> None:
        now_s = self._loop.time()
        ticks = min(max(int((deadline_s - now_s) / TICK_S) + 1, 1), _HORIZON - 1)
        look_s = now_s + ticks * TICK_S
        item.next_look_s = look_s
        self._ring[(self._position + ticks) % _HORIZON].append((item, look_s))
        self._entries += 1
        if self._timer is None:
            self._wake()

    def _wake(self) -> None:
        if self._is_on:
            self.now_s = self._loop.time()
            self._timer = self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        if not self._entries:
            self._timer = None
            return
        self._timer = self._loop.call_later(TICK_S, self._tick)
        self._position = (self._position + 1) % _HORIZON
        self.now_s = self._loop.time()
        due = self._ring[self._position]
        if not due:
            return
        self._ring[self._position] = []
        self._entries -= len(due)
        now_s = self.now_s
        for item, look_s in due:
            if look_s != item.next_look_s:
                continue  # an older entry: the object is looked at elsewhere
            item.next_look_s = NEVER_S
            if item.deadline_s <= now_s:
                item.deadline_s = NEVER_S
                self._call(item, now_s)
            elif item.deadline_s < NEVER_S:
                self._insert(item, item.deadline_s)

    def _call(self, item: Watched, now_s: float) -> None:
        try:
            item.on_deadline(now_s)
        except Exception as error:  # a fault of one must not cost the others of this tick their deadlines
            self._loop.call_exception_handler({"message": "a deadline's call failed", "exception": error})
