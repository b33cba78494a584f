"""A sketch of the world: regions where they stand, and who served whom as arcs between them.

Equirectangular (a degree is as long everywhere): no projection to explain. Land is where cities are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import hypot, sqrt

from gslb.geo.atlas import cities
from gslb.report.chart import Point, empty, figure, picture
from gslb.report.figures import PolicyRuns, World
from gslb.report.labels import Box, place_labels
from gslb.report.markup import Markup, element, join, number
from gslb.report.wording import count, listed, percent
from gslb.types import Place

_WEST, _NORTH, _SOUTH = -168.0, 74.0, -50.0
"""Cut through the Bering Strait and above Antarctica, so that no coast is cut."""
_DEGREE = 2.0
_WIDTH, _HEIGHT = 360 * _DEGREE, (_NORTH - _SOUTH) * _DEGREE
MANY_REGIONS = 8
"""With more, matrix and map each take the whole width."""
_MOST_ARCS = 40
_BEND = 0.16
"""How far an arc bows out, as a share of its length: there and back bow to opposite sides."""


def land(ident: str) -> Markup:
    """The dots of all cities, kept once per page and used by every map on it."""
    spots = {(round(x), round(y)) for x, y in (_at(city.lat, city.lon) for city in cities())}
    dots = "".join(f"M{x} {y}h0" for x, y in sorted(spots) if 0 <= y <= _HEIGHT)
    drawn = element("path", id=ident, d=dots, class_="land")
    return element("svg", drawn, width=0, height=0, aria_hidden="true", class_="store")


def world_map(world: World, runs: PolicyRuns, ident: str, land_ident: str) -> Markup:
    """Regions with what they completed, and an arc for each pair of home and foreign server."""
    title = "Where requests went"
    spots, unplaced = _spots(world)
    if not spots:
        return empty(title, "The regions' coordinates are not known.")
    foreign = Counter({pair: flow for pair, flow in runs.flows.items() if pair[0] != pair[1] and flow})
    drawn = [
        (pair, flow) for pair, flow in foreign.most_common(_MOST_ARCS) if pair[0] in spots and pair[1] in spots
    ]
    most = max((flow for _, flow in drawn), default=1)
    served: Counter[str] = Counter()
    for (_, name), flow in runs.flows.items():
        served[name] += flow
    arcs = [_arc(pair, flow, most, spots, runs) for pair, flow in reversed(drawn)]
    is_large = len(world.regions) > MANY_REGIONS
    dots = _regions(spots, served, 11.0 if is_large else 15.0)
    content = [element("use", href=f"#{land_ident}"), *arcs, dots]
    total = sum(runs.flows.values())
    described = (
        f"{percent(foreign.total() / total if total else 0.0)} of completed requests left their home region. "
        + "; ".join(f"{home} to {name} {count(flow / len(runs.runs))}" for (home, name), flow in drawn[:10])
    )
    note = "Circles: completed there. Arcs: from home to the region that served instead, thicker for more."
    if len(foreign) > len(drawn):
        note += f" The {len(drawn)} largest of {len(foreign)} flows."
    if unplaced:
        note += f" Not on the map for want of coordinates: {listed(unplaced)}."
    drawing = element(
        "div",
        picture(ident, title, described, _WIDTH, _HEIGHT, *content),
        class_="scroll map large" if is_large else "scroll map",
    )
    return figure(title, note, drawing)


def _spots(world: World) -> tuple[dict[str, Point], list[str]]:
    places: Mapping[str, Place] = {r.name: r.place for r in world.setting.regions} if world.setting else {}
    spots, unplaced = {}, []
    for name in world.regions:
        place = places.get(name)
        if place is not None and place.lat is not None and place.lon is not None:
            spots[name] = _at(place.lat, place.lon)
        else:
            unplaced.append(name)
    return spots, unplaced


def _at(lat: float, lon: float) -> Point:
    return ((lon - _WEST) % 360.0) * _DEGREE, (_NORTH - lat) * _DEGREE


def _arc(pair: tuple[str, str], flow: int, most: int, spots: Mapping[str, Point], runs: PolicyRuns) -> Markup:
    """A bow from home to server with an arrow head; over the map's edge when that way round is shorter."""
    (x1, y1), (x2, y2) = spots[pair[0]], spots[pair[1]]
    shift = -_WIDTH if x2 - x1 > _WIDTH / 2 else _WIDTH if x1 - x2 > _WIDTH / 2 else 0.0
    width = 0.8 + 4.2 * sqrt(flow / most)
    bows = [_bow((x1, y1), (x2 + shift, y2), width)]
    if shift:
        bows.append(_bow((x1 - shift, y1), (x2, y2), width))
    home_total = sum(count for (home, _), count in runs.flows.items() if home == pair[0])
    title = (
        f"{pair[0]} → {pair[1]}: {count(flow / len(runs.runs))} per run, {percent(flow / home_total)} of {pair[0]}"
    )
    return element("g", element("title", title), *bows, class_="arc")


def _bow(start: Point, end: Point, width: float) -> Markup:
    (x1, y1), (x2, y2) = start, end
    dx, dy = x2 - x1, y2 - y1
    length = hypot(dx, dy) or 1.0
    bend_x, bend_y = (x1 + x2) / 2 + dy * _BEND, (y1 + y2) / 2 - dx * _BEND
    # The arrow lies along the curve's last direction, which is from its bend to its end.
    ux, uy = x2 - bend_x, y2 - bend_y
    reach = hypot(ux, uy) or 1.0
    ux, uy = ux / reach, uy / reach
    size = min(5.0 + 1.2 * width, length * 0.5)
    tip_x, tip_y = x2 - 5 * ux, y2 - 5 * uy
    back_x, back_y = tip_x - size * ux, tip_y - size * uy
    curve = f"M{number(x1)} {number(y1)}Q{number(bend_x)} {number(bend_y)} {number(back_x)} {number(back_y)}"
    corners = [
        (tip_x, tip_y),
        (back_x - uy * size / 2, back_y + ux * size / 2),
        (back_x + uy * size / 2, back_y - ux * size / 2),
    ]
    head = " ".join(f"{number(x)},{number(y)}" for x, y in corners)
    return join([element("path", d=curve, stroke_width=width), element("polygon", points=head)])


def _regions(spots: Mapping[str, Point], served: Mapping[str, int], type_px: float) -> Markup:
    most = max((served.get(name, 0) for name in spots), default=0) or 1
    sizes = {name: 3.0 + 7.0 * sqrt(served.get(name, 0) / most) for name in spots}
    circles = [
        element(
            "circle",
            element("title", f"{name}: {count(served.get(name, 0))} completed"),
            cx=x,
            cy=y,
            r=sizes[name],
        )
        for name, (x, y) in spots.items()
    ]
    labels = place_labels(spots, sizes, Box(0, 0, _WIDTH, _HEIGHT), type_px)
    texts = []
    for label in labels:
        if label.leader is not None:
            (x1, y1), (x2, y2) = label.leader
            texts.append(element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_="leader"))
        texts.append(element("text", label.text, x=label.x, y=label.y, class_="place"))
    return element("g", *circles, *texts, class_="sites")
