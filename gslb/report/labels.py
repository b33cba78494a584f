"""Names beside points so that none covers another: the nearest free spot of a few, with a line where it is far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import cos, pi, sin

_LETTER, _LINE = 0.56, 1.1
"""Mean width of a bold letter and height of a line, in sizes of the type."""
_DISTANCES = (3.0, 12.0, 24.0, 38.0, 56.0, 80.0)
_DIRECTIONS = 16
_TOUCH = 0.5
"""Square pixels that may be covered: rounding."""
_NEAR = 10.0
"""A name farther off than this from its point gets a line to it."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle by its corners."""

    left: float
    top: float
    right: float
    bottom: float

    def overlap(self, other: Box) -> float:
        """The area that both cover."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.bottom, other.bottom) - max(self.top, other.top)
        return width * height if width > 0 and height > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Label:
    """A placed name: where its text starts (left end of the base line), and its line, if any."""

    text: str
    x: float
    y: float
    leader: tuple[Point, Point] | None


def place_labels(
    spots: Mapping[str, Point], sizes: Mapping[str, float], within: Box, type_px: float
) -> list[Label]:
    """A place for each name inside `within`, the crowded ones last to be asked and so the ones to move away.

    Greedy: each takes the first spot that covers nothing, or the one that covers least."""
    taken = [Box(x - sizes[n], y - sizes[n], x + sizes[n], y + sizes[n]) for n, (x, y) in spots.items()]
    labels = []
    for name in sorted(spots, key=lambda name: _crowd(name, spots)):
        best: tuple[float, Box, float] | None = None
        for box, distance in _candidates(name, spots[name], sizes[name], type_px):
            outside = (box.right - box.left) * _LINE * type_px - box.overlap(within)
            covered = outside * 10 + sum(box.overlap(other) for other in taken)
            if best is None or covered < best[0] - _TOUCH:
                best = (covered, box, distance)
            if best[0] < _TOUCH:
                break
        assert best is not None
        _, box, distance = best
        taken.append(box)
        leader = (spots[name], _nearest(box, spots[name])) if distance > _NEAR else None
        labels.append(Label(name, box.left + 2, box.bottom - type_px / 5, leader))
    return labels


def _crowd(name: str, spots: Mapping[str, Point]) -> float:
    x, y = spots[name]
    return sum(1.0 / (20.0 + abs(x - a) + abs(y - b)) for a, b in spots.values())


def _candidates(name: str, spot: Point, size: float, type_px: float) -> Iterator[tuple[Box, float]]:
    """Boxes around the point, the near ones first and of those the ones to the right."""
    width, height = _LETTER * type_px * len(name) + 4, _LINE * type_px
    x, y = spot
    for distance in _DISTANCES:
        for turn in range(_DIRECTIONS):
            angle = (turn + 1) // 2 * (-1) ** turn * 2 * pi / _DIRECTIONS
            away_x, away_y = cos(angle) * (size + distance), sin(angle) * (size + distance)
            # The box touches the circle of that distance with its nearest corner or side.
            left = x + away_x - width * (1 - cos(angle)) / 2
            top = y + away_y - height * (1 - sin(angle)) / 2
            yield Box(left, top, left + width, top + height), distance


def _nearest(box: Box, spot: Point) -> Point:
    return min(max(spot[0], box.left), box.right), min(max(spot[1], box.top), box.bottom)
