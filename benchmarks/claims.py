"""What a proof claims, and whether it held: a table, a JSON object, an exit code."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim. `held` None: this run could not judge it, and `limit` says why."""

    name: str
    value: str
    limit: str
    held: bool | None


def none_of(name: str, count: int) -> Claim:
    """The claim that something never happened."""
    return Claim(name, f"{count:,}", "0", count == 0)


def at_most(name: str, value: float, most: float, unit: str) -> Claim:
    """The claim that a figure stays below a bound; a figure that is not a number fails it."""
    return Claim(name, f"{value:,.1f} {unit}", f"at most {most:g} {unit}", math.isfinite(value) and value <= most)


def exit_code(claims: Sequence[Claim]) -> int:
    """1 when a claim failed, else 0."""
    return 1 if any(claim.held is False for claim in claims) else 0


def show(console: Console, title: str, figures: Mapping[str, str], claims: Sequence[Claim]) -> None:
    """Figures as they are, then claims, if there are any, with their verdicts."""
    shown = Table("figure", "value", title=title)
    for name, value in figures.items():
        shown.add_row(name, value)
    console.print(shown)
    if not claims:
        return
    judged = Table("claim", "value", "limit", "verdict")
    words = {True: ("held", "green"), False: ("FAILED", "bold red"), None: ("not judged", "yellow")}
    for claim in claims:
        word, style = words[claim.held]
        judged.add_row(claim.name, claim.value, claim.limit, f"[{style}]{word}[/]")
    console.print(judged)


def write_json(path: str | None, told: Mapping[str, Any], claims: Sequence[Claim]) -> None:
    """One object into a file; `-` is standard output, None nowhere."""
    if path is None:
        return
    text = json.dumps({**told, "claims": [asdict(claim) for claim in claims]}, indent=2)
    if path == "-":
        print(text)
    else:
        Path(path).write_text(text + "\n")


def stop_on_sigterm() -> None:
    """Let SIGTERM end the run as Ctrl-C does: everything started is stopped on the way out."""
    signal.signal(signal.SIGTERM, _on_sigterm)


def _on_sigterm(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
