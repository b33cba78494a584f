"""Figures to medians, ratios and lines."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from benchmarks.measure import Figures, Plan
from benchmarks.processes import stat_fields
from benchmarks.report import as_json, ratios, spread, summary, tables, verdicts
from benchmarks.upstream import EVENT_BYTES, FIRST_EVENT, JSON_BYTES, LAST_EVENT, TOKEN_EVENT, whole_answer

_ONE = Figures(
    request_us=20.0, stream_us=500.0, event_us=5.0, paced_event_us=20.0, idle_rss_mb=14.0, stream_rss_kb=10.0,
    idle_ms_per_s=0.0, events_per_read=1.0, requests=10, events=100, errors=0, first_error="",
)  # fmt: skip
_DECISION_US = {"idle": 10.0, "busy": 26.0}
_ROUNDS = {
    "gslb": [replace(_ONE, request_us=value) for value in (60.0, 50.0, 90.0)],
    "nginx": [replace(_ONE, request_us=value) for value in (20.0, 25.0, 22.5)],
}


def test_spread_is_median_least_greatest() -> None:
    assert spread([3.0, 1.0, 10.0]) == {"median": 3.0, "min": 1.0, "max": 10.0}


def test_ratios_are_of_medians_and_within_rounds() -> None:
    found = ratios(_ROUNDS)["gslb"]["request_us"]
    assert found["median"] == pytest.approx(60.0 / 22.5)
    assert (found["min"], found["max"]) == (2.0, 4.0)


def test_what_is_zero_at_the_reference_has_no_ratio() -> None:
    assert "idle_ms_per_s" not in ratios(_ROUNDS)["gslb"]


def test_without_the_reference_there_are_no_ratios() -> None:
    alone = {"gslb": _ROUNDS["gslb"]}
    assert ratios(alone) == {}
    assert len(verdicts(alone, _DECISION_US)) == 1
    assert summary(alone)["gslb"]["request_us"]["median"] == 60.0


def test_verdicts_name_the_targets() -> None:
    first, *_, last = verdicts(_ROUNDS, _DECISION_US)
    assert first == "request_us: 2.67 x nginx, target at most 3.5: met"
    assert last == "decision, us: idle 10, busy 26; target at most 25 (busy): missed"


def test_tables_show_every_proxy() -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    for table in tables(_ROUNDS):
        console.print(table)
    text = console.export_text()
    assert text.count("gslb") == 2
    assert "50.0-90.0" in text
    assert "x 2.67" in text


def test_json_holds_plan_rounds_and_ratios() -> None:
    told = as_json(_ROUNDS, Plan(), {"errors": {}})
    assert told["plan"]["bursts"] == 400
    assert told["rounds"]["nginx"][1]["request_us"] == 25.0
    assert set(told) == {"plan", "rounds", "summary", "ratio_to_nginx", "errors"}


def test_a_process_name_with_brackets_and_blanks_does_not_shift_fields() -> None:
    assert stat_fields("12 (a) b (c)) S 1 2 3")[:3] == ["S", "1", "2"]


def test_the_stand_in_answers_in_fixed_sizes() -> None:
    assert {len(event) for event in (FIRST_EVENT, TOKEN_EVENT, LAST_EVENT)} == {EVENT_BYTES}
    assert len(whole_answer()) == JSON_BYTES
