"""When something regular is due next, and problems that are told once per change."""

from __future__ import annotations

import asyncio
import contextlib

from gslb.clock import Clock

_TIMER_GRAIN_S = 0.001
"""uvloop's timers count whole milliseconds: one that fires a fraction early would be set again and again."""


class Rhythm:
    """The moment something is due. It may be moved while somebody waits for it; due at once to begin with."""

    __slots__ = ("_clock", "_due_s", "_moved")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due_s = clock()
        self._moved = asyncio.Event()

    def due_in(self, seconds: float) -> None:
        """Due this many seconds from now."""
        self._due_s = self._clock() + seconds
        self._moved.set()

    def no_later_than(self, seconds: float) -> None:
        """Due this many seconds from now, if it was not due sooner anyway."""
        self._due_s = min(self._due_s, self._clock() + seconds)
        self._moved.set()

    async def wait(self) -> None:
        """Return when it is due."""
        while (left_s := self._due_s - self._clock()) > 0:
            self._moved.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s + _TIMER_GRAIN_S):
                    await self._moved.wait()


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
