"""What all drawings share: the picture with its title and description, axes, keys, and a policy's look."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from gslb.report.markup import Markup, element, join, number
from gslb.report.scale import Scale
from gslb.report.wording import percent

WIDTH = 520
"""Of most drawings: on a phone they shrink to about 0.7, so that 13 px letters stay readable."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Look:
    """How one series is drawn: a colour of the palette by number, and a dash pattern where colours repeat."""

    colour: int
    dash: str | None = None
    is_bold: bool = False


_DASH, _DOTS = "7 4", "2 3"
_KNOWN = {
    "ttft": Look(0, is_bold=True), "near_room": Look(1), "nearest": Look(2), "gorgo": Look(3), "hot_cold": Look(4),
    "lmetric": Look(5), "ordered": Look(1, _DASH), "least_load": Look(2, _DASH), "round_robin": Look(3, _DASH),
    "skywalker": Look(5, _DASH), "oracle": Look(6, _DOTS),
}  # fmt: skip
_SPARE = [Look(colour, dash) for dash in (None, _DASH, _DOTS) for colour in range(7)]


def looks(policies: Iterable[str]) -> dict[str, Look]:
    """A look for each policy: the named ones look alike on every page, others take what is free."""
    names = list(dict.fromkeys(policies))
    found = {name: _KNOWN[name] for name in names if name in _KNOWN}
    taken = {(look.colour, look.dash) for look in found.values()}
    spare = [look for look in _SPARE if (look.colour, look.dash) not in taken]
    others = [name for name in names if name not in found]
    return found | {name: spare[index % len(spare)] for index, name in enumerate(others)}


def picture(ident: str, title: str, description: str, width: float, height: float, *content: str) -> Markup:
    """An SVG that says what it shows to those who cannot see it."""
    return element(
        "svg", element("title", title, id=f"{ident}-t"), element("desc", description, id=f"{ident}-d"), *content,
        viewBox=f"0 0 {number(width)} {number(height)}", role="img", aria_labelledby=f"{ident}-t {ident}-d",
    )  # fmt: skip


def figure(title: str, note: str, *content: str) -> Markup:
    """A drawing or table with what it is called and how it is read."""
    caption = element("figcaption", element("h4", title), element("p", note) if note else Markup())
    return element("figure", caption, *content)


def empty(title: str, note: str) -> Markup:
    """In place of a drawing that would have nothing in it."""
    return figure(title, "", element("p", note, class_="nothing"))


def axis_x(scale: Scale, top: float, bottom: float, ticks: Sequence[tuple[float, str]], label: str) -> Markup:
    """Grid lines from `top` to `bottom`, tick labels below and, under them, what is measured."""
    parts = [element("line", x1=scale.start, x2=scale.end, y1=bottom, y2=bottom, class_="axis")]
    for value, text in ticks:
        x = scale(value)
        parts.append(element("line", x1=x, x2=x, y1=top, y2=bottom, class_="grid"))
        parts.append(element("text", text, x=x, y=bottom + 17, text_anchor="middle"))
    if label:
        middle = (scale.start + scale.end) / 2
        parts.append(element("text", label, x=middle, y=bottom + 35, text_anchor="middle", class_="label"))
    return join(parts)


def axis_y(
    scale: Scale, left: float, right: float, text: Callable[[float], str], label: str, about: int = 5
) -> Markup:
    """Grid lines from `left` to `right`, tick labels to their left, and what is measured above the top one."""
    parts = []
    for value in scale.ticks(about):
        y = scale(value)
        parts.append(element("line", x1=left, x2=right, y1=y, y2=y, class_="grid"))
        parts.append(element("text", text(value), x=left - 7, y=y + 4, text_anchor="end"))
    if label:
        parts.append(element("text", label, x=2, y=scale.end - 15, class_="label"))
    return join(parts)


def percents(scale: Scale) -> Callable[[float], str]:
    """How to write shares on that scale: with as many decimals as keep its ticks apart."""
    step = (scale.high - scale.low) / 5
    return partial(percent, decimals=0 if step >= 0.008 else 1 if step >= 0.0008 else 2)


def line(points: Sequence[Point], look: Look, title: str, series: str | None = None) -> Markup:
    """A line through `points`. Equal `series` within one figure light up together with their key."""
    classes = f"line k{look.colour}{' bold' if look.is_bold else ''}"
    drawn = element("path", d=path(points), class_=classes, stroke_dasharray=look.dash)
    return element("g", element("title", title), drawn, data_series=series)


def path(points: Sequence[Point]) -> str:
    """Path data of straight lines through `points`."""
    return "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points) if points else ""


def keys(entries: Iterable[tuple[str, Look, str]]) -> Markup:
    """The key below a drawing: (name, look, what is said beside it) each; pointing at one lights up its line."""
    told = list(entries)
    kind = "keys told" if any(text for _, _, text in told) else "keys"
    return element("ul", *(_key(*entry) for entry in told), class_=kind)


def _key(name: str, look: Look, text: str) -> Markup:
    swatch = element(
        "svg",
        element("line", x1=1, x2=27, y1=6, y2=6, class_=f"line k{look.colour}", stroke_dasharray=look.dash),
        viewBox="0 0 28 12", width=28, height=12, aria_hidden="true",
    )  # fmt: skip
    said = [element("span", text)] if text else []
    return element("li", swatch, name, *said, data_series=name, tabindex="0")
