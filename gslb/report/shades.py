"""What was broken when, as named bands behind a timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gslb.report.markup import Markup, element, join
from gslb.report.scale import Scale
from gslb.sim.setting import Fault, Setting

LANE = 22
"""Height of one row of names above a plot."""
_LETTER = 7.0
"""Mean width of a letter of 12 px, to tell which names would run into each other."""


@dataclass(frozen=True, slots=True)
class Shade:
    """One fault on the page. `region` is where its target stands (its own name when no region is known),
    `noticed_s` when it was announced, which is its start without a notice."""

    name: str
    region: str
    noticed_s: float
    start_s: float
    end_s: float


def shades(setting: Setting | None, duration_s: float) -> list[Shade]:
    """The faults that fall into the run, by start."""
    if setting is None:
        return []
    found = [_shade(fault, setting, duration_s) for fault in setting.faults if fault.at_s < duration_s]
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


def _shade(fault: Fault, setting: Setting, duration_s: float) -> Shade:
    homes = (e.region.name for e in setting.endpoints if fault.target in (e.key, e.node))
    is_region = any(region.name == fault.target for region in setting.regions)
    region = fault.target if is_region else next(homes, fault.target)
    slower = f" ×{fault.factor:g}" if fault.factor != 1.0 else ""
    name = f"{fault.kind.replace('_', ' ')}{slower}: {fault.target}"
    return Shade(
        name, region, max(0.0, fault.at_s - fault.notice_s), max(0.0, fault.at_s), min(fault.until_s, duration_s)
    )


def _told(shade: Shade) -> str:
    notice = f", announced at {shade.noticed_s:g} s" if shade.noticed_s < shade.start_s else ""
    return f"{shade.name}, {shade.start_s:g} to {shade.end_s:g} s{notice}"
