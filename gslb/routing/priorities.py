"""Priority tiers of regions: active-passive, by the capacity that is left.

A standby tier gets traffic only as the tiers above it lose capacity; regions of one priority are active-active.
The rule, and the factor 1.4, are Envoy's for priority levels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from gslb.routing.health import LAST_RESORT
from gslb.routing.slate import Tier
from gslb.routing.snapshot import EndpointView

Orders = list[tuple[float, list[Tier]]]
"""(up to which throw of the dice, tiers in the order they are tried); empty: there is one order only."""


def priority_shares(allowed: Sequence[EndpointView], overprovisioning: float) -> dict[int, float]:
    """Priority -> share of requests that start there, by what capacity it has left; those without any are absent.

    A tier can take `overprovisioning` times its live share of its capacity, the first ones first; what is left
    over when all together cannot take everything is divided in proportion.
    """
    live: dict[int, float] = {}
    whole: dict[int, float] = {}
    for view in allowed:
        priority, slots = view.endpoint.region.priority, view.slots or 1
        whole[priority] = whole.get(priority, 0.0) + slots
        if view.suspicion < LAST_RESORT:
            live[priority] = live.get(priority, 0.0) + slots
    shares: dict[int, float] = {}
    left = 1.0
    for priority in sorted(live):
        share = min(left, live[priority] / whole[priority] * overprovisioning)
        left -= share
        if share > 0.0:
            shares[priority] = share
    total = sum(shares.values())
    return {priority: share / total for priority, share in shares.items()}


def orders_by_share(tiers: Mapping[tuple[int, int], Tier], shares: Mapping[int, float]) -> Orders:
    """The order of `tiers`, keyed by (suspicion, priority), for requests that start at each priority."""
    orders: Orders = []
    if len(shares) < 2:
        return orders
    reach = 0.0
    for first, share in shares.items():
        reach += share
        turned = sorted(tiers, key=lambda key: (key[0], key[1] < first, key[1]))
        orders.append((reach, [tiers[key] for key in turned]))
    return orders


def throw(orders: Orders, dice: Random) -> list[Tier]:
    """One of the orders by its share."""
    thrown = dice.random()
    for reach, tiers in orders:
        if thrown < reach:
            return tiers
    return orders[-1][1]
