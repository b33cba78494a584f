"""Many slow streams through one gslb: memory, CPU, what it adds to each event, and whether it counts right.

`python -m benchmarks.scale --streams 10000`; benchmarks/README.md tells what is claimed.
"""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks.claims import Claim, at_most, exit_code, none_of, show, stop_on_sigterm, write_json
from benchmarks.delays import Delays, merged
from benchmarks.edge import RunningEdge, edge_config, edge_cores, helper, running_edge
from benchmarks.processes import BenchmarkError, Neighbours, Talker, cpu_ns, rss_bytes, run_directory, tree
from benchmarks.proxies import KEY, raise_file_limit

_ENDPOINTS = 12
_SPARE_FILES = 200
_UNEVEN = 1.3
"""The kernel deals connections out to workers by a hash: the fullest one may have so much more than its share."""
_SAMPLE_S = 2.0
_SETTLE_S = 20.0
_STUCK_S = 60.0
_CLAIM_STREAMS, _CLAIM_RSS_MB = 10_000, 250.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How many streams, how fast, how long."""

    streams: int
    workers: int
    hold_s: float
    events_per_s: float
    open_per_s: float
    helpers: int


@dataclass(slots=True)
class Found:
    """What was measured through gslb."""

    idle_rss: int = 0
    idle_worker_rss: int = 0
    held_rss: int = 0
    held_worker_rss: int = 0
    cpu_share: float = 0.0
    events_per_s: float = 0.0
    samples: list[dict[str, int]] = field(default_factory=list)
    """Requests asked for so far (as known after gslb was asked) and gslb's figures."""
    rest_points: list[dict[str, Any]] = field(default_factory=list)
    errors: int = 0
    first_error: str = ""
    left: int = 0
    ended: int = 0
    still_given: int = 0
    processes: int = 0


def files_needed(plan: Plan) -> int:
    """Open files of the process that has most: two a stream in a gslb worker, one in a helper."""
    share = 1.0 if plan.workers == 1 else _UNEVEN / plan.workers
    return math.ceil(plan.streams * max(2 * min(share, 1.0), 1 / plan.helpers)) + _SPARE_FILES


class Fleet:
    """Upstream and load processes, asked as one."""

    def __init__(self, upstreams: list[Talker], loads: list[Talker], plan: Plan) -> None:
        self._upstreams = upstreams
        self._loads = loads
        self._plan = plan
        self.ports = [int(port) for upstream in upstreams for port in upstream.hear()]

    def open(self, ports: list[int]) -> None:
        """Begin to open all streams to these ports."""
        count = len(self._loads)
        for number, load in enumerate(self._loads):
            share = self._plan.streams // count + (number < self._plan.streams % count)
            # Each process has addresses of its own, so that none runs out of source ports.
            addresses = [f"127.0.{number + 1}.{last}" for last in range(1, 5)]
            load.ask(
                do="open", ports=ports, count=share, addresses=addresses, key=KEY,
                events_per_s=self._plan.events_per_s, per_s=self._plan.open_per_s / count,
            )  # fmt: skip

    def look(self) -> dict[str, Any]:
        """How the streams stand, summed."""
        told = [load.ask(do="look") for load in self._loads]
        errors = [one["first_error"] for one in told if one["first_error"]]
        sums = {name: sum(one[name] for one in told) for name in told[0] if name != "first_error"}
        return {**sums, "first_error": errors[0] if errors else ""}

    def measure(self) -> None:
        """Delays count from here on."""
        for load in self._loads:
            load.ask(do="measure")

    def delays(self) -> tuple[Delays, Delays]:
        """(delay, gap) since `measure`."""
        told = [load.ask(do="delays") for load in self._loads]
        return merged(one["delay"] for one in told), merged(one["gap"] for one in told)

    def leave(self, count: int) -> None:
        """So many clients leave at once."""
        open_each = [load.ask(do="look")["open"] for load in self._loads]
        for load, own in zip(self._loads, open_each, strict=True):
            going = min(own, count)
            load.ask(do="leave", count=going)
            count -= going

    def finish(self) -> None:
        """Every upstream ends its streams."""
        for upstream in self._upstreams:
            upstream.ask(do="finish")

    def still_given(self) -> int:
        """Streams the upstreams still give."""
        return sum(int(upstream.ask(do="tell")["under_way"]) for upstream in self._upstreams)

    def wait_until(self, is_so: Callable[[dict[str, Any]], bool], on_look: Callable[[], None]) -> dict[str, Any]:
        """Look until it is so, or nothing has changed for _STUCK_S."""
        last, since_s = self.look(), time.monotonic()
        while not is_so(last):
            if time.monotonic() - since_s > _STUCK_S:
                raise BenchmarkError(f"stuck: {last}")
            time.sleep(_SAMPLE_S / 2)
            on_look()
            now = self.look()
            if any(now[name] != last[name] for name in ("asked", "begun", "open", "errors")):
                since_s = time.monotonic()
            last = now
        return last

    def wait_all_begun(self, on_look: Callable[[], None]) -> None:
        """Until each stream has begun or failed."""
        self.wait_until(lambda told: told["begun"] + told["errors"] >= self._plan.streams, on_look)


def measure_direct(fleet: Fleet, plan: Plan) -> tuple[Delays, Delays]:
    """The same streams through no proxy: (delay, gap)."""
    fleet.open(fleet.ports)
    fleet.wait_all_begun(lambda: None)
    fleet.measure()
    time.sleep(plan.hold_s)
    found = fleet.delays()
    told = fleet.look()
    if told["errors"]:
        raise BenchmarkError(f"{told['errors']} streams failed without any proxy: {told['first_error']}")
    fleet.leave(plan.streams)
    until_s = time.monotonic() + _SETTLE_S
    while fleet.still_given() and time.monotonic() < until_s:
        time.sleep(0.2)
    return found


class Through:
    """The measurement through gslb, step by step."""

    def __init__(self, edge: RunningEdge, fleet: Fleet, plan: Plan) -> None:
        self._edge = edge
        self._fleet = fleet
        self._plan = plan
        self.found = Found()

    def run(self) -> tuple[Delays, Delays]:
        """All of it; (delay, gap)."""
        pid, plan, fleet, found = self._edge.process.pid, self._plan, self._fleet, self.found
        self._rest("before", 0)
        found.idle_rss, found.idle_worker_rss = rss_bytes(pid), _largest_rss(pid)
        fleet.open([self._edge.port])
        fleet.wait_all_begun(self._sample)
        self._rest("all open", fleet.look()["open"])
        delays = self._hold(pid)
        found.held_rss, found.held_worker_rss = rss_bytes(pid), _largest_rss(pid)
        found.processes = len(tree(pid))
        self._rest("held", fleet.look()["open"])
        fleet.leave(plan.streams // 2)
        self._rest("half have left", fleet.look()["open"])
        fleet.finish()
        told = fleet.wait_until(lambda now: now["open"] == 0, self._sample)
        self._rest("all ended", 0)
        found.errors, found.first_error = told["errors"], told["first_error"]
        found.left, found.ended, found.still_given = told["left"], told["ended"], fleet.still_given()
        return delays

    def _hold(self, pid: int) -> tuple[Delays, Delays]:
        fleet, found = self._fleet, self.found
        fleet.measure()
        first, before_ns, started_s = fleet.look(), cpu_ns(pid), time.monotonic()
        while time.monotonic() < started_s + self._plan.hold_s:
            time.sleep(min(_SAMPLE_S, self._plan.hold_s))
            self._sample()
        last, spent_ns, elapsed_s = fleet.look(), cpu_ns(pid) - before_ns, time.monotonic() - started_s
        found.cpu_share = spent_ns / 1e9 / elapsed_s
        found.events_per_s = (last["events"] - first["events"]) / elapsed_s
        return fleet.delays()

    def _sample(self) -> None:
        counts = self._edge.counts()
        asked = self._fleet.look()["asked"]  # after gslb: a later count can only be larger
        self.found.samples.append(
            {"asked": asked, "status": counts.open_exchanges, "in_flight": counts.in_flight,
             "metrics": counts.metrics_open_exchanges, "metrics_in_flight": counts.metrics_in_flight}
        )  # fmt: skip

    def _rest(self, name: str, truth: int) -> None:
        """Nothing opens or ends now: within _SETTLE_S gslb must say exactly what is open."""
        counts, is_equal = self._edge.wait_for(lambda now: set(now.under_way) == {truth}, _SETTLE_S)
        self.found.rest_points.append(
            {"point": name, "truth": truth, "gslb": counts.under_way, "is_equal": is_equal}
        )


def _largest_rss(root: int) -> int:
    """Resident memory of the largest process of a tree, its children not counted in."""
    page_bytes = resource.getpagesize()
    found = [0]
    for pid in tree(root):
        try:
            found.append(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page_bytes)
        except OSError:
            continue
    return max(found)


def claims_of(plan: Plan, found: Found) -> list[Claim]:
    """What must hold."""
    points = found.rest_points
    highest = max((max(one.values()) - one["asked"] for one in found.samples), default=0)
    worker_mb = (found.idle_worker_rss + _CLAIM_STREAMS * stream_bytes(plan, found)) / 1e6
    return [
        none_of("streams that failed", found.errors),
        Claim("streams left by clients, ended with [DONE]", f"{found.left:,}, {found.ended:,}",
              f"{plan.streams // 2:,}, {plan.streams - plan.streams // 2:,}",
              (found.left, found.ended) == (plan.streams // 2, plan.streams - plan.streams // 2)),
        Claim("in flight at rest: gslb's word is the truth",
              "; ".join(f"{one['point']}: {one['gslb'][0]:,} of {one['truth']:,}" for one in points),
              "equal, by status and metrics", all(one["is_equal"] for one in points)),
        Claim(f"in flight above what was asked for, in {len(found.samples)} samples", f"{max(highest, 0)}", "0",
              highest <= 0),
        none_of("streams an upstream still gives at the end", found.still_given),
        at_most(f"RSS of one worker at {_CLAIM_STREAMS:,} streams", worker_mb, _CLAIM_RSS_MB, "MB"),
    ]  # fmt: skip


def stream_bytes(plan: Plan, found: Found) -> float:
    """Resident bytes that an open stream adds, over all processes of gslb."""
    return (found.held_rss - found.idle_rss) / plan.streams


def _figures(
    plan: Plan, found: Found, direct: tuple[Delays, Delays], through: tuple[Delays, Delays], others: float
) -> dict[str, str]:
    def line(which: int) -> str:
        parts = []
        for share in (0.5, 0.99):
            own, bare = through[which].quantile_ms(share), direct[which].quantile_ms(share)
            parts.append(f"p{share * 100:g} {own - bare:+.2f} ({own:.2f} - {bare:.2f})")
        return ", ".join(parts)

    event_us = found.cpu_share * 1e6 / max(found.events_per_s, 1e-9)
    return {
        "streams, workers": f"{plan.streams:,}, {plan.workers} ({found.processes} processes)",
        "events a second": f"{found.events_per_s:,.0f}",
        "CPU": f"{found.cpu_share:.1%} of a core, {event_us:.0f} us an event, probes and scrapes in it",
        "RSS idle, held": f"{found.idle_rss / 1e6:.1f} MB, {found.held_rss / 1e6:.1f} MB",
        "RSS of the largest process": f"{found.held_worker_rss / 1e6:.1f} MB",
        "RSS a stream": f"{stream_bytes(plan, found) / 1e3:.1f} kB",
        "added to an event's way, ms (through gslb - direct)": line(0),
        "added to the gap between events, ms": line(1),
        "events measured, through and direct": f"{through[0].total:,}, {direct[0].total:,}",
        "used by others of this machine": f"{others:.0%}",
    }


def run_scale(plan: Plan, run: Path) -> tuple[Found, tuple[Delays, Delays], tuple[Delays, Delays]]:
    """Direct, then through gslb: (what was found, delays direct, delays through)."""
    on_cores, others = edge_cores(plan.workers)
    log = run / "helpers.log"
    each = math.ceil(_ENDPOINTS / plan.helpers)
    with ExitStack() as stack:

        def started(module: str, *arguments: str) -> list[Talker]:
            processes = [
                stack.enter_context(helper(module, *arguments, run=run, on_cores=others))
                for _ in range(plan.helpers)
            ]
            return [Talker(process, log) for process in processes]

        fleet = Fleet(started("scale_upstream", str(each)), started("scale_load"), plan)
        direct = measure_direct(fleet, plan)
        config = edge_config(
            fleet.ports, run, plan.workers, tenants={"bench": {"key_env": "GSLB_BENCH_KEY"}},
            limits={"connections": max(20_000, plan.streams + _SPARE_FILES)},
        )  # fmt: skip
        edge = stack.enter_context(running_edge(config, run, on_cores))
        step = Through(edge, fleet, plan)
        through = step.run()
    return step.found, direct, through


@click.command()
@click.option("--streams", type=click.IntRange(2), default=10_000, show_default=True)
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True)
@click.option(
    "--hold-s", type=click.FloatRange(1), default=60.0, show_default=True, help="How long to look at them."
)
@click.option("--events-per-s", type=click.FloatRange(0.01), default=0.2, show_default=True,
              help="Pace of each stream.")  # fmt: skip
@click.option("--open-per-s", type=click.FloatRange(1), default=300.0, show_default=True)
@click.option("--helpers", type=click.IntRange(1, _ENDPOINTS), default=2, show_default=True,
              help="Upstream processes, and as many that load.")  # fmt: skip
@click.option("--json", "json_path", metavar="FILE|-", help="Everything as one object; - is standard output.")
def main(json_path: str | None, **options: Any) -> None:
    """Hold many streams open, on the loopback. Exit code 1 when a claim fails, 2 when they do not fit."""
    stop_on_sigterm()
    plan = Plan(**options)
    allowed, needed = raise_file_limit(), files_needed(plan)
    if needed > allowed:
        share = 2.0 if plan.workers == 1 else min(1.0, _UNEVEN / plan.workers) * 2
        raise click.UsageError(
            f"{plan.streams:,} streams need {needed:,} open files in one process, and {allowed:,} are allowed "
            f"here: raise the hard limit (ulimit -Hn {needed}, LimitNOFILE=), take more workers, or "
            f"--streams {math.floor((allowed - _SPARE_FILES) / share)}"
        )
    console = Console(stderr=json_path == "-")
    neighbours = Neighbours()
    with run_directory() as run:
        found, direct, through = run_scale(plan, run)
    claims, others = claims_of(plan, found), neighbours.share()
    show(console, f"{plan.streams:,} streams", _figures(plan, found, direct, through, others), claims)
    if found.first_error:
        console.print(f"the first error: {found.first_error}", style="red", soft_wrap=True, markup=False)
    told = {
        "plan": asdict(plan), "found": asdict(found), "stream_bytes": stream_bytes(plan, found),
        "ms": {
            way: {name: {"p50": one.quantile_ms(0.5), "p99": one.quantile_ms(0.99), "events": one.total}
                  for name, one in zip(("delay", "gap"), pair, strict=True)}
            for way, pair in (("direct", direct), ("through", through))
        },
        "used_by_others": others,
    }  # fmt: skip
    write_json(json_path, told, claims)
    sys.exit(exit_code(claims))


if __name__ == "__main__":
    main()
