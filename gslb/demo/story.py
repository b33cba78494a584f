"""What happens when: a calm start, a rush on one region, the death of another, its return."""

from __future__ import annotations

from dataclasses import dataclass

from gslb.demo.world import COUNTRIES, RUSHED

SHORTEST_S = 8.0
"""Below this the phases would be shorter than what they show."""

_RUSH_FACTOR = 4.0
_RETURN_AT_LEAST_S = 3.0
"""So that a return can be seen to its end: probes need a second, requests another."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One part of the story; `title` is what happens in three words. `rush` multiplies what the rushed
    countries ask; `kills` and `revives` name the site that goes or comes back as the phase begins."""

    name: str
    title: str
    text: str
    starts_s: float
    ends_s: float
    rush: float = 1.0
    kills: str | None = None
    revives: str | None = None

    def rates_per_s(self) -> list[float]:
        """Requests per second of each of COUNTRIES, in their order."""
        return [country.per_s * (self.rush if country.code in RUSHED else 1.0) for country in COUNTRIES]


def tell(duration_s: float) -> tuple[Phase, ...]:
    """The story over `duration_s` seconds, its phases without gaps. Raises ValueError below SHORTEST_S."""
    if not duration_s >= SHORTEST_S:
        raise ValueError(f"the story needs at least {SHORTEST_S:g} s, got {duration_s:g}")
    rush_s, outage_s = 0.2 * duration_s, 0.45 * duration_s
    return_s = min(0.75 * duration_s, duration_s - _RETURN_AT_LEAST_S)
    calm = Phase("calm", "All is calm", "Every country is answered by its nearest region.", 0.0, rush_s)
    rush = Phase(
        "rush", "Evening in Asia", "Evening in Asia: more requests than Singapore has slots.", rush_s, outage_s,
        rush=_RUSH_FACTOR,
    )  # fmt: skip
    outage = Phase(
        "outage", "Virginia dies", "Virginia dies: connections reset, ports refuse.", outage_s, return_s,
        kills="virginia",
    )  # fmt: skip
    back = Phase(
        "return", "Virginia is back", "Virginia is back, and gslb has to notice.", return_s, duration_s,
        revives="virginia",
    )  # fmt: skip
    return calm, rush, outage, back
