"""`gslb replay`: whether recorded decisions come out the same when they are made again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import click
import orjson
from rich.console import Console
from rich.progress import Progress

from gslb.sim.codec import Unreadable
from gslb.sim.parity import Parity
from gslb.sim.parity import replay as replay_lines


@click.command()
@click.argument("path", metavar="FILE", type=click.Path(exists=True, dir_okay=False))
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def replay(path: str, as_json: bool) -> None:
    """Make the decisions that `gslb serve --record FILE` wrote down again, and compare one by one.

    Exit code 1: one came out otherwise; both are shown.
    """
    try:
        with open(path, encoding="utf-8") as file:
            parity = replay_lines(_with_progress(file, Path(path).stat().st_size))
    except (Unreadable, UnicodeDecodeError) as error:
        raise click.ClickException(f"{path}: {error}") from None
    if as_json:
        click.echo(orjson.dumps(_as_object(parity), option=orjson.OPT_INDENT_2).decode())
    else:
        _tell(parity)
    sys.exit(0 if parity.difference is None else 1)


def _with_progress(file: IO[str], size_bytes: int) -> Iterator[str]:
    """The lines of `file`; on a terminal a bar says how far it is."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("replaying", total=size_bytes)
        for line in file:
            progress.advance(task, len(line))
            yield line


def _tell(parity: Parity) -> None:
    click.echo(f"{parity.decisions} decisions, {parity.equal} equal ({parity.calls} calls in all)")
    if parity.is_cut:
        click.echo("the recording ends in the middle of a line")
    difference = parity.difference
    if difference is None:
        return
    click.echo(f"line {difference.line}: {difference.call} came out otherwise")
    click.echo(f"  live:     {orjson.dumps(difference.live).decode()}")
    click.echo(f"  replayed: {orjson.dumps(difference.replayed).decode()}")
    if difference.explanation:
        click.echo(f"  as the replay sees it: {difference.explanation}")


def _as_object(parity: Parity) -> dict[str, Any]:
    difference = parity.difference
    return {
        "decisions": parity.decisions,
        "equal": parity.equal,
        "calls": parity.calls,
        "is_cut": parity.is_cut,
        "recording": dict(parity.about),
        "difference": None
        if difference is None
        else {name: getattr(difference, name) for name in ("line", "call", "live", "replayed", "explanation")},
    }
