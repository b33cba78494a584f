"""Which codes a residency rule may name: countries, and groups of countries under one law."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from gslb.config.wording import suggestion
from gslb.geo.atlas import countries
from gslb.geo.place import jurisdictions_of


@cache
def country_groups() -> Mapping[str, frozenset[str]]:
    """Code -> the ISO 3166-1 countries in which its law holds: `EU` and `EEA`, `UK`, and every country itself
    with its territories (a rule for FR binds a client in Réunion, located as RE, too).
    """
    groups: dict[str, set[str]] = {}
    for country in countries():
        for code in jurisdictions_of(country):
            groups.setdefault(code, set()).add(country)
    return {code: frozenset(members) for code, members in groups.items()}


def country_problem(code: str) -> str | None:
    """None for a code that a rule may name, else what is wrong with it."""
    known = country_groups()
    if code in known:
        return None
    hint = suggestion(code, (code.upper(),)) if code.upper() in known else ""
    return f"{code[:80]!r} is no country: write ISO 3166-1 alpha-2 codes, or the groups EU and EEA{hint}"
