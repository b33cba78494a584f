"""The demo's world: who asks, who answers, and how far they are from each other."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_network

from gslb.geo.atlas import countries
from gslb.geo.place import country_place, parse_location
from gslb.geo.rtt_prior import rtt_prior_ms

MODEL = "demo-70b"


@dataclass(frozen=True, slots=True)
class Site:
    """One region of the demo: `endpoints` mock servers with `slots` each, at a cloud's site."""

    name: str
    location: str
    endpoints: int
    slots: int

    @property
    def title(self) -> str:
        """Its name in a sentence."""
        return self.name.capitalize()


@dataclass(frozen=True, slots=True)
class Country:
    """One country whose people ask: ISO-2 code, a network the registries give to it, requests per second."""

    code: str
    network: str
    per_s: float

    @property
    def name(self) -> str:
        """Its English name."""
        return countries()[self.code].name

    def address(self, number: int) -> str:
        """One client's address in its network. Any number will do."""
        network = ip_network(self.network)
        return str(network[1 + number % (network.num_addresses - 2)])


SITES = (
    Site("frankfurt", "aws:eu-central-1", endpoints=2, slots=64),
    Site("virginia", "aws:us-east-1", endpoints=2, slots=64),
    Site("singapore", "aws:ap-southeast-1", endpoints=2, slots=8),
)

COUNTRIES = (
    Country("DE", "91.16.0.0/24", 3.0),
    Country("FR", "90.1.0.0/24", 2.5),
    Country("PL", "83.0.0.0/24", 1.5),
    Country("GB", "86.128.0.0/24", 2.5),
    Country("NG", "197.210.0.0/24", 1.0),
    Country("US", "73.0.0.0/24", 6.0),
    Country("CA", "99.224.0.0/24", 2.0),
    Country("MX", "189.128.0.0/24", 1.5),
    Country("BR", "200.160.2.0/24", 2.5),
    Country("JP", "126.0.0.0/24", 2.0),
    Country("SG", "175.156.0.0/24", 1.2),
    Country("IN", "117.192.0.0/24", 2.0),
    Country("ID", "36.64.0.0/24", 0.8),
    Country("AU", "1.128.0.0/24", 1.0),
)
"""Nothing is ever sent to these addresses: they stand in `X-Forwarded-For` on the loopback interface."""

RESIDENT = frozenset({"DE", "FR", "PL"})
"""Those whom the demo's residency rule keeps in the EU."""

RUSHED = frozenset({"JP", "SG", "IN", "ID", "AU"})
"""Those who ask more than Singapore can take in the story's rush."""


def rtt_ms(code: str, site: Site) -> float:
    """The assumed round trip between a country's people and a site, in ms. Raises ValueError for no country."""
    place = country_place(code)
    if place is None:
        raise ValueError(f"{code!r} is no ISO 3166-1 country")
    return rtt_prior_ms(place, parse_location(site.location))


def nearest(code: str) -> Site:
    """The site with the least round trip to a country."""
    return min(SITES, key=lambda site: rtt_ms(code, site))
