"""One row per policy, a dot and an interval: goodput with its confidence, and how far predictions were off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gslb.report.chart import WIDTH, Look, axis_x, empty, figure, percents, picture
from gslb.report.figures import World, difference
from gslb.report.markup import Markup, element
from gslb.report.scale import Scale, linear, logarithmic
from gslb.report.wording import interval, percent, points

_ROW, _TOP = 25, 10
_NAME_WIDTH, _SAID_WIDTH = 98, 188


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    look: Look
    low: float
    dot: float
    high: float
    said: str


def goodput(world: World, looks: dict[str, Look], ident: str) -> Markup:
    """Goodput of every policy with its 95 % interval and its distance to the best, pair by pair of equal seeds."""
    title = "Goodput"
    rows = []
    best = next(iter(world.contenders), None)
    for runs in world.policies:
        told = runs.goodput
        if told is None or best is None:
            continue
        gap = difference(runs, best) if runs is not best else None
        said = interval(told) + (f"  ({points(gap[0].mean)})" if gap else "")
        low = told.mean if told.low is None else told.low
        high = told.mean if told.high is None else told.high
        rows.append(_Row(runs.policy, looks[runs.policy], low, told.mean, high, said))
    if not rows:
        return empty(title, "No request came to an end.")
    scale = _share_scale(rows)
    ticks = [(value, percents(scale)(value)) for value in scale.ticks(3)]
    note = (
        "Share of requests that got their first token within the budget, whole answers only. "
        "Dot: mean over seeds, bar: 95 % interval (of a single seed: Wilson’s). In brackets: points to the best."
    )
    described = "; ".join(f"{row.name} {row.said}" for row in rows)
    return figure(title, note, _drawn(ident, title, described, rows, scale, ticks, ""))


def prediction_error(world: World, looks: dict[str, Look], ident: str) -> Markup:
    """How far the predicted first token was off the measured one: median as a dot, up to the 90th percentile."""
    title = "Prediction error"
    rows = []
    for runs in world.policies:
        if runs.is_bound:
            continue
        errors = runs.total.prediction_error
        half, most = errors.quantile(0.5), errors.quantile(0.9)
        if half is not None and most is not None:
            said = f"{percent(half / 1000)}, p90 {percent(most / 1000)}"
            rows.append(_Row(runs.policy, looks[runs.policy], half / 1000, half / 1000, most / 1000, said))
    if not rows:
        return empty(title, "No policy here predicted a first token that then came.")
    left, right = _NAME_WIDTH, WIDTH - _SAID_WIDTH
    scale = logarithmic([value for row in rows for value in (row.dot, row.high)], left, right)
    ticks = [(value, f"{100 * value:g} %") for value in scale.ticks(5)]
    note = (
        "|predicted − measured| / measured time to the first token. Dot: median, bar: up to the 90th percentile."
    )
    described = "; ".join(f"{row.name} median {row.said}" for row in rows)
    return figure(title, note, _drawn(ident, title, described, rows, scale, ticks, ""))


def _share_scale(rows: Sequence[_Row]) -> Scale:
    """From a round number below all up to 100 % at most, as close to the dots as they are to each other."""
    left, right = _NAME_WIDTH, WIDTH - _SAID_WIDTH
    low, high = min(row.low for row in rows), max(row.high for row in rows)
    spread = max(high - low, 0.002)
    scale = linear([max(0.0, low - spread * 0.05), min(1.0, high)], left, right, low=None)
    return Scale(scale.low, min(scale.high, 1.0), left, right)


def _drawn(
    ident: str,
    title: str,
    described: str,
    rows: Sequence[_Row],
    scale: Scale,
    ticks: Sequence[tuple[float, str]],
    label: str,
) -> Markup:
    bottom = _TOP + _ROW * len(rows)
    parts: list[str] = [axis_x(scale, _TOP, bottom, ticks, label)]
    for index, row in enumerate(rows):
        y = _TOP + _ROW * (index + 0.5)
        colour = f"k{row.look.colour}"
        parts += [
            element("text", row.name, x=0, y=y + 4, class_="strong" if row.look.is_bold else None),
            element("line", x1=scale(row.low), x2=scale(row.high), y1=y, y2=y, class_=f"range {colour}"),
            element("circle", cx=scale(row.dot), cy=y, r=4.5, class_=f"dot {colour}"),
            element("text", row.said, x=WIDTH - _SAID_WIDTH + 14, y=y + 4, class_="said"),
        ]
    return picture(ident, title, described, WIDTH, bottom + (42 if label else 24), *parts)
