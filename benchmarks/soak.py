"""gslb for long among failing upstreams, leaving clients and reloads: does it lose, leak or mix anything up?

`python -m benchmarks.soak --minutes 30`; benchmarks/README.md tells what is claimed and how it is judged.
"""

from __future__ import annotations

import copy
import os
import signal
import sys
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.claims import Claim, at_most, exit_code, none_of, show, stop_on_sigterm, write_json
from benchmarks.edge import Counts, RunningEdge, edge_config, edge_cores, helper, running_edge
from benchmarks.processes import BenchmarkError, Neighbours, Talker, run_directory
from benchmarks.proxies import KEY, raise_file_limit
from benchmarks.soak_clients import KINDS
from benchmarks.soak_faults import Incident, Window, is_explained, refusing
from benchmarks.trend import Sampler, open_files

_ENDPOINTS = 12
_ATTEMPTS = 3
_RELOAD_S = 10.0
_SAMPLE_S = 5.0
_SETTLE_S = 20.0
_REST_S = 6.0
"""Longer than `timeouts.upstream_idle` and the housekeeping that enforces it."""
_JUDGED_FROM_S = 1200.0
"""Slopes of a shorter run are those of its warming up, and of chance in how many connections are open."""
_RSS_MB_PER_10_MIN = 2.0
_FILES_PER_10_MIN = 10.0
_FILES_AT_REST = 2 * _ENDPOINTS
"""Probes and scrapes keep up to two connections warm at each endpoint; at the first look some may be missing."""
_SHOWN_INCIDENTS = 20


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how hard."""

    minutes: float
    workers: int
    connections: int
    pause_s: float
    break_share: float
    leave_share: float
    seed: int


@dataclass(slots=True)
class Story:
    """What happened."""

    counts: Counter[str] = field(default_factory=Counter)
    incidents: list[Incident] = field(default_factory=list)
    reloads: int = 0
    explained: Counter[str] = field(default_factory=Counter)
    unexplained: list[Incident] = field(default_factory=list)
    upstream: dict[str, Any] = field(default_factory=dict)
    files_at_rest: tuple[int, int] = (0, 0)
    most_open: int = 0
    is_at_rest: bool = False


def reloaded(config: dict[str, Any], number: int) -> dict[str, Any]:
    """The configuration after the `number`th reload: by turns another timer, another weight, an endpoint gone."""
    changed = copy.deepcopy(config)
    match number % 4:
        case 1:
            changed["timeouts"] = {"client_idle": "80s"}
        case 2:
            changed["routing"]["near_equal"] = "11ms"
        case 3:
            changed["regions"]["ap"]["endpoints"].pop()
    return changed


def soak_config(upstreams: list[int], run: Path, workers: int) -> dict[str, Any]:
    """What the soak runs with: retries are bounded by attempts alone, so that every failure can be judged."""
    failover = {"max_attempts": _ATTEMPTS, "retry_budget": {"share": 1.0, "floor": 1000}}
    return edge_config(
        upstreams, run, workers,
        routing={"failover": failover, "near_equal": "12ms"}, tenants={"bench": {"key_env": "GSLB_BENCH_KEY"}},
    )  # fmt: skip


def log_counts(log: Path) -> dict[str, int]:
    """Tracebacks and error lines in gslb's standard error."""
    lines = log.read_text(errors="replace").splitlines()
    return {
        "tracebacks": sum("Traceback (most recent call last)" in line for line in lines),
        "error_lines": sum(" ERROR " in line or " CRITICAL " in line for line in lines),
    }


def _mix(edge: RunningEdge, clients: Talker, plan: Plan, config: dict[str, Any], story: Story) -> None:
    """Load and reloads until the time is over."""
    until_s = time.monotonic() + plan.minutes * 60
    clients.ask(
        do="start", port=edge.port, connections=plan.connections, key=KEY, seed=plan.seed, pause_s=plan.pause_s,
        leave_share=plan.leave_share,
    )  # fmt: skip
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("soaking", total=plan.minutes * 60)
        while (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(_RELOAD_S, left_s))
            left_s -= _RELOAD_S
            if edge.process.poll() is not None:
                raise BenchmarkError(f"gslb ended with {edge.process.returncode}: {edge.log.read_text()[-800:]}")
            _hear(clients.ask(do="look"), story)
            story.most_open = max(story.most_open, edge.counts().open_exchanges)
            if left_s > 0:  # the last one is the run's end, and puts everything back
                story.reloads += 1
                edge.rewrite(reloaded(config, story.reloads))
                os.kill(edge.process.pid, signal.SIGHUP)
            bad = sum(story.counts[kind] for kind in KINDS)
            progress.update(
                task, completed=plan.minutes * 60 - max(left_s, 0),
                description=f"{story.counts['requests']:,} requests, {bad:,} of them hit by faults",
            )  # fmt: skip
    _hear(clients.ask(do="stop"), story)


def _hear(told: dict[str, Any], story: Story) -> None:
    story.counts = Counter(told["counts"])
    story.incidents += [Incident(**incident) for incident in told["incidents"]]


def _judge(story: Story, upstream: Talker) -> None:
    """Match every incident with the faults that its request met."""
    faults = upstream.ask(do="faults", seeds=[incident.seed for incident in story.incidents])
    windows = [Window(int(endpoint), start, end) for endpoint, start, end in upstream.ask(do="windows")]
    for incident in story.incidents:
        fates = {int(endpoint): fault for endpoint, fault in faults[str(incident.seed)].items()}
        refused = refusing(windows, incident.from_s, incident.until_s)
        if is_explained(incident, fates, refused, _ATTEMPTS):
            story.explained[incident.kind] += 1
        else:
            story.unexplained.append(incident)


def run_soak(plan: Plan, run: Path) -> tuple[Story, Counts, Counts, Sampler, dict[str, int]]:
    """The whole soak: (story, counts before, counts at the end, samples, what the log holds)."""
    on_cores, others = edge_cores(plan.workers)
    story = Story()
    with ExitStack() as stack:
        arguments = (str(_ENDPOINTS), str(plan.seed), str(plan.break_share))
        upstream_process = stack.enter_context(helper("soak_upstream", *arguments, run=run, on_cores=others))
        upstream = Talker(upstream_process, run / "helpers.log")
        client_process = stack.enter_context(helper("soak_clients", run=run, on_cores=others))
        clients = Talker(client_process, run / "helpers.log")
        config = soak_config(upstream.hear(), run, plan.workers)
        edge = stack.enter_context(running_edge(config, run, on_cores))
        time.sleep(_REST_S)
        before, files_before = edge.counts(), open_files(edge.process.pid)
        sampler = Sampler(edge.process.pid, _SAMPLE_S)
        sampler.start()
        try:
            _mix(edge, clients, plan, config, story)
        finally:
            sampler.stop()
        upstream.ask(do="calm")
        edge.rewrite(config)
        os.kill(edge.process.pid, signal.SIGHUP)
        after, story.is_at_rest = edge.wait_for(_is_at_rest, _SETTLE_S)
        time.sleep(_REST_S)
        story.files_at_rest = files_before, open_files(edge.process.pid)
        after = edge.counts()
        story.upstream = upstream.ask(do="tell")
        _judge(story, upstream)
    return story, before, after, sampler, log_counts(run / "gslb.log")


def _is_at_rest(counts: Counts) -> bool:
    return not any(counts.under_way) and counts.open_connections == 0


def claims_of(
    story: Story, before: Counts, after: Counts, sampler: Sampler, logged: dict[str, int]
) -> list[Claim]:
    """What must hold."""
    unexplained = Counter(incident.kind for incident in story.unexplained)
    requests, left = story.counts["requests"], story.counts["left"] + story.counts["hung"]
    ended = after.requests_ended - before.requests_ended
    generations = after.generation - before.generation
    rest_before, rest_after = story.files_at_rest
    return [
        none_of("failed before content, another endpoint was well", unexplained["failed"]),
        none_of("cut after content, no upstream had cut it", unexplained["cut"]),
        none_of("payload mismatches", unexplained["wrong"]),
        none_of("dropped without an answer", unexplained["dropped"]),
        none_of("hung", unexplained["hung"]),
        Claim("at rest: exchanges, connections, in flight (status and metrics)",
              f"{after.open_exchanges}, {after.open_connections}, {after.in_flight}; "
              f"{after.metrics_open_exchanges}, {after.metrics_in_flight}", "0, 0, 0; 0, 0",
              story.is_at_rest and _is_at_rest(after)),
        none_of("answers an upstream still gives at the end", story.upstream["under_way"]),
        # A client that leaves at once may be gone before gslb has read its request.
        Claim("requests in gslb's counters", f"{ended:,}", f"{requests - left:,} to {requests:,}",
              requests - left <= ended <= requests),
        Claim("reloads in force, refused", f"{generations}, {after.reload_failures}",
              f"{story.reloads + 1} or more, 0",
              generations >= story.reloads + 1 and not after.reload_failures),
        none_of("tracebacks", logged["tracebacks"]),
        Claim("open files at rest: before, after", f"{rest_before}, {rest_after}", f"+ {_FILES_AT_REST} at most",
              rest_after <= rest_before + _FILES_AT_REST),
        *_slopes(sampler),
    ]  # fmt: skip


def _slopes(sampler: Sampler) -> list[Claim]:
    """Memory and files must not grow: judged where the run is long enough to tell."""
    found = [
        at_most("RSS slope in 10 minutes", sampler.rss_slope() * 600 / 1e6, _RSS_MB_PER_10_MIN, "MB"),
        at_most("open files' slope in 10 minutes", sampler.files_slope() * 600, _FILES_PER_10_MIN, "files"),
    ]
    if sampler.samples[-1].at_s >= _JUDGED_FROM_S - 2 * _SAMPLE_S:
        return found
    return [
        Claim(one.name, one.value, f"{one.limit}, from {_JUDGED_FROM_S / 60:g} minutes on", None) for one in found
    ]


def _figures(story: Story, sampler: Sampler, logged: dict[str, int], others: float) -> dict[str, str]:
    counts, first, last = story.counts, sampler.samples[0], sampler.samples[-1]
    injected = story.upstream["injected"]
    kinds = ", ".join(f"{name} {count:,}" for name, count in sorted(injected.items()))
    spells = f"{story.upstream.get('refusals', 0)} refusals, {story.upstream.get('sick_spells', 0)} ill"
    return {
        "requests": f"{counts['requests']:,} over {counts['connections']:,} connections",
        "whole and right": f"{counts['json']:,} JSON, {counts['streams']:,} streams",
        "clients that left": f"{counts['left']:,}",
        "failed: every allowed attempt met a fault": f"{story.explained['failed']:,}",
        "cut by an upstream after content": f"{story.explained['cut']:,}",
        "faults injected": f"{sum(injected.values()):,}: {kinds}; spells: {spells}",
        "reloads": f"{story.reloads}",
        "most requests open": f"{story.most_open}",
        "processes, RSS, files at first": f"{first.processes}, {first.rss_bytes / 1e6:.1f} MB, {first.files}",
        "processes, RSS, files at last": f"{last.processes}, {last.rss_bytes / 1e6:.1f} MB, {last.files}",
        "slopes over the last two thirds": (
            f"{sampler.rss_slope() * 3600 / 1e6:+.2f} MB/h, {sampler.files_slope() * 3600:+.1f} files/h"
        ),
        "error lines in gslb's log": f"{logged['error_lines']}",
        "used by others of this machine": f"{others:.0%}",
    }


@click.command()
@click.option("--minutes", type=click.FloatRange(0.2), default=30.0, show_default=True)
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True)
@click.option("--connections", type=click.IntRange(1), default=64, show_default=True)
@click.option("--pause-s", type=click.FloatRange(0), default=0.1, show_default=True,
              help="Longest pause of a client between two requests.")  # fmt: skip
@click.option("--break-share", type=click.FloatRange(0, 1), default=0.04, show_default=True,
              help="Share of attempts that an upstream breaks off.")  # fmt: skip
@click.option("--leave-share", type=click.FloatRange(0, 1), default=0.01, show_default=True,
              help="Share of requests that their client leaves.")  # fmt: skip
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--json", "json_path", metavar="FILE|-", help="Everything as one object; - is standard output.")
def main(json_path: str | None, **options: Any) -> None:
    """Soak gslb; only the loopback is used. Exit code 1 when a claim fails."""
    stop_on_sigterm()
    raise_file_limit()
    plan = Plan(**options)
    console = Console(stderr=json_path == "-")
    neighbours = Neighbours()
    with run_directory() as run:
        story, before, after, sampler, logged = run_soak(plan, run)
    claims = claims_of(story, before, after, sampler, logged)
    others = neighbours.share()
    show(console, f"soak, {plan.minutes:g} minutes", _figures(story, sampler, logged, others), claims)
    for incident in story.unexplained[:_SHOWN_INCIDENTS]:
        console.print(f"{incident.kind}: {incident.what}", style="red", soft_wrap=True, markup=False)
    told = {
        "plan": asdict(plan), "counts": dict(story.counts), "explained": dict(story.explained),
        "unexplained": [asdict(incident) for incident in story.unexplained], "upstream": story.upstream,
        "reloads": story.reloads, "before": asdict(before), "after": asdict(after), "log": logged,
        "files_at_rest": story.files_at_rest, "samples": [asdict(sample) for sample in sampler.samples],
        "rss_bytes_per_hour": sampler.rss_slope() * 3600, "files_per_hour": sampler.files_slope() * 3600,
        "used_by_others": others,
    }  # fmt: skip
    write_json(json_path, told, claims)
    sys.exit(exit_code(claims))


if __name__ == "__main__":
    main()
