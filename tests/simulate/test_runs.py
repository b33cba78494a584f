"""Runs in this process and in several: equal results, progress, interruption, errors."""

from __future__ import annotations

import os
import pickle
import signal
from pathlib import Path

import pytest

from gslb.config.scenario import check_scenario
from gslb.simulate.runs import Interrupt, Job, RunFailed, RunWorld, Trial, interruptible, run_all
from tests.support.small_world import broken, run

TEXT = """\
scenario: small
fleet:
  regions:
    eu: {location: "aws:eu-central-1", endpoints: 1}
    us: {location: "aws:us-east-1", endpoints: 1}
load: {kind: poisson, of_capacity: 0.5}
"""
JOBS = [Job(policy, seed) for policy in ("ttft", "nearest", "ordered") for seed in (4, 5)]


def trial_of(world: RunWorld = run) -> Trial:
    return Trial(check_scenario(TEXT, "s.yaml", {}, Path()), world)


def test_processes_come_to_the_same_as_this_one() -> None:
    told: dict[int, list[float]] = {}
    here = run_all(trial_of(), JOBS, 1, lambda job, share: told.setdefault(job, []).append(share), Interrupt())
    assert [(result.policy, result.seed) for result in here] == [(job.policy, job.seed) for job in JOBS]
    assert sorted(told) == list(range(6))
    assert all(shares == sorted(shares) and shares[-1] == 1.0 and len(shares) > 50 for shares in told.values())
    assert here[0].simulated_s == here[2].simulated_s != here[1].simulated_s
    assert here[4].notes == ["order eu,us"]
    there = run_all(trial_of(), JOBS, 2, lambda _job, _share: None, Interrupt())
    assert [(r.policy, r.seed, r.total.offered, r.simulated_s) for r in there] == [
        (r.policy, r.seed, r.total.offered, r.simulated_s) for r in here
    ]
    assert not any(result.is_partial for result in there)


def test_frozen_values_pass_between_processes() -> None:
    """Also where their classes are compiled, whose frozen ones cannot be filled in afterwards."""
    checked = check_scenario(TEXT, "s.yaml", {}, Path())
    assert pickle.loads(pickle.dumps(checked.endpoints)) == checked.endpoints
    by_place = {region.place: region.name for region in checked.regions}
    assert pickle.loads(pickle.dumps(by_place)) == by_place


def test_loads() -> None:
    jobs = [Job("ttft", 1, load) for load in (0.2, 0.4)]
    low, high = run_all(trial_of(), jobs, 1, lambda _job, _share: None, Interrupt())
    assert (low.load, high.load) == (0.2, 0.4)
    assert high.total.offered == pytest.approx(2 * low.total.offered, rel=0.15)


@pytest.mark.parametrize("processes", [1, 2])
def test_an_interrupt_returns_what_there_is(processes: int) -> None:
    interrupt = Interrupt()

    def on_progress(job: int, share: float) -> None:
        if job == 2 and share > 0.3:
            interrupt.is_set = True

    results = run_all(trial_of(), JOBS, processes, on_progress, interrupt)
    assert 2 <= len(results) < len(JOBS)
    assert [(result.policy, result.seed) for result in results[:2]] == [("ttft", 4), ("ttft", 5)]
    if processes == 1:
        assert results[2].is_partial
        assert 0 < results[2].total.offered < results[0].total.offered


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_in_the_world_is_told(processes: int) -> None:
    if processes == 1:
        with pytest.raises(ZeroDivisionError):
            run_all(trial_of(broken), JOBS, 1, lambda _job, _share: None, Interrupt())
        return
    with pytest.raises(RunFailed, match="ZeroDivisionError: the world ended"):
        run_all(trial_of(broken), JOBS, 2, lambda _job, _share: None, Interrupt())


def test_the_first_signal_is_noted_and_the_second_ends() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interruptible() as interrupt:
        assert not interrupt.is_set
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.is_set
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
