"""A run over time: what became of requests, how many wait and run, and what was broken meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from gslb.report.chart import WIDTH, Look, axis_x, axis_y, empty, figure, keys, line, path, percents, picture
from gslb.report.figures import PolicyRuns, World
from gslb.report.markup import Markup, element
from gslb.report.moments import RATES, Slot, coarser
from gslb.report.scale import Scale, linear, time_step_s
from gslb.report.shades import LANE, Shade, bands, lanes, names, shades
from gslb.report.table import figures_below
from gslb.report.wording import listed, named

_LEFT, _RIGHT = 52, WIDTH - 12
_STRIP_LEFT = 132
_OUTCOMES = (
    ("good", "within the budget"), ("late", "completed late"), ("shed", "shed"), ("failed", "failed"),
)  # fmt: skip
_TABLE_ROWS, _LINE_SLOTS = 24, 60


def over_time(world: World, looks: dict[str, Look], ident: str) -> Markup:
    """Goodput of what ended in each stretch of time, one line per policy."""
    title = "Goodput over time"
    known = {
        policy: [(slot.middle_s, slot.goodput) for slot in coarser(told, _LINE_SLOTS) if slot.goodput is not None]
        for policy, told in world.timelines.items()
    }
    shares = [share for told in known.values() for _, share in told]
    if not shares:
        return empty(title, "No request came to an end.")
    found, x = shades(world.setting, world.duration_s), _time(world)
    top = _top(found, x)
    bottom = top + 250
    y = Scale(max(0.0, min(0.9, linear([min(shares), 1.0], 0, 1, low=None).low)), 1.0, bottom, top)
    parts: list[str] = [bands(found, x, top, bottom), _axis_time(x, top, bottom)]
    parts.append(axis_y(y, _LEFT, _RIGHT, percents(y), ""))
    for policy, told in reversed(known.items()):
        parts.append(line([(x(at), y(share)) for at, share in told], looks[policy], policy, policy))
    parts.append(names(found, x, top))
    described = f"One line each for {listed(list(known))}. {_faults_told(found)}"
    shaded = " Shaded: what was broken." if found else ""
    note = f"Share within the budget of the requests that ended then, mean over seeds.{shaded}"
    legend = keys((policy, looks[policy], "") for policy in known)
    return figure(title, note, picture(ident, title, described, WIDTH, bottom + 42, *parts), legend)


def outcomes(world: World, runs: PolicyRuns, ident: str) -> Markup:
    """What became of requests each second, stacked, the offered as a line, and below it how many were held."""
    title = "What became of requests, per second"
    told = world.timelines[runs.policy]
    if not any(slot.offered or slot.ended for slot in told):
        return empty(title, "The runs hold no timeline.")
    found, x = shades(world.setting, world.duration_s), _time(world)
    top = _top(found, x)
    bottom = top + 190
    last = bottom + 86 if any(slot.held for slot in told) else bottom
    y = linear([rate for slot in told for rate in (slot.ended, slot.offered)], bottom, top)
    parts: list[str] = [
        _axis_time(x, top, last),
        axis_y(y, _LEFT, _RIGHT, lambda rate: f"{rate:,g}", ""),
        element("line", x1=_LEFT, x2=_RIGHT, y1=bottom, y2=bottom, class_="axis"),
        *_stack(told, x, y),
        element("path", d=path([(x(slot.middle_s), y(slot.offered)) for slot in told]), class_="offered"),
        *(_held(told, x, last) if last > bottom else []),
        bands(found, x, top, last),
        names(found, x, top),
    ]
    described = (
        f"Offered, good, late, shed and failed requests per second under {runs.policy}. {_faults_told(found)}"
    )
    note = "Stacked by outcome at the second it was known, mean over seeds. Line: offered."
    drawing = picture(ident, title, described, WIDTH, last + 42, *parts)
    return figure(title, note, drawing, _outcome_keys(), _slot_table(told))


def _held(told: Sequence[Slot], x: Scale, bottom: float) -> list[Markup]:
    """How many requests wait at the edges, as a low plot of its own down to `bottom`."""
    numbers = [slot.held for slot in told]
    y = linear(numbers, bottom, bottom - 52)
    return [
        axis_y(y, _LEFT, _RIGHT, lambda number: f"{number:,g}", "", about=2),
        element("text", "held at the edges", x=_LEFT, y=y.end - 8, class_="label"),
        _area(told, [0.0] * len(told), numbers, x, y, "held", "held at the edges"),
    ]


def running(world: World, runs: PolicyRuns, ident: str) -> Markup:
    """Requests in each region's engines over time, one strip per region, all to one scale."""
    title = "Running in each region’s engines"
    told = world.timelines[runs.policy]
    most = max((number for slot in told for number in slot.running.values()), default=0.0)
    if not most:
        return empty(title, "The runs hold no timeline.")
    found, x = shades(world.setting, world.duration_s), _time(world, _STRIP_LEFT)
    top, strip = _top(found, x), 46 if len(world.regions) <= 8 else 26
    bottom = top + strip * len(world.regions)
    parts: list[str] = [_axis_time(x, top, bottom)]
    peaks = []
    for index, name in enumerate(world.regions):
        y = Scale(0.0, most, top + strip * (index + 1), top + strip * index + 4)
        numbers = [slot.running.get(name, 0.0) for slot in told]
        parts.append(_area(told, [0.0] * len(told), numbers, x, y, "good", named(name)))
        parts.append(bands([shade for shade in found if name in shade.regions], x, y.end, y.start))
        parts += _strip_words(named(name), f"{max(numbers):,.0f}", y.start)
        peaks.append(f"{named(name)} {max(numbers):,.0f}")
    parts.append(names(found, x, top))
    described = f"Most requests running at once under {runs.policy}: {', '.join(peaks)}. {_faults_told(found)}"
    note = f"Mean over seeds; every strip reaches up to {most:,.0f}, its own peak stands beside it."
    return figure(title, note, picture(ident, title, described, WIDTH, bottom + 42, *parts))


def _strip_words(name: str, peak: str, base: float) -> list[Markup]:
    text = name if len(name) <= 13 else f"{name[:12]}…"
    return [
        element("line", x1=_STRIP_LEFT, x2=_RIGHT, y1=base, y2=base, class_="axis"),
        element("text", text, element("title", name), x=0, y=base - 4),
        element("text", peak, x=_STRIP_LEFT - 6, y=base - 4, text_anchor="end", class_="label"),
    ]


def _time(world: World, left: float = _LEFT) -> Scale:
    return Scale(0.0, max(world.duration_s, 1.0), left, _RIGHT)


def _top(found: Sequence[Shade], x: Scale) -> float:
    """Where the plot starts: below the rows of faults' names."""
    return 20 + LANE * (max(lanes(found, x), default=-1) + 1)


def _axis_time(x: Scale, top: float, bottom: float) -> Markup:
    step = time_step_s(x.high, 6)
    unit, size = ("h", 3600) if step >= 3600 else ("min", 60) if step >= 60 else ("s", 1)
    ticks = [(float(at), f"{at / size:g}") for at in range(0, int(x.high) + 1, step)]
    return axis_x(x, top, bottom, ticks, f"simulated time, {unit}")


def _stack(told: Sequence[Slot], x: Scale, y: Scale) -> list[Markup]:
    parts, below = [], [0.0] * len(told)
    for name, said in _OUTCOMES:
        above = [base + getattr(slot, name) for base, slot in zip(below, told, strict=True)]
        parts.append(_area(told, below, above, x, y, name, said))
        below = above
    return parts


def _area(
    told: Sequence[Slot], below: Sequence[float], above: Sequence[float], x: Scale, y: Scale, kind: str, title: str
) -> Markup:
    """The area between two values of each slot."""
    upper = [(x(slot.middle_s), y(value)) for slot, value in zip(told, above, strict=True)]
    lower = [(x(slot.middle_s), y(value)) for slot, value in zip(told, below, strict=True)]
    return element(
        "path", element("title", title), d=path([*upper, *reversed(lower)]) + "Z", class_=f"area {kind}"
    )


def _outcome_keys() -> Markup:
    items = [element("li", element("i", class_=f"swatch {name}"), said) for name, said in _OUTCOMES]
    return element(
        "ul", *items, element("li", element("i", class_="swatch offered-key"), "offered"), class_="keys"
    )


def _slot_table(told: Sequence[Slot]) -> Markup:
    head = ["from, s", "offered/s", "good/s", "late/s", "shed/s", "failed/s", "held"]
    rows = [
        [f"{slot.start_s:g}", *(f"{getattr(slot, name):,.1f}" for name in (*RATES, "held"))]
        for slot in coarser(told, _TABLE_ROWS)
    ]
    return figures_below(head, rows)


def _faults_told(found: Sequence[Shade]) -> str:
    return "; ".join(f"{shade.name} from {shade.start_s:g} to {shade.end_s:g} s" for shade in found)
