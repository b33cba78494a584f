"""One line per policy: the first token's time as a distribution, and goodput by load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gslb.report.chart import WIDTH, Look, Point, axis_x, axis_y, empty, figure, keys, line, percents, picture
from gslb.report.figures import PolicyRuns, World, ended
from gslb.report.markup import Markup, element, join
from gslb.report.scale import Scale, linear, logarithmic
from gslb.report.table import figures_below
from gslb.report.wording import interval, listed, milliseconds, span
from gslb.sim.statistics import Summary

_LEFT, _RIGHT, _TOP, _BOTTOM = 52, WIDTH - 12, 34, 288
_ASIDE = 2.5
_LEAST_RISE = 0.002
"""Steps of a distribution below this are not drawn: less than half a pixel."""


def first_tokens(world: World, looks: dict[str, Look], budgets_ms: Sequence[float], ident: str) -> Markup:
    """TTFT of each policy as a cumulative share of all requests: what got no answer is missing at the top, and a
    line's height at the budget is the policy's goodput."""
    title = "Time to first token"
    drawn = [runs for runs in world.policies if runs.total.ttft.count]
    if not drawn:
        return empty(title, "No request got a first token.")
    ends = [time for runs in drawn for share in (0.001, 0.999) if (time := runs.total.ttft.quantile(share))]
    x = logarithmic([*ends, *(1.2 * budget for budget in budgets_ms)], _LEFT, _RIGHT)
    y = Scale(0.0, 1.0, _BOTTOM, _TOP)
    parts: list[str] = [
        axis_x(
            x,
            _TOP,
            _BOTTOM,
            [(tick, span(tick)) for tick in x.ticks(7)],
            "time to first token, seen by the client",
        ),
        axis_y(y, _LEFT, _RIGHT, percents(y), "share of all requests"),
        *(_budget_mark(x, budget) for budget in budgets_ms),
    ]
    entries = []
    for runs in reversed(drawn):
        quantiles = [milliseconds(runs.total.ttft.quantile(share)) for share in (0.5, 0.99)]
        said = f"p50 {quantiles[0]}, p99 {quantiles[1]} ms"
        parts.append(line(_distribution(runs, x, y), looks[runs.policy], f"{runs.policy}: {said}", runs.policy))
        entries.append((runs.policy, looks[runs.policy], said))
    entries.reverse()
    described = "; ".join(f"{name} {said}" for name, _, said in entries)
    note = (
        "Share of all requests whose first token came within the time. "
        "Refused and failed ones never come, so a line ends below 100 % by as many."
    )
    return figure(title, note, picture(ident, title, described, WIDTH, _BOTTOM + 42, *parts), keys(entries))


def by_load(worlds: Sequence[World], looks: dict[str, Look], ident: str) -> Markup:
    """Goodput of each policy over the offered load, with intervals; `worlds` are one scenario at several loads."""
    title = f"Goodput by load: {worlds[0].scenario}"
    told = {
        (runs.policy, world.load): runs.goodput
        for world in worlds
        for runs in world.policies
        if world.load is not None and runs.goodput is not None
    }
    if not told:
        return empty(title, "No request came to an end.")
    loads = sorted({load for _, load in told})
    names = list(dict.fromkeys(policy for policy, _ in told))
    x = Scale(loads[0], loads[-1] if len(loads) > 1 else loads[0] + 1, _LEFT + 14, _RIGHT - 14)
    low = min(0.99, *(share.mean if share.low is None else share.low for share in told.values()))
    y = Scale(max(linear([low, 1.0], 0, 1, low=None).low, 0.0), 1.0, _BOTTOM, _TOP)
    ticks = [(load, f"{load:g}") for load in loads[:: len(loads) // 12 + 1]]
    parts: list[str] = [
        axis_x(x, _TOP, _BOTTOM, ticks, "offered load / what the fleet can serve"),
        axis_y(y, _LEFT, _RIGHT, percents(y), "goodput"),
    ]
    for index, name in reversed(list(enumerate(names))):
        # Side by side, so that whiskers at one load do not cover each other.
        aside = _ASIDE * (index - (len(names) - 1) / 2)
        series = [(x(load) + aside, told[name, load]) for load in loads if (name, load) in told]
        parts.append(line([(at, y(share.mean)) for at, share in series], looks[name], name, name))
        parts += [_whisker(at, y, share, looks[name], name) for at, share in series]
    drawing = picture(
        ident, title, f"One line each for {listed(names)}; figures below.", WIDTH, _BOTTOM + 42, *parts
    )
    legend = keys((name, looks[name], "") for name in names)
    return figure(title, "Mean over seeds, bars: 95 % interval.", drawing, legend, _load_table(names, loads, told))


def _distribution(runs: PolicyRuns, x: Scale, y: Scale) -> list[Point]:
    times = runs.total.ttft
    answered = min(1.0, times.count / max(ended(runs.total), 1))
    points, last = [(x(x.low), y(0.0))], -1.0
    for within_ms, share in times.cumulative():
        if share - last >= _LEAST_RISE or share >= 1.0:
            points.append((x(within_ms), y(share * answered)))
            last = share
    return [*points, (x(x.high), y(answered))]


def _budget_mark(x: Scale, budget_ms: float) -> Markup:
    at = x(budget_ms)
    mark = element("line", x1=at, x2=at, y1=_TOP - 6, y2=_BOTTOM, class_="mark")
    return join([mark, element("text", f"budget {span(budget_ms)}", x=at, y=_TOP - 12, text_anchor="middle")])


def _whisker(at: float, y: Scale, share: Summary, look: Look, series: str) -> Markup:
    title = element("title", f"{series}: {interval(share)}")
    dot = element("circle", cx=at, cy=y(share.mean), r=3.5, class_=f"dot k{look.colour}")
    if share.low is None or share.high is None:
        return element("g", title, dot, data_series=series)
    reach = element("line", x1=at, x2=at, y1=y(share.low), y2=y(share.high), class_=f"whisker k{look.colour}")
    return element("g", title, reach, dot, data_series=series)


def _load_table(names: Sequence[str], loads: Sequence[float], told: Mapping[tuple[str, float], Summary]) -> Markup:
    head = ["policy", *(f"load {load:g}" for load in loads)]
    rows = [[name, *(interval(told.get((name, load))) for load in loads)] for name in names]
    return figures_below(head, rows)
