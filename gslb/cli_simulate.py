"""`gslb simulate`: policies tried on a scenario before anybody trusts them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from gslb.config.problems import ConfigErrors
from gslb.config.scenario import CheckedScenario, load_scenario
from gslb.config.scenario_schema import SCENARIO_POLICIES
from gslb.config.wording import suggestion
from gslb.report.page import render
from gslb.sim.parts import OWN_WAYS, PARTS
from gslb.sim.result import RunResult
from gslb.sim.setting import Setting
from gslb.sim.world import run as run_world
from gslb.simulate.runs import Interrupt, Job, RunFailed, Trial, interruptible, run_all
from gslb.simulate.summary import as_document
from gslb.simulate.tables import print_document
from gslb.state.cpus import usable_cpus


def shipped_scenarios() -> dict[str, Path]:
    """The scenarios that come with gslb, by name."""
    folder = resources.files("gslb").joinpath("scenarios")
    paths = sorted(Path(str(file)) for file in folder.iterdir() if file.name.endswith(".yaml"))
    return {path.stem: path for path in paths}


def _names(value: str) -> list[str]:
    """What commas part. An option without any name, such as of a variable that is not set, stands for nothing."""
    names = [name.strip() for name in value.split(",") if name.strip()]
    if not names:
        raise click.BadParameter("it names nothing: say what, or leave the option away")
    return names


def _policies(_context: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> list[str]:
    names = [name for value in values for name in _names(value)]
    if names == ["all"]:
        return list(SCENARIO_POLICIES)
    for name in names:
        if name not in SCENARIO_POLICIES:
            raise click.BadParameter(f"there is no policy {name[:80]!r}{suggestion(name, SCENARIO_POLICIES)}")
    return list(dict.fromkeys(names))


def _variants(_context: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> list[frozenset[str]]:
    """What is taken away in each variant; the first is the whole."""
    variants: list[frozenset[str]] = [frozenset()]
    for value in values:
        names = _names(value)
        if names == ["each"]:
            variants += [frozenset({name}) for name in PARTS]
            continue
        for name in names:
            if name not in PARTS:
                raise click.BadParameter(f"there is no part {name[:80]!r}{suggestion(name, PARTS)}")
        variants.append(frozenset(names))
    return list(dict.fromkeys(variants))


def _loads(_context: click.Context, _option: click.Parameter, value: str | None) -> list[float | None]:
    """The shares of capacity that are asked for; [None] for what the scenario says."""
    if value is None:
        return [None]
    loads: list[float | None] = []
    for text in _names(value):
        try:
            load = float(text)
        except ValueError:
            load = 0.0
        if not 0 < load < 100:
            raise click.BadParameter(f"{text[:20]!r} is no share of capacity such as 0.7")
        loads.append(load)
    return loads


@click.command()
@click.argument("scenario", required=False)
@click.option("--policy", "policies", multiple=True, callback=_policies, metavar="A,B", help="Policies, or all.")
@click.option(
    "--without", "variants", multiple=True, callback=_variants, metavar="PART[,PART]",
    help="Run policies also without these parts of gslb; several times: one way after the other; each: every part "
    f"in turn. Parts: {', '.join(PARTS)}.",
)  # fmt: skip
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(1, 1000), help="Runs of each policy.")
@click.option("--seed", default=1, show_default=True, help="The first one, for all policies.")
@click.option("--trace", type=click.Path(path_type=Path), metavar="FILE", help="Replay this trace's requests.")
@click.option(
    "--load", "loads", callback=_loads, metavar="X[,Y]", help="Share of capacity that is asked; several."
)
@click.option(
    "--report", type=click.Path(path_type=Path, dir_okay=False), metavar="OUT.html", help="Plots, one page."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--regions", "with_regions", is_flag=True, help="A table by region as well.")
@click.option("--jobs", type=click.IntRange(1), help="Processes  [default: one per CPU]")
def simulate(
    scenario: str | None, policies: list[str], variants: list[frozenset[str]], seeds: int, seed: int,
    trace: Path | None, loads: list[float | None],
    report: Path | None, as_json: bool, with_regions: bool, jobs: int | None,
) -> None:  # fmt: skip
    """Run a fleet, its clients and its faults on a simulated clock, with the router that also serves.

    SCENARIO is a file or the name of a shipped one; without it the shipped ones are listed. Ctrl-C prints what is
    done so far.
    """
    if scenario is None:
        _list_scenarios()
        return
    checked = _checked(scenario)
    if report is not None and not report.parent.is_dir():
        raise click.ClickException(f"{report}: cannot be written: there is no such folder")
    trial = Trial(checked, run_world, trace)
    chosen = _chosen(policies or checked.scenario.policies, variants)
    numbers = range(seed, seed + seeds)
    wanted = [
        Job(policy, number, load, without) for load in loads for policy, without in chosen for number in numbers
    ]
    try:
        settings = [trial.setting(load) for load in loads]
    except (OSError, ValueError) as error:
        raise click.ClickException(_reason(error, trace)) from None
    with interruptible() as interrupt:
        try:
            results = _run(trial, wanted, jobs or usable_cpus(), interrupt, is_quiet=as_json)
        except RunFailed as error:
            raise click.ClickException(str(error)) from None
    documents = [
        as_document(
            setting, [result for result in results if result.load == load], len(wanted) // len(loads),
            checked.scenario.load.of_capacity if load is None else load,
        )
        for setting, load in zip(settings, loads, strict=True)
    ]  # fmt: skip
    _tell(documents, checked, as_json=as_json, with_regions=with_regions)
    if report is not None:
        _write_report(report, results, settings, checked)
    sys.exit(130 if interrupt.is_set else 0)


def _chosen(policies: Sequence[str], variants: Sequence[frozenset[str]]) -> list[tuple[str, frozenset[str]]]:
    """Each policy, whole and in every variant; those that use no part of gslb are only whole."""
    partless = [policy for policy in policies if policy in OWN_WAYS]
    if partless and len(variants) > 1:
        names = " and ".join(partless)
        if len(partless) == len(policies):
            raise click.UsageError(f"--without: no part of gslb is in {names}, so none can be taken away")
        click.echo(f"No part of gslb is in {names}: run as a whole only.", err=True)
    return [
        (policy, without) for policy in policies for without in variants if not without or policy not in OWN_WAYS
    ]


def _reason(error: Exception, trace: Path | None) -> str:
    if isinstance(error, OSError):
        return f"{error.filename or trace}: cannot be read: {error.strerror}"
    return str(error)


def _list_scenarios() -> None:
    for name, path in shipped_scenarios().items():
        click.echo(f"{name:24} {load_scenario(path, os.environ).scenario.description}")


def _checked(name: str) -> CheckedScenario:
    shipped = shipped_scenarios()
    path = Path(name)
    if not path.exists() and os.sep not in name and path.suffix == "":
        if name not in shipped:
            raise click.ClickException(f"there is no scenario {name[:80]!r}{suggestion(name, shipped)}")
        path = shipped[name]
    try:
        return load_scenario(path, os.environ)
    except ConfigErrors as errors:
        if {"scenario", "fleet", "regions"} <= {problem.path for problem in errors.problems}:
            message = "this is a configuration; a scenario has one for its fleet by `fleet: {config: FILE}`"
            raise click.ClickException(f"{path}: {message}") from None
        for problem in errors.problems:
            click.echo(str(problem), err=True)
        sys.exit(1)


def _run(
    trial: Trial, jobs: Sequence[Job], processes: int, interrupt: Interrupt, is_quiet: bool
) -> list[RunResult]:
    console = Console(stderr=True)
    if is_quiet or not console.is_terminal:
        return run_all(trial, jobs, processes, lambda _job, _share: None, interrupt)
    columns = (
        TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(),
        TextColumn("left"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True) as progress:
        return run_all(trial, jobs, processes, _teller(progress, jobs), interrupt)


def _teller(progress: Progress, jobs: Sequence[Job]) -> Callable[[int, float], None]:
    task = progress.add_task(f"{len(jobs)} runs", total=len(jobs))
    shares = [0.0] * len(jobs)

    def on_progress(job: int, share: float) -> None:
        shares[job] = share
        ended = sum(share == 1.0 for share in shares)
        progress.update(task, completed=sum(shares), description=f"{ended} of {len(jobs)} runs")

    return on_progress


def _tell(
    documents: Sequence[dict[str, Any]], checked: CheckedScenario, *, as_json: bool, with_regions: bool
) -> None:
    if as_json:
        whole = (
            documents[0] if len(documents) == 1 else {"scenario": checked.scenario.scenario, "loads": documents}
        )
        click.echo(json.dumps(whole))
        return
    console = Console()
    if checked.scenario.description:
        console.print(checked.scenario.description, highlight=False)
    for document in documents:
        print_document(console, document, with_regions=with_regions)


def _write_report(
    path: Path, results: Sequence[RunResult], settings: Sequence[Setting], checked: CheckedScenario
) -> None:
    page = render(results, settings, [checked.scenario.budget * 1000])
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"{path}: cannot be written: {error.strerror}") from None
    click.echo(f"report: {path}", err=True)
