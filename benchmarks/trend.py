"""Samples over time to a slope, and what is sampled: memory and open files of a process tree."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import rss_bytes, tree

_PROC = Path("/proc")


def slope(samples: Sequence[tuple[float, float]]) -> float:
    """Rise of y per unit of x over (x, y) samples: the line of least squares.

    Returns 0.0 for fewer than two different x.
    """
    if not samples:
        return 0.0
    middle_x = sum(x for x, _ in samples) / len(samples)
    middle_y = sum(y for _, y in samples) / len(samples)
    spread = sum((x - middle_x) ** 2 for x, _ in samples)
    if spread == 0.0:
        return 0.0
    return sum((x - middle_x) * (y - middle_y) for x, y in samples) / spread


def last_part(samples: Sequence[tuple[float, float]], share: float = 2 / 3) -> list[tuple[float, float]]:
    """The samples of the last `share` of the time they span: the first part is warming up."""
    if not samples:
        return []
    first_x, last_x = samples[0][0], samples[-1][0]
    start = last_x - (last_x - first_x) * share
    return [sample for sample in samples if sample[0] >= start]


def open_files(root: int) -> int:
    """File descriptors that a process tree holds."""
    total = 0
    for pid in tree(root):
        try:
            total += sum(1 for _ in (_PROC / str(pid) / "fd").iterdir())
        except OSError:
            continue  # it has ended meanwhile
    return total


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a process tree, `at_s` seconds after the first."""

    at_s: float
    rss_bytes: int
    files: int
    processes: int


class Sampler:
    """Looks at a process tree each `every_s` seconds, in a thread, from `start` to `stop`."""

    def __init__(self, root: int, every_s: float) -> None:
        self._root = root
        self._every_s = every_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.samples: list[Sample] = []

    def start(self) -> None:
        """Take the first sample now."""
        self._thread.start()

    def stop(self) -> None:
        """Take no more."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        started_s = time.monotonic()
        while True:
            at_s = time.monotonic() - started_s
            self.samples.append(Sample(at_s, rss_bytes(self._root), open_files(self._root), len(tree(self._root))))
            if self._ended.wait(self._every_s):
                return

    def rss_slope(self) -> float:
        """Bytes a second over the last two thirds."""
        return slope(last_part([(sample.at_s, float(sample.rss_bytes)) for sample in self.samples]))

    def files_slope(self) -> float:
        """Files a second over the last two thirds."""
        return slope(last_part([(sample.at_s, float(sample.files)) for sample in self.samples]))
