"""What was broken when, as named bands behind a timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gslb.report.markup import Markup, element, join
from gslb.report.scale import Scale
from gslb.report.wording import listed
from gslb.sim.setting import Fault, Setting

LANE = 22
"""Height of one row of names above a plot."""
_FEW = 2
"""So many targets of one fault are named one by one."""
_LETTER = 7.0
"""Mean width of a letter of 12 px, to tell which names would run into each other."""


@dataclass(frozen=True, slots=True)
class Shade:
    """What broke in one way at one time. `regions` are those its targets stand in (a target's own name when its
    region is not known), `noticed_s` when it was announced: without a notice, as it starts."""

    name: str
    regions: tuple[str, ...]
    noticed_s: float
    start_s: float
    end_s: float


def shades(setting: Setting | None, duration_s: float) -> list[Shade]:
    """The faults that fall into the run, by start."""
    if setting is None:
        return []
    alike: dict[tuple[str, float, float, float, float], list[Fault]] = {}
    for fault in setting.faults:
        if fault.at_s < duration_s:
            key = (fault.kind, fault.at_s, fault.until_s, fault.factor, fault.notice_s)
            alike.setdefault(key, []).append(fault)
    found = [_shade(faults, setting, duration_s) for faults in alike.values()]
    return sorted(found, key=lambda shade: shade.start_s)


def bands(found: Sequence[Shade], x: Scale, top: float, bottom: float) -> Markup:
    """Each fault's time as a band from `top` to `bottom`; a notice's time is paler."""
    parts = [_stretch(shade, x, top, bottom, "fault", "notice") for shade in found]
    return element("g", *parts) if parts else Markup()


def names(found: Sequence[Shade], x: Scale, top: float) -> Markup:
    """Each fault's name above `top`, underlined as long as it lasts."""
    parts = []
    for shade, row in zip(found, lanes(found, x), strict=True):
        base = top - 11 - LANE * row
        start = min(x(shade.start_s), x.end - _LETTER * len(shade.name))
        parts.append(element("text", shade.name, x=max(0.0, start), y=base, class_="fault-name"))
        parts.append(_stretch(shade, x, base + 4, base + 7, "lasts", "announced"))
    return join(parts)


def lanes(found: Sequence[Shade], x: Scale) -> list[int]:
    """The row of each fault's name, 0 nearest to the plot, so that no two overlap."""
    ends: list[float] = []
    rows = []
    for shade in found:
        width = _LETTER * len(shade.name)
        start = max(0.0, min(x(shade.noticed_s), x.end - width))
        row = next((index for index, taken in enumerate(ends) if taken + 8 <= start), len(ends))
        ends[row : row + 1] = [max(start + width, x(shade.start_s) + width, x(shade.end_s))]
        rows.append(row)
    return rows


def _stretch(shade: Shade, x: Scale, top: float, bottom: float, kind: str, notice: str) -> Markup:
    parts = [element("title", _told(shade))]
    for start, end, class_ in ((shade.noticed_s, shade.start_s, notice), (shade.start_s, shade.end_s, kind)):
        if end > start:
            width = max(x(end) - x(start), 1.0)
            parts.append(element("rect", x=x(start), y=top, width=width, height=bottom - top, class_=class_))
    return element("g", *parts)


def _shade(faults: Sequence[Fault], setting: Setting, duration_s: float) -> Shade:
    first, targets = faults[0], [fault.target for fault in faults]
    regions = tuple(dict.fromkeys(_region_of(target, setting) for target in targets))
    where = listed(targets) if len(targets) <= _FEW else f"{len(targets)} in {listed(list(regions))}"
    slower = f" ×{first.factor:g}" if first.factor != 1.0 else ""
    name = f"{first.kind.replace('_', ' ')}{slower}: {where}"
    start_s, noticed_s = max(0.0, first.at_s), max(0.0, first.at_s - first.notice_s)
    return Shade(name, regions, noticed_s, start_s, min(first.until_s, duration_s))


def _region_of(target: str, setting: Setting) -> str:
    """The region of a fault's target: it may be one itself, an endpoint or a node."""
    if any(region.name == target for region in setting.regions):
        return target
    return next((e.region.name for e in setting.endpoints if target in (e.key, e.node)), target)


def _told(shade: Shade) -> str:
    notice = f", announced at {shade.noticed_s:g} s" if shade.noticed_s < shade.start_s else ""
    return f"{shade.name}, {shade.start_s:g} to {shade.end_s:g} s{notice}"
