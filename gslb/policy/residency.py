"""Where clients of a country may be served: a fence that no load and no failover opens. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from gslb.types import Place, Region


@dataclass(frozen=True, slots=True)
class ResidencyFenceRule:
    """Clients in `countries` may be served only where one of `jurisdictions` holds.

    `countries` are ISO 3166-1 alpha-2 codes or names of groups, upper case, as the operator wrote them.
    """

    countries: tuple[str, ...]
    jurisdictions: frozenset[str]

    def __str__(self) -> str:
        return f"{', '.join(self.countries)} only in {' or '.join(sorted(self.jurisdictions))}"


class ResidencyFence:
    """All residency rules. Every rule that names the client's country binds: a region must satisfy each."""

    __slots__ = ("_by_country", "_denies_unknown", "rules")

    def __init__(
        self,
        rules: Iterable[ResidencyFenceRule] = (),
        unknown: Literal["deny", "allow"] = "deny",
        groups: Mapping[str, frozenset[str]] | None = None,
    ) -> None:
        """`unknown` says what happens to clients without a country once there is a rule; `groups` maps the
        name of a group (such as EU) to its countries.
        """
        self.rules = tuple(rules)
        self._denies_unknown = unknown == "deny" and bool(self.rules)
        by_country: dict[str, list[ResidencyFenceRule]] = {}
        for rule in self.rules:
            members = [(groups or {}).get(country, frozenset((country,))) for country in rule.countries]
            for country in frozenset[str]().union(*members):
                by_country.setdefault(country, []).append(rule)
        self._by_country = {country: tuple(binding) for country, binding in by_country.items()}

    def deny_reason(self, place: Place, region: Region) -> str | None:
        """None when a client at `place` may be served in `region`; else one sentence that names the rule."""
        country = place.country
        if country is None:
            if self._denies_unknown:
                return "the client's location is unknown and residency rules exist: the fence fails closed"
            return None
        for rule in self._by_country.get(country, ()):
            if rule.jurisdictions.isdisjoint(region.jurisdictions):
                return f"residency rule ({rule}) keeps clients in {country} out of region {region.name}"
        return None


def tenant_deny_reason(jurisdictions: frozenset[str] | None, region: Region) -> str | None:
    """None when a tenant of these `jurisdictions` (None: no limit) may be served in `region`; else why not."""
    if jurisdictions is None or not jurisdictions.isdisjoint(region.jurisdictions):
        return None
    allowed = " or ".join(sorted(jurisdictions)) or "no jurisdiction at all"
    return f"the tenant may be served only in {allowed}, and region {region.name} is not"
