"""Timelines of several seeds as one."""

from __future__ import annotations

from math import isclose

from gslb.report.moments import Slot, coarser, slots
from gslb.sim.result import Moment
from tests.report.built import run, setting


def test_rates_are_per_second_and_mean_over_seeds() -> None:
    one, two = run(seed=1, requests=0), run(seed=2, requests=0)
    one.timeline = [
        Moment(s, offered=4, completed=3, good=2, shed=1, held_now=6, running={"a": 10}) for s in range(300)
    ]
    two.timeline = [
        Moment(s, offered=6, completed=5, good=4, shed=1, held_now=2, running={"a": 20}) for s in range(300)
    ]
    told = slots([one, two], 300.0, about=60)
    assert len(told) == 60
    for slot in told:
        assert (slot.offered, slot.good, slot.late, slot.shed, slot.held) == (5.0, 3.0, 1.0, 1.0, 4.0)
        assert slot.running == {"a": 15.0}
        assert slot.goodput == 0.6


def test_a_run_that_ended_early_counts_as_far_as_it_got() -> None:
    whole, part = run(seed=1, requests=0), run(seed=2, requests=0, is_partial=True)
    whole.timeline = [Moment(second, offered=4) for second in range(300)]
    part.timeline = [Moment(second, offered=8) for second in range(150)]
    told = slots([whole, part], 300.0, about=10)
    assert [slot.offered for slot in told] == [6.0] * 5 + [4.0] * 5


def test_seconds_without_an_entry_count_as_empty() -> None:
    told = run(requests=0)
    told.timeline = [Moment(second, offered=10) for second in range(0, 300, 10)]
    assert all(isclose(slot.offered, 1.0) for slot in slots([told], 300.0, about=10))


def test_what_ends_after_the_last_arrival_is_shown() -> None:
    told = run(requests=0)
    told.timeline = [Moment(310, completed=3, good=3)]
    found = slots([told], 311.0, about=400)
    assert found[-1].good == 3.0
    assert found[0].goodput is None


def test_coarser_slots_keep_the_sums() -> None:
    fine = slots([run(requests=900)], setting().duration_s)
    wide = coarser(fine, 24)
    assert len(wide) <= 24
    assert isclose(_total(fine), _total(wide))
    assert wide[0].start_s == 0.0
    assert wide[-1].end_s == fine[-1].end_s
    assert coarser([], 24) == []


def _total(told: list[Slot]) -> float:
    return sum(slot.offered * (slot.end_s - slot.start_s) for slot in told)
