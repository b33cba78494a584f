"""Slots are learnt where the queue begins, and hardly ever tried beyond it again."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gslb.routing.slots import LearntSlots
from gslb.types import LoadSample


def gauges(at_s: float, asked: int, true_slots: int) -> LoadSample:
    """What an engine of `true_slots` shows with so many requests in it."""
    return LoadSample(at_s, running=float(min(asked, true_slots)), waiting=float(max(0, asked - true_slots)))


def play(true_slots: int, seconds: int, asked: Callable[[LearntSlots], int]) -> list[int | None]:
    """A sample a second while whoever asks sends as many as the slots say there are."""
    learnt, previous, believed = LearntSlots(), None, []
    for second in range(seconds):
        sample = gauges(float(second), asked(learnt), true_slots)
        learnt.sampled(previous, sample)
        previous = sample
        believed.append(learnt.slots)
    return believed


@given(st.integers(2, 300), st.integers(1, 40))
def test_an_edge_that_fills_all_slots_seldom_tries_one_too_many(true_slots: int, queue: int) -> None:
    def asked(learnt: LearntSlots) -> int:
        return true_slots + queue if learnt.slots is None else learnt.slots

    believed = play(true_slots, 600, asked)
    known = [slots for slots in believed[2:] if slots is not None]
    assert len(known) >= 597
    assert set(known) <= {true_slots, true_slots + 1}
    assert sum(slots > true_slots for slots in known[120:]) <= 10, "about once a minute"


@given(st.integers(1, 60), st.integers(1, 60))
def test_too_low_a_guess_is_outgrown(guess: int, missing: int) -> None:
    learnt, previous = LearntSlots(), None
    for at_s in (0.0, 1.0):
        sample = LoadSample(at_s, running=float(guess), waiting=1.0)
        learnt.sampled(previous, sample)
        previous = sample
    assert learnt.slots == guess
    for second in range(2, 3 * missing + 10):
        assert learnt.slots is not None
        sample = gauges(float(second), learnt.slots, guess + missing)
        learnt.sampled(previous, sample)
        previous = sample
    assert learnt.slots in (guess + missing, guess + missing + 1)


def test_a_failed_trial_doubles_the_patience() -> None:
    believed = play(4, 80, lambda learnt: 9 if learnt.slots is None else learnt.slots)
    trials = [second for second, slots in enumerate(believed) if slots == 5]
    assert [later - earlier for earlier, later in pairwise(trials)] == [3, 5, 9, 17, 33]


def test_less_than_one_running_is_no_slot_count() -> None:
    learnt, sample = LearntSlots(), LoadSample(0.0, running=0.5, waiting=1.0)
    learnt.sampled(sample, sample)
    assert learnt.slots is None, "a gateway's mean over engines that hardly run anything"
