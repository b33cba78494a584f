"""Fences: each rule, in its order, with its reason."""

from __future__ import annotations

from gslb.policy.residency import ResidencyFence, ResidencyFenceRule
from gslb.routing.fences import NO_MODELS_YET, RULES, fence
from gslb.routing.view import FleetView
from gslb.types import Endpoint, Facts, ForcedState, Place
from tests.support.builders import FRANKFURT, MARKS, allow_all, endpoint, facts, fleet, region

EU = region("eu", jurisdictions={"EU"})
US = region("us", jurisdictions={"US"})


def drops(view: FleetView, asked: Facts, law: ResidencyFence | None = None) -> dict[str, str]:
    """Endpoint to the rule that dropped it."""
    _, dropped = fence(asked, view.snapshot, law.deny_reason if law else allow_all)
    return {drop.endpoint: drop.rule for drop in dropped}


def both(*more: Endpoint) -> FleetView:
    return fleet([endpoint(EU), endpoint(US), *more])


def test_nothing_stands_in_the_way_of_a_plain_request() -> None:
    view = both()
    allowed, dropped = fence(facts(), view.snapshot, allow_all)
    assert allowed == list(view.snapshot.endpoints)
    assert dropped == []


def test_model() -> None:
    view = both(endpoint(EU, 2, models=frozenset({"other"})), endpoint(EU, 3, models=None))
    assert drops(view, facts()) == {"eu/2": "model", "eu/3": "model"}
    reasons = {drop.endpoint: drop.why for drop in fence(facts(), view.snapshot, allow_all)[1]}
    assert reasons["eu/3"] == NO_MODELS_YET
    assert "llama" in reasons["eu/2"]


def test_offline_an_unlearnt_list_serves_all_and_a_declared_one_still_binds() -> None:
    members = [endpoint(EU, 1, models=None), endpoint(EU, 2, models=frozenset({"other"}))]
    view = FleetView(MARKS, assumes_models=True)
    view.configure(members, MARKS)
    assert drops(view, facts()) == {"eu/2": "model"}


def test_residency_asks_the_law_it_was_given() -> None:
    law = ResidencyFence([ResidencyFenceRule(("DE",), frozenset({"EU"}))])
    assert drops(both(), facts(place=FRANKFURT), law) == {"us/1": "residency"}
    assert drops(both(), facts(place=Place(country="BR")), law) == {}


def test_an_unknown_place_fails_closed() -> None:
    law = ResidencyFence([ResidencyFenceRule(("DE",), frozenset({"EU"}))])
    assert drops(both(), facts(), law) == {"eu/1": "residency", "us/1": "residency"}


def test_tenant() -> None:
    assert drops(both(), facts(tenant="a", tenant_jurisdictions=frozenset({"EU", "CH"}))) == {"us/1": "tenant"}
    nowhere = facts(tenant="a", tenant_jurisdictions=frozenset())
    assert drops(both(), nowhere) == {"eu/1": "tenant", "us/1": "tenant"}


def test_pin() -> None:
    assert drops(both(), facts(pinned_region="us")) == {"eu/1": "pinned"}


def test_the_operators_hand_closes_and_opens() -> None:
    view = both()
    for forced in (ForcedState.CORDONED, ForcedState.DRAINING):
        view.force("eu/1", forced)
        (drop,) = fence(facts(), view.snapshot, allow_all)[1]
        assert (drop.region, drop.endpoint, drop.rule) == ("eu", "eu/1", "forced")
        assert forced.value in drop.why
    view.force("eu/1", ForcedState.NONE)
    assert drops(view, facts()) == {}


def test_the_first_rule_that_objects_names_the_drop() -> None:
    assert [name for name, _ in RULES] == ["model", "residency", "tenant", "pinned", "forced"]
    view = both()
    view.force("us/1", ForcedState.CORDONED)
    law = ResidencyFence([ResidencyFenceRule(("DE",), frozenset({"EU"}))])
    asked = facts(place=FRANKFURT, pinned_region="eu", tenant_jurisdictions=frozenset({"EU"}))
    assert drops(view, asked, law) == {"us/1": "residency"}
    assert drops(view, asked) == {"us/1": "tenant"}
    asked.tenant_jurisdictions = None
    assert drops(view, asked) == {"us/1": "pinned"}
    asked.pinned_region = None
    assert drops(view, asked) == {"us/1": "forced"}
