"""When something regular is due next, and problems that are told once per change."""

from __future__ import annotations

import asyncio

from gslb.clock import Clock

_TIMER_GRAIN_S = 0.001
"""uvloop's timers count whole milliseconds: one that fires a fraction early would be set again and again."""


class Rhythm:
    """The moment something is due. It may be moved while somebody waits for it; due at once to begin with."""

    __slots__ = ("_clock", "_due_s", "_waiter")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due_s = clock()
        self._waiter: asyncio.Future[None] | None = None

    def due_in(self, seconds: float) -> None:
        """Due this many seconds from now."""
        self._due_s = self._clock() + seconds
        self._look_again()

    def no_later_than(self, seconds: float) -> None:
        """Due this many seconds from now, if it was not due sooner anyway."""
        self._due_s = min(self._due_s, self._clock() + seconds)
        self._look_again()

    def _look_again(self) -> None:
        if self._waiter is not None:
            _wake(self._waiter)

    async def wait(self) -> None:
        """Return when it is due. One waits at a time."""
        loop = asyncio.get_running_loop()
        while (left_s := self._due_s - self._clock()) > 0:
            # A future and a timer of its own: a timeout that is the rule would raise and catch twice each time.
            waiter = self._waiter = loop.create_future()
            timer = loop.call_later(left_s + _TIMER_GRAIN_S, _wake, waiter)
            try:
                await waiter
            finally:
                timer.cancel()
                self._waiter = None


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Conditions:
    """What is wrong now, by topic: so that a lasting problem is logged once, not once per cycle."""

    __slots__ = ("_labels", "texts")

    def __init__(self) -> None:
        self._labels: dict[str, str] = {}
        self.texts: dict[str, str] = {}

    def is_new(self, topic: str, label: str, text: str) -> bool:
        """Note a problem; True when it differs in kind (`label`) from what was known of `topic`."""
        self.texts[topic] = text
        before = self._labels.get(topic)
        self._labels[topic] = label
        return before != label

    def is_over(self, topic: str) -> bool:
        """Note that `topic` is well; True when it was not before."""
        self.texts.pop(topic, None)
        return self._labels.pop(topic, None) is not None
