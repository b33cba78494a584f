"""What a fleet can bear to lose: the rules over all endpoints that bind what traffic may eject.

An endpoint's machine wants it ejected for what its requests suffered, or because its tokens stand still. Whether
that helps depends on the others, who would have to carry its load:

- **Capacity.** Of each model it serves at least a share (`kept_capacity`, half by default) must stay in use, by
  slots and not by heads: of two endpoints with 90 and 10 slots only the small one may go. Counted over all regions
  together, for a region may be lost as a whole and the others are there to serve then; and not over what a
  client's fences leave, whom the last resort serves (`routing.router`). Endpoints closed by hand are no capacity,
  neither kept nor lost. One that may not go is kept as a suspect, used after the well ones. The only endpoint of a
  model is ejected like any other: it is nobody else's load.
- **Fullness.** Answers of 429 count in the ratio, since an endpoint that says it to most is of no use. But when
  the others say it as often, the fleet is too small, not this endpoint ill: taking it out would make things
  worse. So it goes for that only while the others, taken together, serve more than they turn away.

Probes are bound by neither: who does not answer `/health` serves nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gslb.routing.success_ratio import RecentEnds, together


class Standing(NamedTuple):
    """One endpoint not closed by hand. `slots` None: not known. `is_live`: neither ejected nor on trial."""

    key: str
    models: frozenset[str]
    slots: int | None
    is_live: bool
    recent: RecentEnds


def may_be_lost(key: str, fleet: Sequence[Standing], kept_capacity: float) -> bool:
    """May traffic eject endpoint `key` of `fleet`, with `kept_capacity` (0..1) of each model's slots to stay live?

    Unknown slots count as the mean of the known ones.
    """
    one = next((standing for standing in fleet if standing.key == key), None)
    if one is None or not one.is_live:
        return True
    known = [standing.slots for standing in fleet if standing.slots is not None]
    mean = sum(known) / len(known) if known else 1.0
    return all(_leaves_enough(one, fleet, model, mean, kept_capacity) for model in one.models)


def _leaves_enough(
    one: Standing, fleet: Sequence[Standing], model: str, mean_slots: float, kept_capacity: float
) -> bool:
    own = mean_slots if one.slots is None else one.slots
    others = live = 0.0
    for standing in fleet:
        if standing is not one and model in standing.models:
            slots = mean_slots if standing.slots is None else standing.slots
            others += slots
            live += slots if standing.is_live else 0.0
    return not others or live >= kept_capacity * (own + others)


def others_have_room(key: str, fleet: Sequence[Standing], now_s: float, min_success: float) -> bool:
    """True when those live beside `key` that serve a model of its own serve at least `min_success` of what they
    are asked; False when there are none, or nobody asked them."""
    models = next((standing.models for standing in fleet if standing.key == key), frozenset())
    others = (one for one in fleet if one.key != key and one.is_live and not models.isdisjoint(one.models))
    ends = together(one.recent.within(now_s) for one in others)
    return ends.good > 0 and ends.good >= min_success * ends.total
