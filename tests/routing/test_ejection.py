"""What the fleet can bear to lose."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gslb.routing.ejection import Standing, may_be_lost, others_have_room
from gslb.routing.success_ratio import Ends, RecentEnds


def standing(
    key: str, slots: int | None = 10, *, is_live: bool = True, models: str = "m", ends: Ends | None = None
) -> Standing:
    recent = RecentEnds(30.0)
    if ends is not None:
        recent.add(0.0, ends.good, ends.bad, ends.full)
    return Standing(key, frozenset(models), slots, is_live, recent)


def test_of_two_equals_one_may_go() -> None:
    assert may_be_lost("a", [standing("a"), standing("b")], 0.5)
    assert not may_be_lost("a", [standing("a"), standing("b", is_live=False)], 0.5)


def test_capacity_counts_and_not_heads() -> None:
    fleet = [standing("a", 90), standing("b", 10)]
    assert not may_be_lost("a", fleet, 0.5)
    assert may_be_lost("b", fleet, 0.5)


def test_unknown_slots_are_taken_for_the_mean() -> None:
    fleet = [standing("a", 90), standing("b", 30), standing("c", None)]
    assert may_be_lost("c", fleet, 0.5)
    assert may_be_lost("a", fleet, 0.5)
    assert not may_be_lost("a", [*fleet[:2], standing("c", None, is_live=False)], 0.5)
    assert may_be_lost("a", [standing("a", None), standing("b", None)], 0.5), "none is known: by heads"


def test_the_only_one_of_its_model_is_ejected_like_any_other() -> None:
    assert may_be_lost("a", [standing("a"), standing("b", models="n")], 0.5)


def test_every_model_it_serves_must_be_left_enough() -> None:
    fleet = [standing("a", models="mn"), standing("b", models="m"), standing("c", models="n", is_live=False)]
    assert not may_be_lost("a", fleet, 0.5), "n would be gone"
    assert may_be_lost("b", fleet, 0.5)


def test_who_is_out_or_closed_takes_nothing_away() -> None:
    fleet = [standing("a", is_live=False), standing("b", is_live=False)]
    assert may_be_lost("a", fleet, 0.5), "a trial that failed"
    assert may_be_lost("closed by hand", fleet, 0.5)


def test_no_share_to_be_kept_is_no_cap() -> None:
    assert may_be_lost("a", [standing("a"), standing("b", is_live=False)], 0.0)


def test_a_full_endpoint_goes_only_while_others_serve() -> None:
    full, well = Ends(5, 0, 15), Ends(18, 1, 1)
    assert others_have_room("a", [standing("a", ends=full), standing("b", ends=well)], 1.0, 0.5)
    assert not others_have_room("a", [standing("a", ends=full), standing("b", ends=full)], 1.0, 0.5)
    assert not others_have_room("a", [standing("a", ends=full), standing("b", ends=well, is_live=False)], 1.0, 0.5)
    assert not others_have_room("a", [standing("a", ends=full), standing("b", ends=well, models="n")], 1.0, 0.5)
    assert not others_have_room("a", [standing("a", ends=full)], 1.0, 0.5)
    assert not others_have_room("a", [standing("a", ends=full), standing("b")], 1.0, 0.5), "nobody asked it"
    assert not others_have_room("a", [standing("a", ends=full), standing("b", ends=well)], 99.0, 0.5), "long ago"


SLOTS = st.one_of(st.none(), st.integers(1, 100))


@given(st.lists(SLOTS, min_size=2, max_size=12), st.floats(0.0, 1.0), st.randoms(use_true_random=False))
def test_whatever_goes_the_share_stays(slots: list[int | None], kept: float, dice: object) -> None:
    """Eject as long as anybody may go, in any order: what is left is never less than the share."""
    order = list(range(len(slots)))
    dice.shuffle(order)  # type: ignore[attr-defined]
    fleet = [standing(str(i), count) for i, count in enumerate(slots)]
    known = [count for count in slots if count is not None]
    mean = sum(known) / len(known) if known else 1.0
    for i in order:
        if may_be_lost(str(i), fleet, kept):
            fleet[i] = standing(str(i), slots[i], is_live=False)
    sizes = [mean if count is None else count for count in slots]
    live = sum(size for size, one in zip(sizes, fleet, strict=True) if one.is_live)
    assert live >= kept * sum(sizes) - 1e-6
