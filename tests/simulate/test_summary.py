"""What results come to: the document for machines and the tables for people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gslb.config.scenario import check_scenario
from gslb.sim.result import RunResult, Tally
from gslb.simulate.runs import Interrupt, Job, Trial, run_all
from gslb.simulate.summary import as_document
from gslb.simulate.tables import print_document
from tests.support.small_world import run

TEXT = """\
scenario: small
fleet:
  regions:
    eu: {location: "aws:eu-central-1", endpoints: 3}
    us: {location: "aws:us-east-1", endpoints: 1}
load: {kind: poisson, rate: 5}
"""


def results_of() -> tuple[Trial, list[RunResult]]:
    trial = Trial(check_scenario(TEXT, "s.yaml", {}, Path()), run)
    jobs = [Job(policy, seed) for policy in ("ttft", "nearest") for seed in (1, 2, 3)]
    return trial, run_all(trial, jobs, 1, lambda _job, _share: None, Interrupt())


def test_the_document() -> None:
    trial, results = results_of()
    for result, good in zip(results[:3], (0.9, 0.8, 1.0), strict=True):
        result.total.good = round(result.total.offered * good)
        result.total.spilled = 10
    told = json.loads(json.dumps(as_document(trial.setting(), results, 6)))
    assert (told["scenario"], told["seeds"], told["synthetic_geography"]) == ("small", [1, 2, 3], False)
    assert (told["is_partial"], told["runs"], told["runs_wanted"], told["load"]) == (False, 6, 6, None)
    ttft = told["policies"]["ttft"]
    offered = sum(result.total.offered for result in results[:3])
    assert (ttft["offered"], ttft["completed"], ttft["shed"], ttft["failed"]) == (offered, offered, 0, 0)
    assert ttft["goodput"] == pytest.approx(0.9, abs=0.001)
    assert ttft["goodput_ci95"] == pytest.approx(4.303 * 0.1 / 3**0.5, rel=0.01)
    assert ttft["spill_share"] == pytest.approx(30 / offered)
    assert (ttft["cross_region_share"], ttft["prefix_hit_rate"], ttft["cost"]) == (0, 0, 2.0)
    assert ttft["ttft_ms"] == {name: pytest.approx(100, rel=0.01) for name in ("p50", "p90", "p99")}
    assert told["policies"]["nearest"]["ttft_ms"]["p50"] == pytest.approx(300, rel=0.01)
    assert ttft["busy_share"] == 0.5
    assert ttft["reasons"] == {"home": 3}
    assert set(ttft["by_region"]) == {"eu", "us"}
    assert sum(part["home"]["offered"] for part in ttft["by_region"].values()) == offered
    assert ttft["flows"][0]["home"] == ttft["flows"][0]["served"] == "eu"


def test_a_document_of_nothing() -> None:
    trial, results = results_of()
    told = as_document(trial.setting(), [], 6)
    assert (told["policies"], told["is_partial"]) == ({}, True)
    nothing = results[0]
    nothing.total, nothing.by_home, nothing.by_served, nothing.decisions = Tally(), {}, {}, 0
    told = as_document(trial.setting(), [nothing], 1)
    ttft = told["policies"]["ttft"]
    assert (ttft["goodput"], ttft["goodput_ci95"], ttft["decision_us"], ttft["spill_share"]) == (
        1.0,
        None,
        None,
        None,
    )
    assert "100" not in shown(told), "nobody has met a budget"


def shown(document: dict[str, Any], with_regions: bool = True, width: int = 80) -> str:
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        print_document(console, document, with_regions=with_regions)
    return capture.get()


def test_the_tables_fit_into_80_columns() -> None:
    trial, results = results_of()
    for result in results:
        for tally in (result.total, *result.by_home.values(), *result.by_served.values()):
            tally.offered = tally.completed = tally.good = 123_456
            tally.shed = tally.failed = 1234
            tally.prompt_tokens = tally.cached_tokens = 10
            tally.prediction_error.add(123.0)
            tally.held_time.add(12_345.0)
            tally.spilled = tally.crossed = 123_456
        result.cost, result.decisions, result.decision_s = 1234.5, 10, 0.01
        result.policy = result.policy.replace("nearest", "round_robin")
    text = shown(as_document(trial.setting(), results, 6))
    assert "…" not in text
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "small: 3 seeds, 120 s each (the first 20 s not counted)" in text
    assert "eu" in text
    assert "100.00 ±0.00" in text


def test_what_a_reader_must_know_is_said() -> None:
    trial, results = results_of()
    document = as_document(trial.setting(), results[:2], 6) | {"synthetic_geography": True, "load": 0.7}
    text = shown(document, with_regions=False)
    assert "load 0.7 of capacity" in text
    assert "Who asks from where was made up" in text
    assert "Interrupted: 2 of 6 runs" in text
