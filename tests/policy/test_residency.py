from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gslb.policy.residency import ResidencyFence, ResidencyFenceRule, tenant_deny_reason
from gslb.types import Place, Region

GROUPS = {"EU": frozenset({"DE", "FR"}), "EEA": frozenset({"DE", "FR", "NO"})}
FRANKFURT = Region("eu", Place(), frozenset({"DE", "EU", "EEA"}))
OSLO = Region("no", Place(), frozenset({"NO", "EEA"}))
VIRGINIA = Region("us", Place(), frozenset({"US"}))
LAWLESS = Region("sea", Place())
EU_RULE = ResidencyFenceRule(("EU",), frozenset({"EU"}))
NORWAY_RULE = ResidencyFenceRule(("NO", "CH"), frozenset({"NO", "EU"}))


def test_a_rule_binds_the_countries_of_its_group_and_no_other() -> None:
    fence = ResidencyFence([EU_RULE], groups=GROUPS)
    assert fence.deny_reason(Place(country="FR"), FRANKFURT) is None
    assert fence.deny_reason(Place(country="BR"), VIRGINIA) is None
    for region in (OSLO, VIRGINIA, LAWLESS):
        why = fence.deny_reason(Place(country="FR"), region)
        assert why is not None
        assert "EU only in EU" in why
        assert "FR" in why
        assert region.name in why


def test_every_matching_rule_binds() -> None:
    fence = ResidencyFence([EU_RULE, ResidencyFenceRule(("DE",), frozenset({"DE"}))], groups=GROUPS)
    paris = Region("fr", Place(), frozenset({"FR", "EU"}))
    assert fence.deny_reason(Place(country="FR"), paris) is None
    assert fence.deny_reason(Place(country="DE"), paris) is not None
    assert fence.deny_reason(Place(country="DE"), FRANKFURT) is None


def test_unknown_fails_closed_as_soon_as_a_rule_exists() -> None:
    nowhere = Place(lat=50.0, lon=8.0, continent="EU")
    why = ResidencyFence([NORWAY_RULE]).deny_reason(nowhere, FRANKFURT)
    assert why is not None
    assert "fails closed" in why
    assert ResidencyFence([NORWAY_RULE], "allow").deny_reason(nowhere, VIRGINIA) is None
    assert ResidencyFence().deny_reason(nowhere, VIRGINIA) is None


def test_a_tenant_has_a_fence_of_its_own() -> None:
    assert tenant_deny_reason(None, VIRGINIA) is None
    assert tenant_deny_reason(frozenset({"EU", "CH"}), FRANKFURT) is None
    why = tenant_deny_reason(frozenset({"EU", "CH"}), VIRGINIA)
    assert why == "the tenant may be served only in CH or EU, and region us is not"
    assert tenant_deny_reason(frozenset(), FRANKFURT) is not None


_CODES = st.sampled_from(["DE", "FR", "NO", "US", "EU", "EEA"])
_RULES = st.lists(
    st.builds(
        ResidencyFenceRule,
        st.lists(_CODES, min_size=1, max_size=3).map(tuple),
        st.frozensets(_CODES, min_size=1, max_size=3),
    ),
    max_size=4,
)


@given(_RULES, st.sampled_from(["DE", "FR", "NO", "US", "BR"]), st.frozensets(_CODES))
def test_allowed_means_every_binding_rule_is_met(
    rules: list[ResidencyFenceRule], country: str, held: frozenset[str]
) -> None:
    region = Region("r", Place(), held)
    is_allowed = ResidencyFence(rules, groups=GROUPS).deny_reason(Place(country=country), region) is None
    binding = [
        rule
        for rule in rules
        if any(code == country or country in GROUPS.get(code, ()) for code in rule.countries)
    ]
    assert is_allowed == all(rule.jurisdictions & held for rule in binding)


@pytest.mark.parametrize("country", ["DE", None])
def test_more_rules_never_allow_more(country: str | None) -> None:
    place = Place(country=country)
    for region in (FRANKFURT, OSLO, VIRGINIA):
        if ResidencyFence([EU_RULE], groups=GROUPS).deny_reason(place, region) is not None:
            assert ResidencyFence([EU_RULE, NORWAY_RULE], groups=GROUPS).deny_reason(place, region) is not None
