"""Rounds of figures to medians, ratios, a table and JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from rich.table import Table

from benchmarks.measure import EVENTS_PER_STREAM, Figures, Plan

REFERENCE = "nginx"
CPU_COLUMNS = (
    ("request_us", "us a request\n(JSON)", 1),
    ("stream_us", f"us a stream\n({EVENTS_PER_STREAM} events)", 0),
    ("event_us", "us an event\n(unpaced)", 2),
    ("paced_event_us", "us an event\n(paced)", 1),
)
"""Figure, title, digits after the point: CPU time of all the proxy's processes per unit of work."""

REST_COLUMNS = (
    ("idle_rss_mb", "RSS idle\nMB", 1),
    ("stream_rss_kb", "RSS a stream\nkB", 1),
    ("idle_ms_per_s", "CPU at rest\nms/s", 1),
    ("events_per_read", "events a read\n(paced)", 2),
)
"""The same of memory, of what is used while nobody asks, and of whether the pace was kept."""

FIGURES = tuple(figure for figure, _, _ in CPU_COLUMNS + REST_COLUMNS)

TARGETS: tuple[tuple[str, float], ...] = (
    ("request_us", 3.5),
    ("event_us", 1.1),
    ("paced_event_us", 1.1),
)
"""What gslb may cost at most, as a multiple of REFERENCE in the same run."""

DECISION_SITUATION, DECISION_TARGET_US = "busy", 25.0
"""What a decision over all endpoints may cost, and in which of `benchmarks.decision`'s situations."""

Rounds = Mapping[str, Sequence[Figures]]
Spread = dict[str, float]


def spread(values: Sequence[float]) -> Spread:
    """Median, least and greatest of one or more values."""
    return {"median": median(values), "min": min(values), "max": max(values)}


def summary(rounds: Rounds) -> dict[str, dict[str, Spread]]:
    """Proxy -> figure -> spread over the rounds."""
    return {
        name: {figure: spread([getattr(one, figure) for one in figures]) for figure in FIGURES}
        for name, figures in rounds.items()
    }


def ratios(rounds: Rounds) -> dict[str, dict[str, Spread]]:
    """Proxy -> figure -> ratio to REFERENCE: of the medians, and the least and greatest within one round.

    Empty when REFERENCE was not measured; a figure that is zero there has no ratio.
    """
    reference = rounds.get(REFERENCE)
    if not reference:
        return {}
    found: dict[str, dict[str, Spread]] = {}
    for name, figures in rounds.items():
        found[name] = {}
        for figure in FIGURES:
            own = [getattr(one, figure) for one in figures]
            theirs = [getattr(one, figure) for one in reference]
            if min(theirs) > 0 and len(own) == len(theirs):
                by_round = [mine / other for mine, other in zip(own, theirs, strict=True)]
                found[name][figure] = {**spread(by_round), "median": median(own) / median(theirs)}
    return found


def tables(rounds: Rounds) -> list[Table]:
    """CPU, then memory: median, below it the least and greatest, then the ratio to REFERENCE likewise."""
    return [
        _table("CPU per unit of work", CPU_COLUMNS, rounds),
        _table("Memory, CPU at rest, pace", REST_COLUMNS, rounds),
    ]


def _table(title: str, columns: Sequence[tuple[str, str, int]], rounds: Rounds) -> Table:
    sums, multiples = summary(rounds), ratios(rounds)
    shown = Table("proxy", title=title, show_lines=True)
    for _, heading, _ in columns:
        shown.add_column(heading, justify="right", no_wrap=True)
    for name, figures in sums.items():
        cells = []
        for figure, _, digits in columns:
            cell = _cell(figures[figure], digits)
            if (multiple := multiples.get(name, {}).get(figure)) is not None and name != REFERENCE:
                cell += "\nx " + _cell(multiple, 2)
            cells.append(cell)
        shown.add_row(name, *cells, style="bold" if name == "gslb" else "")
    return shown


def _cell(values: Spread, digits: int) -> str:
    middle, least, most = (f"{values[name]:,.{digits}f}" for name in ("median", "min", "max"))
    return middle if least == most else f"{middle}\n{least}-{most}"


def verdicts(rounds: Rounds, decision_us: Mapping[str, float]) -> list[str]:
    """One line per target, met or missed: by the ratio of the medians, and by a decision in a busy fleet."""
    own = ratios(rounds).get("gslb", {})
    lines = [
        f"{figure}: {own[figure]['median']:.2f} x {REFERENCE}, target at most {most:g}: "
        + _verdict(own[figure]["median"], most)
        for figure, most in TARGETS
        if figure in own
    ]
    told = ", ".join(f"{situation} {us:g}" for situation, us in decision_us.items())
    verdict = _verdict(decision_us[DECISION_SITUATION], DECISION_TARGET_US)
    lines.append(f"decision, us: {told}; target at most {DECISION_TARGET_US:g} ({DECISION_SITUATION}): {verdict}")
    return lines


def _verdict(value: float, most: float) -> str:
    return "met" if value <= most else "missed"


def as_json(rounds: Rounds, plan: Plan, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Everything as one object: plan, every round, spreads, ratios, and what `extra` brings."""
    return {
        "plan": {name: getattr(plan, name) for name in (*Plan.__slots__, "bursts")},
        "rounds": {
            name: [{member: getattr(one, member) for member in Figures.__slots__} for one in figures]
            for name, figures in rounds.items()
        },
        "summary": summary(rounds),
        f"ratio_to_{REFERENCE}": ratios(rounds),
        **extra,
    }
