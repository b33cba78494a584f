"""How many requests an engine runs at once, learnt from where its queue begins (no vLLM metric tells it).

    None -> known, by two samples in a row with a queue: what ran then
    known -> trial of one more, after `_patience` samples with as many running and no queue
    trial -> known, one more, when that many ran; or back, when a queue shows first

A guess may be too low (prompts that came together, a cache that was full), so it must grow again; but while a
trial is one too many, a request waits in the engine's queue for what looked like a slot. So a trial that failed
doubles the patience for the next one, up to about a minute of samples.
"""

from __future__ import annotations

from typing import Final

from gslb.types import LoadSample

_MOST_PATIENCE: Final = 64


class LearntSlots:
    """One engine's. `slots` is what is believed, None until a queue was seen."""

    __slots__ = ("_full", "_is_trial", "_patience", "slots")

    def __init__(self) -> None:
        self.slots: int | None = None
        self._is_trial = False
        self._patience = 1
        self._full = 0
        """Samples since the last change in which all of `slots` ran without a queue."""

    def sampled(self, previous: LoadSample | None, sample: LoadSample) -> None:
        """The engine's gauges, and what they were the last time."""
        running = int(sample.running or 0.0)
        if not running:
            return  # a gateway may tell less than one, its engines' mean
        if sample.waiting:
            self._queue_seen(running, previous)
        elif self.slots is not None and running >= self.slots:
            self._ran_without_queue(running, self.slots)

    def _queue_seen(self, running: int, previous: LoadSample | None) -> None:
        if self._is_trial and self.slots is not None and running < self.slots:
            self.slots -= 1
            self._is_trial = False
            self._patience = min(2 * self._patience, _MOST_PATIENCE)
            self._full = 0
        elif previous is not None and previous.waiting and previous.running:
            self.slots = max(running, int(previous.running))
            self._is_trial = False
            self._full = 0

    def _ran_without_queue(self, running: int, slots: int) -> None:
        if running > slots or self._is_trial:
            self._patience = 1  # too low by more than chance: no need to be careful
            self._full = 0
        self._full += 1
        if running > slots or self._full >= self._patience:
            self.slots = running + 1
            self._is_trial = True
            self._full = 0
