"""The sliding window against a plain list of what happened."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gslb.routing.success_ratio import Ends, RecentEnds, together

KINDS = ("good", "bad", "full")


def test_ends_add_up() -> None:
    assert together([Ends(1, 2, 3), Ends(), Ends(10, 20, 30)]) == Ends(11, 22, 33)
    assert Ends(1, 2, 3).total == 6


def test_what_is_older_than_the_window_is_gone() -> None:
    recent = RecentEnds(30.0)
    recent.add(102.0, good=5)
    recent.add(110.0, bad=2, full=1)
    assert recent.within(110.0) == Ends(5, 2, 1)
    assert recent.within(131.9) == Ends(5, 2, 1)
    assert recent.within(132.0) == Ends(0, 2, 1)
    assert recent.within(1e6) == Ends()


def test_late_news_counts_at_its_own_time() -> None:
    recent = RecentEnds(30.0)
    recent.add(129.0, good=1)
    recent.add(102.0, bad=7)
    assert recent.within(129.0) == Ends(1, 7, 0)
    assert recent.within(132.0) == Ends(1, 0, 0)
    for second in range(130, 160, 3):
        recent.add(float(second), good=1)
    recent.add(100.0, bad=7)
    assert recent.within(159.0).bad == 0, "too late"


def test_cleared_it_knows_nothing() -> None:
    recent = RecentEnds(30.0)
    recent.add(0.0, good=1)
    recent.clear()
    assert recent.within(0.0) == Ends()


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.floats(0.0, 20.0), st.integers(1, 9))))
def test_it_holds_between_nine_tenths_of_the_window_and_all_of_it(events: list[tuple[str, float, int]]) -> None:
    recent, now_s = RecentEnds(30.0), 1000.0
    past: list[tuple[str, float, int]] = []
    for kind, passed_s, count in events:
        now_s += passed_s
        recent.add(now_s, **{kind: count})
        past.append((kind, now_s, count))
        assert len(recent._spans) <= 10
        ends = recent.within(now_s)
        for name in KINDS:
            at_least, at_most = (
                sum(n for kind, at_s, n in past if kind == name and at_s > now_s - window_s)
                for window_s in (26.99, 30.01)
            )
            assert at_least <= getattr(ends, name) <= at_most
