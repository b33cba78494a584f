"""slowhttptest against gslb with its default limits, while a legitimate client asks on: what does that one notice?

`python -m benchmarks.slow_clients`; benchmarks/README.md tells what is claimed.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from benchmarks.claims import Claim, exit_code, none_of, show, stop_on_sigterm, write_json
from benchmarks.edge import RunningEdge, edge_config, edge_cores, helper, running_edge
from benchmarks.processes import BenchmarkError, Neighbours, Talker, rss_bytes, run_directory, running
from benchmarks.proxies import raise_file_limit
from benchmarks.steady import Asked, SteadyClient, p50_p99_ms

_PROGRAM = "slowhttptest"
_ABSENT = (
    f"{_PROGRAM} was not found. Install it (apt-get install {_PROGRAM}, brew install {_PROGRAM}, or from "
    "github.com/shekyan/slowhttptest) and run this again."
)
_ENDPOINTS = 12
_CONNECTIONS_LIMIT = 20_000
"""The default of `limits.connections`."""
_OWN_CONNECTIONS = 2
_END_S = 30.0
"""What the tool may take beyond its time: for connecting, and to close what it has open."""
_SHORTEST_S = 5.0
"""The tool ends when nothing of its own is open any more; it is started again while so much time is left."""
_SETTLE_S = 20.0

MODES: dict[str, tuple[str, Sequence[str], str]] = {
    "slowloris": ("-H", ("-i", "5", "-x", "24"), "/v1/models"),
    "slow body": ("-B", ("-i", "5", "-s", "8192", "-x", "64", "-f", "application/json"), "/v1/chat/completions"),
    "range": ("-R", ("-a", "5", "-b", "3000"), "/v1/models"),
    "slow read": ("-X", ("-w", "256", "-y", "512", "-n", "5", "-z", "32", "-k", "10"), "/v1/models"),
}
"""Mode -> (the tool's option, its settings, the path it asks for)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How many connections, for how long, and the pace of the legitimate client."""

    connections: int
    seconds: int
    rate: int
    requests_per_s: float
    calm_s: float


@dataclass(frozen=True, slots=True)
class Availability:
    """What slowhttptest says: seconds it looked, those without service, its most connections at once."""

    seconds: int = 0
    without_service: int = 0
    most_connected: int = 0

    def __add__(self, other: Availability) -> Availability:
        """Both runs taken together."""
        return Availability(
            self.seconds + other.seconds, self.without_service + other.without_service,
            max(self.most_connected, other.most_connected),
        )  # fmt: skip


@dataclass(slots=True)
class Attack:
    """One mode: what the legitimate client saw before, during and after, and what gslb held."""

    mode: str
    before: list[Asked] = field(default_factory=list)
    during: list[Asked] = field(default_factory=list)
    after: list[Asked] = field(default_factory=list)
    available: Availability = field(default_factory=Availability)
    runs: int = 0
    most_open: int = 0
    open_afterwards: int = 0
    most_rss: int = 0

    def faults(self) -> list[str]:
        """What went wrong for the legitimate client."""
        return [one.fault for one in self.before + self.during + self.after if one.fault]


def availability(report: str) -> Availability:
    """The tool's CSV report. Its first row is from before its first probe and says nothing.

    Raises BenchmarkError when there is none to read.
    """
    try:
        first, *rows = csv.DictReader(report.splitlines())
        int(first["Connected"])
        connected = [int(row["Connected"]) for row in rows]
        without = sum(int(row["Service Available"]) == 0 for row in rows)
    except (KeyError, TypeError, ValueError) as error:
        raise BenchmarkError(f"{_PROGRAM}'s report is not as known: {error!r}") from None
    return Availability(len(rows), without, max(connected, default=0))


def attack_command(program: str, mode: str, port: int, plan: Plan, prefix: Path, for_s: float) -> list[str]:
    """How to start the tool for so many seconds."""
    option, settings, path = MODES[mode]
    return [
        program, option, *settings, "-c", str(plan.connections), "-r", str(plan.rate), "-l", str(round(for_s)),
        "-p", "3", "-g", "-o", str(prefix), "-v", "1", "-u", f"http://127.0.0.1:{port}{path}",
    ]  # fmt: skip


def _under_attack(
    process: subprocess.Popen[bytes], edge: RunningEdge, attack: Attack, plan: Plan, log: Path
) -> None:
    """Watch gslb until the tool has ended."""
    until_s = time.monotonic() + plan.seconds + plan.connections / plan.rate + _END_S
    while process.poll() is None:
        if time.monotonic() > until_s:
            raise BenchmarkError(f"{_PROGRAM} does not end: {log.read_text(errors='replace')[-400:]}")
        attack.most_open = max(attack.most_open, edge.counts().open_connections)
        attack.most_rss = max(attack.most_rss, rss_bytes(edge.process.pid))
        time.sleep(0.5)


def run_mode(
    program: str, mode: str, edge: RunningEdge, client: SteadyClient, plan: Plan, run: Path, on_cores: set[int]
) -> Attack:
    """One attack with a calm time before and after it."""
    attack = Attack(mode)
    calm_at_s = time.monotonic()
    time.sleep(plan.calm_s)
    attack.before = client.since(calm_at_s)
    attacked_at_s = time.monotonic()
    while (left_s := attacked_at_s + plan.seconds - time.monotonic()) >= _SHORTEST_S or not attack.runs:
        prefix, log = run / f"{mode.replace(' ', '_')}-{attack.runs}", run / f"{_PROGRAM}.log"
        command = attack_command(program, mode, edge.port, plan, prefix, left_s)
        with running(command, on_cores=on_cores, log=log, directory=run) as process:
            _under_attack(process, edge, attack, plan, log)
        report = prefix.with_suffix(".csv")
        if not report.exists():
            raise BenchmarkError(f"{_PROGRAM} wrote no report: {log.read_text(errors='replace')[-400:]}")
        attack.available += availability(report.read_text())
        attack.runs += 1
    attack.during = client.since(attacked_at_s)
    calm_at_s = time.monotonic()
    counts, _ = edge.wait_for(lambda now: now.open_connections <= _OWN_CONNECTIONS, _SETTLE_S)
    attack.open_afterwards = counts.open_connections
    time.sleep(plan.calm_s)
    attack.after = client.since(calm_at_s)
    return attack


def run_attacks(program: str, modes: Sequence[str], plan: Plan, run: Path) -> list[Attack]:
    """All modes, one after the other, against one gslb."""
    on_cores, others = edge_cores(1)
    with ExitStack() as stack:
        upstream = stack.enter_context(helper("upstream", str(_ENDPOINTS), run=run, on_cores=others))
        ports = Talker(upstream, run / "helpers.log").hear()
        edge = stack.enter_context(running_edge(edge_config(ports, run, 1), run, on_cores))
        client = SteadyClient(edge.port, plan.requests_per_s)
        client.start()
        try:
            return [run_mode(program, mode, edge, client, plan, run, others) for mode in modes]
        finally:
            client.stop()


def _table(attacks: Sequence[Attack]) -> Table:
    shown = Table(title="a legitimate client beside slow ones")
    shown.add_column("mode", no_wrap=True)
    for heading in ("before", "during", "after"):
        shown.add_column(f"{heading}\np50 / p99 ms", justify="right")
    for heading in (
        "asked,\nfailed",
        "gslb: open\nmost, after",
        "tool:\nruns, open",
        "tool: s\navailable",
    ):
        shown.add_column(heading, justify="right")
    for attack in attacks:
        seen = attack.available
        quantiles = [p50_p99_ms(part) for part in (attack.before, attack.during, attack.after)]
        asked = len(attack.before) + len(attack.during) + len(attack.after)
        shown.add_row(
            attack.mode, *(f"{p50:.1f} / {p99:.1f}" for p50, p99 in quantiles),
            f"{asked:,}, {len(attack.faults())}", f"{attack.most_open:,}, {attack.open_afterwards}",
            f"{attack.runs}, {seen.most_connected:,}", f"{seen.seconds - seen.without_service} of {seen.seconds}",
        )  # fmt: skip
    return shown


def claims_of(attacks: Sequence[Attack]) -> list[Claim]:
    """What must hold, mode by mode."""
    claims = []
    for attack in attacks:
        claims += [
            none_of(f"{attack.mode}: legitimate requests that failed", len(attack.faults())),
            Claim(f"{attack.mode}: open connections at most", f"{attack.most_open:,}", f"{_CONNECTIONS_LIMIT:,}",
                  attack.most_open <= _CONNECTIONS_LIMIT),
            Claim(f"{attack.mode}: open connections afterwards", f"{attack.open_afterwards}",
                  f"{_OWN_CONNECTIONS} at most", attack.open_afterwards <= _OWN_CONNECTIONS),
            none_of(f"{attack.mode}: seconds without service, by slowhttptest", attack.available.without_service),
        ]  # fmt: skip
    return claims


def _as_json(attack: Attack) -> dict[str, Any]:
    told: dict[str, Any] = {
        "mode": attack.mode, "runs": attack.runs, "available": asdict(attack.available),
        "most_open": attack.most_open, "open_afterwards": attack.open_afterwards,
        "most_rss_bytes": attack.most_rss, "faults": attack.faults()[:20],
    }  # fmt: skip
    for name, part in (("before", attack.before), ("during", attack.during), ("after", attack.after)):
        p50, p99 = p50_p99_ms(part)
        told[name] = {
            "asked": len(part),
            "failed": sum(bool(one.fault) for one in part),
            "p50_ms": p50,
            "p99_ms": p99,
        }
    return told


@click.command()
@click.option("--connections", type=click.IntRange(1), default=1000, show_default=True)
@click.option("--seconds", type=click.IntRange(5), default=60, show_default=True, help="Length of each attack.")
@click.option("--rate", type=click.IntRange(1), default=200, show_default=True, help="New connections a second.")
@click.option("--requests-per-s", type=click.FloatRange(1), default=20.0, show_default=True,
              help="Pace of the legitimate client.")  # fmt: skip
@click.option("--calm-s", type=click.FloatRange(1), default=10.0, show_default=True,
              help="Time before and after each attack.")  # fmt: skip
@click.option("--mode", "modes", type=click.Choice(tuple(MODES)), multiple=True, help="[default: all four]")
@click.option("--json", "json_path", metavar="FILE|-", help="Everything as one object; - is standard output.")
def main(modes: tuple[str, ...], json_path: str | None, **options: Any) -> None:
    """Attack gslb with slow clients, on the loopback. Exit code 1 when a claim fails, 2 without the tool."""
    stop_on_sigterm()
    program = shutil.which(_PROGRAM)
    if program is None:
        raise click.UsageError(_ABSENT)
    raise_file_limit()
    plan = Plan(**options)
    console = Console(stderr=json_path == "-")
    neighbours = Neighbours()
    with run_directory() as run:
        attacks = run_attacks(program, modes or tuple(MODES), plan, run)
    claims, others = claims_of(attacks), neighbours.share()
    console.print(_table(attacks))
    rss_mb = max(attack.most_rss for attack in attacks) / 1e6
    figures = {"gslb's most RSS": f"{rss_mb:.1f} MB", "used by others of this machine": f"{others:.0%}"}
    show(console, "meanwhile", figures, claims)
    for fault in [fault for attack in attacks for fault in attack.faults()][:20]:
        console.print(f"failed: {fault}", style="red", soft_wrap=True, markup=False)
    told = {"plan": asdict(plan), "attacks": [_as_json(attack) for attack in attacks], "used_by_others": others}
    write_json(json_path, told, claims)
    sys.exit(exit_code(claims))


if __name__ == "__main__":
    main()
