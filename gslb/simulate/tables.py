"""A document of results as tables to read in a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from gslb.simulate.summary import Document


def print_document(console: Console, document: Document, *, with_regions: bool = False) -> None:
    """One load's results: what they are of, a row per policy, and on demand a row per policy and region."""
    console.print(_heading(document), highlight=False, style="bold")
    if document["synthetic_geography"]:
        console.print("Who asks from where was made up: the trace does not tell.", highlight=False)
    if document["is_partial"]:
        console.print(
            f"Interrupted: {document['runs']} of {document['runs_wanted']} runs, the last of them partly.",
            highlight=False, style="yellow",
        )  # fmt: skip
    if not document["policies"]:
        return
    console.print(_outcomes(document["policies"]), _means(document["policies"]))
    for policy, told in document["policies"].items():
        if with_regions:
            console.print(_regions(policy, told))
        for note in told["notes"]:
            console.print(f"{policy}: {note}", highlight=False)


def _heading(document: Document) -> str:
    seeds = document["seeds"]
    span = f"{len(seeds)} seed{'' if len(seeds) == 1 else 's'}"
    load = f", load {document['load']:g} of capacity" if document["load"] is not None else ""
    return (
        f"{document['scenario']}: {span}, {document['simulated_s']:g} s each "
        f"(the first {document['warm_up_s']:g} s not counted){load}"
    )


def _table(first: str, titles: tuple[str, ...], name: str | None = None) -> Table:
    """Narrow enough for 80 columns."""
    table = Table(title=name, title_justify="left", title_style="bold", box=box.SIMPLE, padding=0)
    table.add_column(first, no_wrap=True)
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def _name(policy: str, told: Mapping[str, Any]) -> str:
    """What its row is called: below the whole policy only what was taken away from it, a part a line."""
    return "\n".join(f" -{part}" for part in told["without"]) or policy


def _outcomes(policies: Mapping[str, Any]) -> Table:
    """What clients got."""
    titles = ("offered", "completed", "shed", "failed", "goodput %", "TTFT p50", "p90", "p99 ms")
    table = _table("policy", titles)
    best = max((told["goodput"] for told in policies.values() if _has_goodput(told)), default=None)
    for name, told in policies.items():
        counts = (str(told[count]) for count in ("offered", "completed", "shed", "failed"))
        times = (_ms(told["ttft_ms"][quantile]) for quantile in ("p50", "p90", "p99"))
        goodput = _with_margin(told["goodput"], told["goodput_ci95"]) if _has_goodput(told) else "-"
        is_best = _has_goodput(told) and told["goodput"] == best
        table.add_row(_name(name, told), *counts, goodput, *times, style="bold" if is_best else "")
    return table


def _means(policies: Mapping[str, Any]) -> Table:
    """How it came about, and what it took."""
    titles = ("spill %", "cross %", "cached %", "busy %", "held p99", "error %", "cost", "us each")
    table = _table("policy", titles)
    for name, told in policies.items():
        table.add_row(
            _name(name, told),
            *(_percent(told[share]) for share in ("spill_share", "cross_region_share", "prefix_hit_rate")),
            _percent(told["busy_share"]),
            _ms(told["held_ms"]["p99"]),
            _percent(told["prediction_error"]["p50"]),
            f"{told['cost']:.2f}" if told["cost"] else "-",
            f"{told['decision_us']:.1f}" if told["decision_us"] is not None else "-",
        )
    return table


def _regions(policy: str, told: Mapping[str, Any]) -> Table:
    """What became of each region's own clients, and what each region served."""
    titles = ("own", "done", "shed", "fail", "good %", "p50", "p99 ms", "spill %", "served", "busy %")
    table = _table("region", titles, policy)
    for region, part in told["by_region"].items():
        home = part["home"]
        counts = (str(home[count]) for count in ("offered", "completed", "shed", "failed"))
        times = (_ms(home["ttft_ms"][quantile]) for quantile in ("p50", "p99"))
        table.add_row(
            region, *counts, _percent(home["goodput"] if _has_goodput(home) else None), *times,
            _percent(home["spill_share"]), str(part["served"]["completed"]), _percent(part["busy_share"]),
        )  # fmt: skip
    return table


def _has_goodput(counts: Mapping[str, Any]) -> bool:
    """False where nothing was asked, or nothing has come to an end: then all of nothing was in time."""
    return bool(counts["offered"] > counts["unfinished"])


def _with_margin(share: float, margin: float | None) -> str:
    return f"{share * 100:.2f}" + (f" ±{margin * 100:.2f}" if margin is not None else "")


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.1f}"
