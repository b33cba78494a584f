"""Time as an argument. The core never reads a clock; whoever drives it passes `now_s` in.

`now_s` is always monotonic seconds (the event loop's time in the live proxy, simulated time elsewhere).
"""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Anything that tells monotonic seconds."""

    def __call__(self) -> float:
        """Seconds on a monotonic scale with an arbitrary zero."""


class ManualClock:
    """A clock that moves only when told to: for tests and simulations.

    >>> clock = ManualClock(10.0); clock.advance(2.5); clock()
    12.5
    """

    __slots__ = ("now_s",)

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, by_s: float) -> None:
        """Move forward by `by_s` seconds (never backward: monotonic time does not).

        Raises ValueError for a negative step.
        """
        if by_s < 0:
            raise ValueError(f"a monotonic clock cannot go back by {-by_s} s")
        self.now_s += by_s
