"""The tables: figures per policy, the same per home region, and how the runs were made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from gslb.report.figures import PolicyRuns, World, ended, ratio
from gslb.report.markup import Markup, element, join
from gslb.report.wording import UNKNOWN, count, hundredths, interval, milliseconds, named, seconds
from gslb.sim.result import Tally
from gslb.sim.statistics import Summary


@dataclass(frozen=True, slots=True)
class _Row:
    """Whose figures a row tells. Counts are divided by `runs`: one run's worth, whatever the number of seeds."""

    tally: Tally
    runs: int
    goodput: Summary | None


@dataclass(frozen=True, slots=True)
class _Column:
    group: str
    name: str
    text: Callable[[_Row], str]


def _counted(field: str) -> Callable[[_Row], str]:
    return lambda row: count(getattr(row.tally, field) / row.runs)


def _of_completed(field: str) -> Callable[[_Row], str]:
    return lambda row: hundredths(ratio(getattr(row.tally, field), row.tally.completed))


def _first_token(share: float) -> Callable[[_Row], str]:
    return lambda row: milliseconds(row.tally.ttft.quantile(share))


def _end_to_end(share: float) -> Callable[[_Row], str]:
    return lambda row: seconds(row.tally.end_to_end.quantile(share))


_COLUMNS = (
    *(_Column("requests per run", name, _counted(name)) for name in ("offered", "completed", "shed", "failed")),
    _Column("in budget, %", "goodput", lambda row: interval(row.goodput, "")),
    *(_Column("first token, ms", f"p{at}", _first_token(at / 100)) for at in (50, 90, 99)),
    *(_Column("end to end, s", f"p{at}", _end_to_end(at / 100)) for at in (50, 99)),
    _Column("share, %", "held", lambda row: hundredths(ratio(row.tally.held, ended(row.tally)))),
    _Column("share, %", "spilled", _of_completed("spilled")),
    _Column("share, %", "cross-region", _of_completed("crossed")),
    _Column(
        "engines, %",
        "prefix hits",
        lambda row: hundredths(ratio(row.tally.cached_tokens, row.tally.prompt_tokens)),
    ),
)
Head = Sequence[tuple[str, str]]
"""(group, name) of each column; equal neighbouring groups are written once, above."""


def policies(world: World, subject: str) -> Markup:
    """One row per policy, the best goodput first; `subject` is the row that the details below start with."""
    extra = [("engines, %", "GPU busy"), ("per run", "cost"), ("decision", "CPU µs")]
    head = [("", "policy"), *((column.group, column.name) for column in _COLUMNS), *extra]
    rows = []
    for runs in world.policies:
        row = _Row(runs.total, len(runs.runs), runs.goodput)
        cells = [
            *(column.text(row) for column in _COLUMNS),
            hundredths(_fleet_busy(world, runs)),
            _cost(runs),
            _decision(runs),
        ]
        rows.append(([_policy_name(runs), *cells], "chosen" if runs.policy == subject else None))
    caption = "Times and shares over all seeds together; ± is the 95 % interval over seeds."
    return _table(head, rows, caption)


def regions(world: World, runs: PolicyRuns) -> Markup:
    """One row per home region under one policy, and what its own GPUs and engines did."""
    extra = [("engines, %", "GPU busy"), ("per run", "answered there")]
    head = [("", "clients at home in"), *((column.group, column.name) for column in _COLUMNS), *extra]
    rows = []
    for name in world.regions:
        row = _Row(runs.by_home.get(name, Tally()), len(runs.runs), runs.goodput_at(name))
        served = runs.by_served.get(name, Tally()).completed / len(runs.runs)
        cells = [*(column.text(row) for column in _COLUMNS), hundredths(runs.busy_share(name)), count(served)]
        rows.append(([named(name), *cells], None))
    return _table(head, rows, "Clients are counted at the region nearest to them, wherever they were served.")


def making(world: World) -> Markup:
    """How the runs were made, and figures that explain others."""
    head = [
        ("", "policy"), ("runs", "seeds"), ("runs", "length, s"), ("runs", "wall, s"), ("runs", "requests/s"),
        ("requests", "overdue at the end"), ("requests", "unfinished"), ("requests", "attempts each"),
        ("held, ms", "p50"), ("held, ms", "p99"), ("prediction error, %", "p50"), ("prediction error, %", "p90"),
        ("tokens per run", "prompt"), ("tokens per run", "of them cached"), ("tokens per run", "output"),
    ]  # fmt: skip
    return _table(head, [([_policy_name(runs), *_making(runs)], None) for runs in world.policies], "")


def figures_below(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    """A drawing's figures as a table, folded away."""
    table = _table([("", name) for name in head], [(row, None) for row in rows], "")
    return element("details", element("summary", "Figures"), table)


def _making(runs: PolicyRuns) -> list[str]:
    total, number = runs.total, len(runs.runs)
    wall_s = sum(run.wall_s for run in runs.runs)
    errors = [total.prediction_error.quantile(share) for share in (0.5, 0.9)]
    speed = ratio(total.offered, wall_s)
    attempts = ratio(total.attempts, ended(total))
    return [
        ", ".join(str(run.seed) for run in runs.runs),
        count(runs.mean(run.simulated_s for run in runs.runs)),
        f"{wall_s:,.1f}",
        UNKNOWN if speed is None else count(speed),
        count(total.overdue / number),
        count(total.unfinished / number),
        UNKNOWN if attempts is None else f"{attempts:.3f}",
        *(milliseconds(total.held_time.quantile(share)) for share in (0.5, 0.99)),
        *(hundredths(None if error is None else error / 1000) for error in errors),
        *(count(tokens / number) for tokens in (total.prompt_tokens, total.cached_tokens, total.output_tokens)),
    ]


def _policy_name(runs: PolicyRuns) -> Markup:
    badges = [("bound", "sees the true state: a bound, not a contender")] if runs.is_bound else []
    badges += [("partial", "interrupted")] if runs.is_partial else []
    return element(
        "span", runs.policy, *(element("small", word, title=why, class_="badge") for word, why in badges)
    )


def _fleet_busy(world: World, runs: PolicyRuns) -> float | None:
    """The mean over endpoints, or over regions when the fleet is not known."""
    names = [e.region.name for e in world.setting.endpoints] if world.setting else world.regions
    shares = [share for name in names if (share := runs.busy_share(name)) is not None]
    return ratio(sum(shares), len(shares))


def _cost(runs: PolicyRuns) -> str:
    cost = runs.mean(run.cost for run in runs.runs)
    return f"{cost:,.2f}" if cost else UNKNOWN


def _decision(runs: PolicyRuns) -> str:
    return UNKNOWN if runs.decision_us is None else f"{runs.decision_us:.1f}"


def _table(head: Head, rows: Sequence[tuple[Sequence[str], str | None]], caption: str) -> Markup:
    """A table that scrolls sideways by itself; its first column stays in sight."""
    groups = [(group, len(list(same))) for group, same in groupby(head, key=lambda column: column[0])]
    above = [element("th", group, colspan=str(span), scope="colgroup") for group, span in groups]
    names = [element("th", name, scope="col") for _, name in head]
    body = [
        element(
            "tr", element("th", cells[0], scope="row"), *(element("td", cell) for cell in cells[1:]), class_=kind
        )
        for cells, kind in rows
    ]
    top = [element("tr", *above, class_="groups")] if any(group for group, _ in groups) else []
    inner = element("table", element("thead", *top, element("tr", *names)), element("tbody", *body))
    said = element("p", caption, class_="sub") if caption else Markup()
    scroll = element("div", inner, class_="scroll", tabindex="0", role="region", aria_label=caption or "figures")
    return join([said, scroll])
