"""Requests a second through gslb with one worker process and with several, and what a request costs in CPU.

`python benchmarks/workers.py`. Nothing is pinned: gslb, upstream and load share the machine, so on few cores
the figure for several workers is a lower bound. Only the loopback is used.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

if not __package__:  # run by its path: the rest of the package is found from the root
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.load import CLIENT_ADDRESSES, request_bytes
from benchmarks.measure import ENDPOINTS_PER_REGION, REGIONS
from benchmarks.processes import Talker, cores, cpu_ns, rss_bytes, run_directory, running, wait_until_served
from benchmarks.proxies import KEY, PYTHON, gslb, raise_file_limit

_ROOT = Path(__file__).resolve().parent.parent
_START_S = 60.0
_WARM_UP = 1000


def measure(workers: int, upstreams: Sequence[int], loads: Sequence[Talker], requests: int, run: Path) -> Any:
    """Figures of one gslb with so many workers. Raises BenchmarkError when it does not start."""
    run.mkdir()
    start = gslb(PYTHON, upstreams, run, workers)
    log = run / "output.log"
    machine = set().union(*cores())
    with running(start.command, on_cores=machine, log=log, directory=_ROOT, env=start.env) as process:
        first = request_bytes(start.port, KEY, CLIENT_ADDRESSES[0], {})
        wait_until_served(start.port, first, process, log, _START_S)

        def ask(count: int) -> list[dict[str, Any]]:
            command = {"do": "json", "port": start.port, "key": KEY, "count": count, "connections": 32}
            with ThreadPoolExecutor(len(loads)) as pool:
                return list(pool.map(lambda load: load.ask(**command), loads))

        ask(_WARM_UP)
        before_ns, begun_s = cpu_ns(process.pid), time.monotonic()
        told = ask(requests // len(loads))
        took_s = time.monotonic() - begun_s
        good = sum(one["good"] for one in told)
        used_us = (cpu_ns(process.pid) - before_ns) / 1000
        return {
            "workers": workers,
            "requests_per_s": round(good / took_s),
            "cpu_us_per_request": round(used_us / max(good, 1), 1),
            "rss_mb": round(rss_bytes(process.pid) / 1e6, 1),
            "errors": sum(one["errors"] for one in told),
        }


@click.command()
@click.option("--workers", "counts", multiple=True, type=click.IntRange(1), default=(1, 2), show_default=True,
              help="How many worker processes; may be given several times.")  # fmt: skip
@click.option("--requests", type=click.IntRange(100), default=20_000, show_default=True, help="Requests each.")
@click.option("--loads", type=click.IntRange(1), default=2, show_default=True, help="Processes that ask.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def main(counts: tuple[int, ...], requests: int, loads: int, as_json: bool) -> None:
    """Measure how gslb grows with worker processes."""
    raise_file_limit()
    console = Console(stderr=as_json)
    figures = []
    machine = set().union(*cores())
    with run_directory() as run, ExitStack() as helpers:
        log = run / "helpers.log"

        def helper(module: str, *arguments: str) -> Talker:
            command = [PYTHON, "-m", f"benchmarks.{module}", *arguments]
            started = running(command, on_cores=machine, log=log, directory=_ROOT, talks=True)
            return Talker(helpers.enter_context(started), log)

        upstreams = helper("upstream", str(REGIONS * ENDPOINTS_PER_REGION)).hear()
        askers = [helper("load") for _ in range(loads)]
        with Progress(console=Console(stderr=True), transient=True) as progress:
            for count in progress.track(counts, description="measuring"):
                figures.append(measure(count, upstreams, askers, requests, run / f"gslb-{count}"))  # noqa: PERF401
    if as_json:
        click.echo(json.dumps(figures, indent=2))
    else:
        table = Table(*(name.replace("_", " ") for name in figures[0]))
        for one in figures:
            table.add_row(*map(str, one.values()))
        console.print(table)
    sys.exit(1 if any(one["errors"] for one in figures) else 0)


if __name__ == "__main__":
    main()
