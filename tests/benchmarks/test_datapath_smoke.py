"""The data path benchmark on gslb alone and small: does it measure what it says? How fast is not asked here."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from benchmarks.load import CLIENT_ADDRESSES
from benchmarks.measure import EVENTS_PER_STREAM, STEPS, Plan, bench, log_evidence, measure
from benchmarks.processes import BenchmarkError, Neighbours, Talker, cpu_ns, rss_bytes, running, tree
from benchmarks.proxies import find_proxies

_PARENT_AND_CHILD = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)"])
"""

_PLAN = Plan(
    requests=40,
    streams=8,
    connections=4,
    events_per_s=50.0,
    paced_s=0.2,
    warm_up=len(CLIENT_ADDRESSES),
    settle_s=0.05,
)


def test_gslb_is_measured_with_everything_on_and_nothing_fails(tmp_path: Path) -> None:
    (*_, gslb), missing = find_proxies([])  # the last is plain Python, whether compiled rooms exist or not
    steps: list[str] = []
    with bench(tmp_path) as shared:
        assert len(set(shared.upstreams)) == 12
        figures = measure(gslb, _PLAN, shared, "1", steps.append)
    assert missing == []
    assert (figures.errors, figures.first_error) == (0, "")
    assert steps == list(STEPS)
    streams = _PLAN.connections + _PLAN.bursts + _PLAN.streams
    assert figures.requests == _PLAN.warm_up + _PLAN.requests + streams
    assert figures.events > (_PLAN.connections + _PLAN.bursts) * EVENTS_PER_STREAM
    assert min(figures.request_us, figures.stream_us, figures.idle_rss_mb) > 0
    evidence = log_evidence(tmp_path / f"{gslb.name}-1")
    assert evidence["lines"] == figures.requests + 1  # the first request only waits for the start
    assert evidence["not_ok"] == 0
    assert evidence["tenants"] == ["bench"]
    assert {"DE", "US", "SG"} & set(evidence["countries"])


def test_a_process_tree_is_watched_and_stopped(tmp_path: Path) -> None:
    log = tmp_path / "log"
    cores = os.sched_getaffinity(0)
    with running(
        [sys.executable, "-c", _PARENT_AND_CHILD], on_cores=cores, log=log, directory=tmp_path, talks=True
    ) as process:
        assert Talker(process, log).hear(10.0) == 1
        members = tree(process.pid)
        assert len(members) == 2
        assert cpu_ns(process.pid) > 0
        assert rss_bytes(process.pid) > 1e6
        os.kill(members[1], 15)
    assert process.returncode is not None


def test_neighbours_do_not_count_our_own_work() -> None:
    neighbours = Neighbours()
    until_s = time.monotonic() + 0.3
    while time.monotonic() < until_s:
        pass
    assert 0 <= neighbours.share() <= 1.1


def test_what_cannot_start_says_so(tmp_path: Path) -> None:
    absent = [str(tmp_path / "absent")]
    with (
        pytest.raises(BenchmarkError, match="cannot be started"),
        running(absent, on_cores=os.sched_getaffinity(0), log=tmp_path / "log", directory=tmp_path),
    ):
        pass
