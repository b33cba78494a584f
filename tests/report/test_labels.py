"""Names on the map neither cover each other nor leave it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gslb.report.labels import Box, Label, place_labels

MAP = Box(0, 0, 720, 248)


def boxes(labels: list[Label], type_px: float) -> list[Box]:
    return [Box(one.x, one.y - type_px, one.x + 0.5 * type_px * len(one.text), one.y) for one in labels]


def test_twenty_regions_of_which_some_are_close() -> None:
    spots = {f"region-{i}": (300.0 + 9 * (i % 5), 60.0 + 7 * (i // 5)) for i in range(10)}
    spots |= {f"far-{i}": (40.0 + 60 * i, 200.0) for i in range(10)}
    labels = place_labels(spots, dict.fromkeys(spots, 4.0), MAP, 11.0)
    placed = boxes(labels, 11.0)
    assert sorted(label.text for label in labels) == sorted(spots)
    assert all(a.overlap(b) < 1.0 for i, a in enumerate(placed) for b in placed[:i])
    assert all(label.leader is None for label in labels if label.text.startswith("far-"))
    assert any(label.leader is not None for label in labels)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 720), st.floats(0, 248)), max_size=12))
def test_every_name_is_placed_and_inside(points: list[tuple[float, float]]) -> None:
    spots = {f"r{index}": point for index, point in enumerate(points)}
    labels = place_labels(spots, dict.fromkeys(spots, 3.0), MAP, 15.0)
    assert len(labels) == len(spots)
    for label in labels:
        assert -1 <= label.x <= 720
        assert 0 <= label.y <= 249
