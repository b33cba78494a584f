"""Who makes the parts of the core that decide: here plainly, in `sim.recording` so that each call is written down.

A composition root makes fleet view and routers through one of these and hands them its dice; nothing else has to
know whether an edge is recorded, and one that is not pays nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Making:
    """Makes parts as they are. `dice` are those that the parts it makes are given."""

    def __init__(self, dice: Random) -> None:
        self.dice = dice

    def make(self, part: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`part(*args, **kwargs)`: a class of the core, and what its constructor takes."""
        return part(*args, **kwargs)
