"""What happens next: a heap of calls on simulated time."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappush
from itertools import count
from typing import Any

Act = Callable[[float, Any], object]
"""Called with the simulated time and what was put in beside it."""


class Agenda:
    """Calls in order of time; those of one moment in the order they were put in.

    `heap` holds (time, turn, act, argument): the world's loop takes out of it, and what happens most puts itself
    in, with a `turn()` of its own.
    """

    __slots__ = ("heap", "turn")

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, Act, Any]] = []
        self.turn = count().__next__

    def at(self, at_s: float, act: Act, argument: Any) -> None:
        """Call `act(at_s, argument)` when that time has come."""
        heappush(self.heap, (at_s, self.turn(), act, argument))
