"""A decision that can say why: as a value and in one line."""

from __future__ import annotations

from gslb.routing.explanation import one_line
from gslb.types import Dropped, Explanation, ForcedState, Ranked
from tests.support.builders import decided, eject, facts, fleet_at, occupy, refused, router

REGIONS = {"eu": 10.0, "us": 90.0, "ap": 200.0}


def test_the_whole_story() -> None:
    view = fleet_at(REGIONS, per_region=2, capacity=20)
    view.force("us/1", ForcedState.DRAINING)
    eject(view, "ap/1")
    occupy(view, "us/2", 18)
    choice, told = router().explain(facts(prompt_tokens=200), view.snapshot, 0.0)
    assert decided(choice).region == "eu"
    assert [one.endpoint for one in told.ranked[2:]] == ["us/2", "ap/2"]
    assert {one.endpoint for one in told.ranked[:2]} == {"eu/1", "eu/2"}
    assert told.ranked[2] == Ranked("us", "us/2", 130.0, 90.0, 0.0, 10.0, 30.0, True, "gate shut")
    assert [(drop.endpoint, drop.rule) for drop in told.dropped] == [("us/1", "forced"), ("ap/1", "health")]
    assert told.dropped[1].why == "ejected: requests: 3 in a row failed, the last: connection refused"
    assert (told.home, told.reason) == ("eu", "home")


def test_the_last_resort_is_ranked_with_its_state() -> None:
    view = fleet_at(REGIONS)
    eject(view, "eu/1", "us/1", "ap/1")
    _, told = router().explain(facts(), view.snapshot, 0.0)
    assert [(one.endpoint, one.note) for one in told.ranked] == [
        ("eu/1", "ejected"), ("us/1", "ejected"), ("ap/1", "ejected"),
    ]  # fmt: skip
    assert told.choice == told.ranked[0]


def test_a_refusal_tells_its_code_and_who_was_dropped() -> None:
    view = fleet_at(REGIONS)
    choice, told = router().explain(facts(model="other"), view.snapshot, 0.0)
    assert refused(choice).code == told.reason == "model_not_found"
    assert (told.choice, told.home, told.ranked) == (None, None, ())
    assert {drop.rule for drop in told.dropped} == {"model"}


def test_full_ones_are_ranked_without_room() -> None:
    view = fleet_at({"eu": 10, "us": 90}, capacity=2)
    occupy(view, "eu/1", 2)
    _, told = router().explain(facts(), view.snapshot, 0.0)
    assert {one.endpoint: one.has_room for one in told.ranked} == {"eu/1": False, "us/1": True}
    assert told.reason == "full"


def ranked(endpoint: str, total_ms: float) -> Ranked:
    return Ranked(endpoint.split("/")[0], endpoint, total_ms, total_ms - 35.4, 5.4, 0.0, 30.0)


class TestOneLine:
    def test_a_choice(self) -> None:
        first, *others = (ranked(f"r{n}/1", 100.4 + n) for n in range(6))
        dropped = tuple(Dropped("x", f"x/{n}", "model", "why") for n in range(8))
        line = one_line(Explanation(first, "eu", "full", (first, *others), dropped))
        assert line == (
            "r0/1 100ms = network 65 + queue 5 + prefill 0 + tax 30; home eu (full); "
            "then r1/1 101ms, r2/1 102ms, r3/1 103ms; "
            "dropped x/0 by model, x/1 by model, x/2 by model, x/3 by model, x/4 by model, x/5 by model"
        )

    def test_a_refusal(self) -> None:
        dropped = (Dropped("eu", "eu/1", "residency", "why"),)
        line = one_line(Explanation(None, None, "residency_denied", (), dropped))
        assert line == "home - (residency_denied); dropped eu/1 by residency"

    def test_it_is_printable_ascii_whatever_names_hold(self) -> None:
        name = "Zürich\r\nx-evil: 1\x7f\t東京"
        line = one_line(Explanation(ranked(name, 10.0), name, "home", (), (Dropped(name, name, name, name),)))
        assert all(" " <= c <= "~" for c in line)
        assert "Z?rich??x-evil: 1" in line
