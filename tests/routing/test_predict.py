"""The milliseconds behind a choice."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gslb.routing.predict import FRESH_S, Option, in_system, predict
from gslb.routing.view import FleetView
from tests.support.builders import eject, endpoint, find, fleet, occupy, sample

KEY = "eu/1"
STALE_AFTER_S = 10.0


def look(view: FleetView, tokens: int = 0, now_s: float = 0.0) -> Option:
    return predict(find(view.snapshot, KEY), 40.0, 30.0, tokens, now_s, STALE_AFTER_S)


def one(**members: Any) -> FleetView:
    return fleet([endpoint(**members)])


def test_an_idle_endpoint_costs_network_prefill_and_tax() -> None:
    option = look(one(prefill_ms_per_token=0.1), tokens=2000)
    assert (option.network_ms, option.queue_ms, option.prefill_ms, option.tax_ms) == (40.0, 0.0, 200.0, 30.0)
    assert option.total_ms == 270.0
    assert option.predicted_ms == 240.0
    assert option.has_room
    assert not option.is_capped


def test_below_the_slots_own_pending_prompts_are_the_queue() -> None:
    view = one(capacity=8, prefill_ms_per_token=0.1)
    occupy(view, KEY, 3, pending_tokens=1000)
    occupy(view, KEY, 4)
    assert look(view).queue_ms == pytest.approx(180.0), "half done, or a little less"
    assert look(view).has_room


@pytest.mark.parametrize(
    ("now_s", "ahead"),
    [
        (5.0, 3000.0), (4.0, 3000.0), (5.1, 2000.0), (5.25, 500.0), (5.29, 100.0), (5.31, 3000.0), (60.0, 3000.0),
    ],
)  # fmt: skip
def test_pending_prompts_are_worked_off_at_the_usual_pace_and_come_back_when_overdue(
    now_s: float, ahead: float
) -> None:
    """An engine that hangs must not look idle: of what is overdue nobody knows how much is left."""
    view = one(capacity=8, prefill_ms_per_token=0.1)
    occupy(view, KEY, 3, pending_tokens=1000, at_s=5.0)
    option = look(view, now_s=now_s)
    assert option.ahead == pytest.approx(ahead, abs=1e-6)
    assert option.queue_ms == pytest.approx(0.06 * ahead, abs=1e-6)


def test_a_step_under_way_is_no_progress() -> None:
    """The first of them waits for it as well, and may wait longer than usual."""
    view = one(capacity=8, prefill_ms_per_token=0.1, step_ms=40.0)
    occupy(view, KEY, 1, pending_tokens=1000, at_s=5.0)
    assert look(view, now_s=5.12).ahead == pytest.approx(1000.0)
    assert look(view, now_s=5.17).ahead == pytest.approx(500.0)


def test_taxed_work_costs_the_more_the_fuller_the_endpoint_is() -> None:
    view = one(capacity=8, prefill_ms_per_token=0.1)

    def tax_ms() -> float:
        return predict(find(view.snapshot, KEY), 40.0, 30.0, 2000, 0.0, STALE_AFTER_S, taxed_work=1000).tax_ms

    assert tax_ms() == 30.0
    occupy(view, KEY, 4)
    assert tax_ms() == pytest.approx(30.0 + 100.0 / 4)
    occupy(view, KEY, 6)
    assert tax_ms() == pytest.approx(130.0), "no more than its own time"


def test_at_the_slots_it_also_waits_for_one_to_come_free() -> None:
    view = one(capacity=4, slot_hold_ms=4000.0)
    occupy(view, KEY, 4)
    option = look(view)
    assert not option.has_room
    assert option.is_capped
    assert option.queue_ms == 1000.0, "four slots, each held 4 s: one comes free every second"
    occupy(view, KEY, 2)
    assert look(view).queue_ms == 3000.0


def test_others_fill_slots_but_not_this_edges_cap() -> None:
    view = one(capacity=4)
    view.load_sampled(KEY, sample(running=4))
    option = look(view)
    assert not option.has_room
    assert not option.is_capped


def test_unknown_slots_are_never_full() -> None:
    view = one()
    occupy(view, KEY, 1000)
    assert look(view).has_room


def test_a_full_cache_with_a_queue_is_full_while_the_sample_counts() -> None:
    view = one(slot_hold_ms=3900.0)
    view.load_sampled(KEY, sample(running=9, waiting=1, kv_usage=0.95))
    assert not look(view).has_room
    assert look(view).queue_ms == 390.0
    assert not look(view, now_s=STALE_AFTER_S).has_room
    assert look(view, now_s=STALE_AFTER_S + 0.1).has_room


def test_a_probing_endpoint_has_room_for_one() -> None:
    view = one()
    eject(view, KEY)
    view.tick(10.0)
    assert look(view).has_room
    occupy(view, KEY, 1)
    assert not look(view).has_room


@pytest.mark.parametrize(
    ("age_s", "others"),
    [(0.0, 8.0), (FRESH_S, 8.0), (6.0, 7.0), (8.0, 6.5), (10.0, 6.0), (60.0, 3.0), (110.0, 0.0), (1e9, 0.0)],
)
def test_others_give_way_to_what_is_usual_and_own_do_not(age_s: float, others: float) -> None:
    view = one()
    view.load_sampled(KEY, sample(98.0, running=0))
    view._records[KEY].usual_others = (6.0 - 0.05 * 8.0) / 0.95  # to which the next sample adds its share
    view.load_sampled(KEY, sample(100.0, running=8))
    occupy(view, KEY, 3)
    assert in_system(find(view.snapshot, KEY), 100.0 + age_s, STALE_AFTER_S) == pytest.approx(3 + others)


def test_a_stale_limit_below_the_fresh_one_divides_by_nothing() -> None:
    view = one()
    view.load_sampled(KEY, sample(0.0, running=8))
    assert in_system(find(view.snapshot, KEY), 3.0, 1.0) == pytest.approx(6.4)


@given(st.integers(0, 80), st.integers(0, 80), st.integers(0, 100_000), st.floats(0.0, 20.0))
@settings(deadline=None)
def test_more_load_never_looks_quicker(own: int, others: int, tokens: int, now_s: float) -> None:
    view = one(capacity=32)
    view.load_sampled(KEY, sample(running=others))
    occupy(view, KEY, own)
    before = look(view, tokens, now_s)
    occupy(view, KEY, 1, pending_tokens=100)
    after = look(view, tokens, now_s)
    assert after.total_ms > before.total_ms >= 70.0
    assert after.has_room <= before.has_room
