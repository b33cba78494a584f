"""How long prompts and answers are: lognormal, or drawn from rows that were seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import exp, log, sqrt
from random import Random

Lengths = Callable[[Random], tuple[int, int]]
"""Draws (prompt tokens, output tokens) of one request."""


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Token counts whose logarithm is normal: a half is below `median`, the mean is `mean` (at least the median)
    before what lies above `most` is cut down to it."""

    median: float
    mean: float
    most: int = 1 << 20
    sigma: float = field(init=False)
    """Standard deviation of the logarithm."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", sqrt(2 * log(self.mean / self.median)))

    def draw(self, dice: Random) -> int:
        """One count, at least 1."""
        return min(self.most, max(1, round(self.median * exp(self.sigma * dice.gauss(0.0, 1.0)))))


@dataclass(frozen=True, slots=True)
class Independent:
    """Prompt and answer drawn apart from each other."""

    prompt: Lognormal
    output: Lognormal

    def __call__(self, dice: Random) -> tuple[int, int]:
        """One request's lengths."""
        return self.prompt.draw(dice), self.output.draw(dice)


@dataclass(frozen=True, slots=True)
class Seen:
    """Pairs as they stood together in a trace, each as likely as any other."""

    pairs: Sequence[tuple[int, int]]

    def __call__(self, dice: Random) -> tuple[int, int]:
        """One request's lengths."""
        return self.pairs[int(dice.random() * len(self.pairs))]
