"""Every refusal: its code, its fence, its words, its Retry-After."""

from __future__ import annotations

from typing import Any

import pytest

from gslb.errors import STATUS_BY_CODE
from gslb.policy.residency import ResidencyFence, ResidencyFenceRule
from gslb.routing.router import Refusal
from gslb.routing.view import FleetView
from gslb.types import UNKNOWN_PLACE, Endpoint, ForcedState
from tests.support.builders import (
    FRANKFURT,
    MODEL,
    TOKYO,
    chosen_key,
    endpoint,
    facts,
    fleet,
    fleet_at,
    occupy,
    refused,
    region,
    router,
)

EU = region("eu", jurisdictions={"EU"})
US = region("us", jurisdictions={"US"})
LAW = ResidencyFence([ResidencyFenceRule(("DE",), frozenset({"EU"}))])
OTHER = frozenset({"other"})


def ask(view: FleetView, **members: Any) -> Refusal:
    members.setdefault("place", FRANKFURT)
    refusal = refused(router(residency=LAW.deny_reason).route(facts(**members), view.snapshot, 0.0))
    assert refusal.code in STATUS_BY_CODE
    assert refusal.message
    return refusal


def told(refusal: Refusal) -> tuple[str, str | None]:
    return refusal.code, refusal.fence


def both(**of_eu: Any) -> FleetView:
    return fleet([endpoint(EU, **of_eu), endpoint(US)])


def test_an_empty_fleet() -> None:
    assert told(ask(fleet([]))) == ("no_healthy_region", None)


def test_a_model_nobody_serves() -> None:
    refusal = ask(both(), model="gpt-9")
    assert told(refusal) == ("model_not_found", "model")
    assert "'gpt-9'" in refusal.message


def test_a_model_the_pinned_region_lacks() -> None:
    refusal = ask(both(models=OTHER), pinned_region="eu")
    assert told(refusal) == ("model_not_found", "model")
    assert refusal.message.endswith("does not exist in region eu")


def test_a_pin_on_no_region() -> None:
    refusal = ask(both(), pinned_region="mars")
    assert told(refusal) == ("bad_request", None)
    assert "x-gslb-region" in refusal.message


def test_residency_denies() -> None:
    refusal = ask(fleet([endpoint(US)]))
    assert told(refusal) == ("residency_denied", "residency")
    assert "DE" in refusal.message


def test_a_pin_into_a_forbidden_region() -> None:
    assert told(ask(both(), pinned_region="us")) == ("residency_denied", "residency")


def test_the_tenants_law_denies() -> None:
    refusal = ask(both(), place=TOKYO, tenant="acme", tenant_jurisdictions=frozenset({"CH"}))
    assert told(refusal) == ("residency_denied", "tenant")
    assert "only in CH" in refusal.message


def test_two_laws_that_leave_nothing_between_them() -> None:
    refusal = ask(both(), tenant="acme", tenant_jurisdictions=frozenset({"US"}))
    assert told(refusal) == ("residency_denied", "tenant")


def test_the_model_is_served_only_where_the_law_forbids() -> None:
    assert told(ask(both(models=OTHER))) == ("residency_denied", "residency")


@pytest.mark.parametrize("pinned_region", [None, "eu"])
def test_the_operator_closed_what_the_law_leaves(pinned_region: str | None) -> None:
    view = both()
    view.force("eu/1", ForcedState.DRAINING)
    refusal = ask(view, pinned_region=pinned_region)
    assert told(refusal) == ("no_healthy_region", "forced")


def test_the_tenants_regions_are_closed() -> None:
    view = both()
    view.force("eu/1", ForcedState.CORDONED)
    refusal = ask(view, tenant="acme", tenant_jurisdictions=frozenset({"EU"}))
    assert told(refusal) == ("no_healthy_region", "forced")


class TestModelsNotLearntYet:
    def test_try_again(self) -> None:
        refusal = ask(fleet([endpoint(EU, models=None)]))
        assert told(refusal) == ("no_healthy_region", "model")
        assert refusal.retry_after_s == 1.0

    def test_it_outweighs_a_law_that_only_forbids_the_others(self) -> None:
        assert told(ask(both(models=None))) == ("no_healthy_region", "model")

    def test_but_not_a_law_that_forbids_it_too(self) -> None:
        assert told(ask(fleet([endpoint(US, models=None)]))) == ("residency_denied", "residency")

    def test_nor_a_list_elsewhere_than_pinned(self) -> None:
        view = fleet([endpoint(EU, models=None), endpoint(EU, 2), endpoint(US, models=OTHER)])
        assert told(ask(view, place=TOKYO, pinned_region="us")) == ("model_not_found", "model")

    def test_nor_the_operators_hand(self) -> None:
        view = fleet([endpoint(EU, models=None)])
        view.force("eu/1", ForcedState.CORDONED)
        assert told(ask(view)) == ("no_healthy_region", "forced")


def test_a_client_from_nowhere_fails_closed() -> None:
    assert told(ask(both(), place=UNKNOWN_PLACE)) == ("residency_denied", "residency")


class TestSaturated:
    def test_all_at_their_caps(self) -> None:
        view = fleet_at({"eu": 10, "us": 90}, capacity=2, slot_hold_ms=6000.0)
        occupy(view, "eu/1", 2)
        occupy(view, "us/1", 2)
        refusal = refused(router().route(facts(), view.snapshot, 0.0))
        assert told(refusal) == ("saturated", None)
        assert refusal.retry_after_s == 3.0
        assert refusal.home == "eu"

    def test_nearest_refuses_while_others_have_room(self) -> None:
        view = fleet_at({"eu": 10, "us": 90}, capacity=1)
        occupy(view, "eu/1", 1)
        assert refused(router(policy="nearest").route(facts(), view.snapshot, 0.0)).code == "saturated"


class TestBudget:
    def view(self, **members: Any) -> FleetView:
        return fleet_at({"eu": 100, "us": 120}, **members)

    def test_refused_early_when_nobody_can_make_it(self) -> None:
        refusal = refused(router(refuses_over_budget=True).route(facts(budget_ms=80), self.view().snapshot, 0.0))
        assert told(refusal) == ("latency_budget_unreachable", None)
        assert "100 ms" in refusal.message
        assert "80 ms" in refusal.message
        assert (refusal.retry_after_s, refusal.home) == (1.0, "eu")

    def test_not_refused_unless_configured(self) -> None:
        assert chosen_key(router().route(facts(budget_ms=80), self.view().snapshot, 0.0)) == "eu/1"

    def test_the_tax_is_no_waiting_time(self) -> None:
        view = self.view(prefill_ms_per_token=0.1)
        occupy(view, "eu/1", 1, pending_tokens=500)
        asking = router(refuses_over_budget=True)
        assert chosen_key(asking.route(facts(budget_ms=125), view.snapshot, 0.0)) == "us/1", "late at home only"
        assert chosen_key(asking.route(facts(budget_ms=131), view.snapshot, 0.0)) == "eu/1", "home still makes it"

    def test_chance_costs_nobody_its_budget(self) -> None:
        view = fleet([endpoint(EU), endpoint(EU, 2)])
        view.rtt_measured("eu/1", 100.0)
        view.rtt_measured("eu/2", 110.0)
        asking = router(refuses_over_budget=True)
        chosen = {chosen_key(asking.route(facts(budget_ms=105), view.snapshot, 0.0)) for _ in range(50)}
        assert chosen == {"eu/1"}

    def test_no_next_attempt_that_would_be_late(self) -> None:
        asking = router(refuses_over_budget=True)
        asked = facts(budget_ms=110)
        assert asking.next_attempt(asked, self.view().snapshot, 0.0, {"eu/1"}, {"eu": 1}) is None


def test_the_reason_is_kept_while_the_roster_stands_and_no_longer() -> None:
    member: Endpoint = endpoint(EU, models=None)
    view = fleet([member])
    asking = router()
    first = refused(asking.route(facts(), view.snapshot, 0.0))
    assert refused(asking.route(facts(), view.snapshot, 1.0)) is first
    view.models_learnt(member.key, [{"id": MODEL}])
    assert chosen_key(asking.route(facts(), view.snapshot, 2.0)) == member.key
