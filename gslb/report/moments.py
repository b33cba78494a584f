"""Timelines of several seeds as one, in slots wide enough to draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gslb.report.scale import time_step_s
from gslb.sim.result import RunResult

RATES = ("offered", "good", "late", "shed", "failed")


@dataclass(slots=True)
class Slot:
    """What happened from `start_s` to `end_s`: counts per simulated second and gauges, both means over seeds."""

    start_s: float
    end_s: float
    offered: float = 0.0
    good: float = 0.0
    late: float = 0.0
    """Completed, but not within the budget."""
    shed: float = 0.0
    failed: float = 0.0
    held: float = 0.0
    running: dict[str, float] = field(default_factory=dict)

    @property
    def middle_s(self) -> float:
        """Where the slot is drawn."""
        return (self.start_s + self.end_s) / 2

    @property
    def ended(self) -> float:
        """All that came to an end, whatever its end."""
        return self.good + self.late + self.shed + self.failed

    @property
    def goodput(self) -> float | None:
        """Share within budget of what ended in the slot; None when nothing did."""
        return self.good / self.ended if self.ended else None


def slots(runs: Sequence[RunResult], duration_s: float, about: int = 160) -> list[Slot]:
    """At most `about` slots from 0 to `duration_s`. A run that ended early counts only as far as it got."""
    step = time_step_s(duration_s, about)
    number = max(1, -int(-duration_s // step))
    found = [Slot(index * step, min((index + 1) * step, duration_s)) for index in range(number)]
    covered, gauged = [0.0] * number, [0] * number
    for run in runs:
        end_s = max(run.simulated_s, *(moment.at_s + 1 for moment in run.timeline), 0.0)
        for index, slot in enumerate(found):
            covered[index] += max(0.0, min(end_s, slot.end_s) - slot.start_s)
        for moment in run.timeline:
            index = min(moment.at_s // step, number - 1)
            slot = found[index]
            gauged[index] += 1
            slot.offered += moment.offered
            slot.good += moment.good
            slot.late += moment.completed - moment.good
            slot.shed += moment.shed
            slot.failed += moment.failed
            slot.held += moment.held_now
            for region, running in moment.running.items():
                slot.running[region] = slot.running.get(region, 0.0) + running
    for slot, seconds, moments in zip(found, covered, gauged, strict=True):
        _divide(slot, seconds, moments)
    return [slot for slot, seconds in zip(found, covered, strict=True) if seconds > 0]


def coarser(told: Sequence[Slot], about: int) -> list[Slot]:
    """The same in at most `about` longer slots, without what ran in each region."""
    by = max(1, -(-len(told) // about))
    found = []
    for start in range(0, len(told), by):
        part = told[start : start + by]
        span_s = [slot.end_s - slot.start_s for slot in part]
        joined = Slot(part[0].start_s, part[-1].end_s)
        for name in (*RATES, "held"):
            weighed = sum(getattr(slot, name) * seconds for slot, seconds in zip(part, span_s, strict=True))
            setattr(joined, name, weighed / sum(span_s))
        found.append(joined)
    return found


def _divide(slot: Slot, seconds: float, moments: int) -> None:
    for name in RATES:
        setattr(slot, name, getattr(slot, name) / seconds if seconds else 0.0)
    slot.held /= max(moments, 1)
    slot.running = {region: running / max(moments, 1) for region, running in slot.running.items()}
