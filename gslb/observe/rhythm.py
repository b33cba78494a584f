"""Something regular, one at a time, and problems that are told once per change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gslb.clock import Clock

_TIMER_GRAIN_S = 0.001
"""uvloop's timers count whole milliseconds: one that fires a fraction early would be set again and again."""

_BEAT_S = 0.1
_LONG_S = 5 * _BEAT_S
"""What many rhythms begin falls together on beats: waking up once for two things costs less than twice for one."""


class Rhythm:
    """Begins something whenever it is due, and not before what it began last has ended (`done`).

    No task waits for it: an edge asks each endpoint about two times a second.
    """

    __slots__ = ("_begin", "_clock", "_due_s", "_is_on", "_is_out", "_loop", "_timer")

    def __init__(self, clock: Clock, begin: Callable[[], None]) -> None:
        """Make it inside a running loop. `begin` says when the next is due, and sees that `done` is called."""
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._begin = begin
        self._due_s = clock()
        self._timer: asyncio.Handle | None = None
        self._is_on = self._is_out = False

    def start(self) -> None:
        """The first is due at once."""
        self._is_on = True
        self._look()

    def stop(self) -> None:
        """Begin nothing more."""
        self._is_on = False
        self._cancel()

    def due_in(self, seconds: float) -> None:
        """The next is due this many seconds from now, or, if that is long, at the beat next to that moment."""
        due_s = self._clock() + seconds
        self._due_s = due_s if seconds < _LONG_S else round(due_s / _BEAT_S) * _BEAT_S
        self._look()

    def no_later_than(self, seconds: float) -> None:
        """The next is due this many seconds from now, if it was not due sooner anyway."""
        due_s = self._clock() + seconds
        if due_s < self._due_s:
            self._due_s = due_s
            self._look()

    def done(self) -> None:
        """What was begun last has ended."""
        self._is_out = False
        self._look()

    def _look(self) -> None:
        """Wait for the moment that is due now; `done` looks for what is out."""
        if not self._is_on or self._is_out:
            return
        self._cancel()
        left_s = self._due_s - self._clock()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s + _TIMER_GRAIN_S, self._on_timer)
        else:
            self._timer = self._loop.call_soon(self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._due_s > self._clock():
            self._look()
        else:
            self._is_out = True
            self._begin()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


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
