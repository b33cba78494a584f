"""Candidates: which endpoints one kind of client may use, in which order they are tried, and where its home is.

All of it depends on who asks and on the roster (the endpoints, their states and what they serve), not on load: the
router lists it once and keeps it while the roster stands.
"""

from __future__ import annotations

from gslb.geo.rtt_prior import rtt_prior_ms
from gslb.routing.fences import ResidencyRule, fence
from gslb.routing.health import LAST_RESORT
from gslb.routing.panic import live_share
from gslb.routing.priorities import Orders, orders_by_share, priority_shares
from gslb.routing.refusal import Refusal, refuse_fenced
from gslb.routing.rules import RoutingRules
from gslb.routing.slate import Entry, Tier
from gslb.routing.snapshot import EndpointView, Snapshot
from gslb.types import Dropped, Facts, Place


class Candidates:
    """What one kind of client may use: kept while the roster stands.

    `tiers` are tried in this order, the first `live_tiers` of them before any ejected endpoint; the others when
    nothing is left of the first, or has room while it `is_panic`. With regions of several priorities some
    requests start further down: `orders` lists (up to which throw of the dice, tiers in order). Without tiers
    `refusal` says why. `to_edge_ms` of the network's time pass between client and edge.
    """

    __slots__ = (
        "dropped", "group", "home", "is_panic", "live_tiers", "orders", "place", "refusal", "tiers", "to_edge_ms",
    )  # fmt: skip

    def __init__(self, place: Place, dropped: list[Dropped]) -> None:
        self.place = place
        self.dropped = dropped
        self.tiers: list[Tier] = []
        self.orders: Orders = []
        self.live_tiers = 0
        self.is_panic = False
        self.home = ""
        self.to_edge_ms = 0.0
        self.refusal: Refusal | None = None
        self.group: tuple[object, ...] | None = None


def list_candidates(facts: Facts, snapshot: Snapshot, rules: RoutingRules, residency: ResidencyRule) -> Candidates:
    """What a request with these `facts` may use of the roster in `snapshot`."""
    allowed, dropped = fence(facts, snapshot, residency)
    candidates = Candidates(facts.place, dropped)
    if not allowed:
        candidates.refusal = refuse_fenced(facts, snapshot, residency)
        return candidates
    edge = rules.edge_place
    if edge is not None and facts.place.is_located:
        candidates.to_edge_ms = rtt_prior_ms(facts.place, edge)
    first_tier = min(view.endpoint.region.priority for view in allowed)
    near = [(_network_ms(facts.place, edge, candidates.to_edge_ms, view), view) for view in allowed]
    in_first_tier = (pair for pair in near if pair[1].endpoint.region.priority == first_tier)
    candidates.home = home = min(in_first_tier, key=lambda pair: pair[0])[1].endpoint.region.name
    index = {id(view): i for i, view in enumerate(snapshot.endpoints)}
    by_group: dict[tuple[int, int], list[Entry]] = {}
    for network_ms, view in near:
        region = view.endpoint.region
        is_home = region.name == home
        tax_ms = 0.0 if is_home else rules.damping.foreign_tax_ms
        entry = Entry(index[id(view)], region.name, network_ms, tax_ms, is_home)
        by_group.setdefault((view.suspicion, region.priority), []).append(entry)
    order = sorted(by_group)
    near_equal_ms = rules.damping.near_equal_ms
    candidates.tiers = [Tier(by_group[group], near_equal_ms) for group in order]
    candidates.live_tiers = sum(1 for suspicion, _ in order if suspicion < LAST_RESORT)
    candidates.is_panic = live_share(allowed) < rules.panic_below
    candidates.orders = orders_by_share(
        dict(zip(order, candidates.tiers, strict=True)),
        priority_shares(allowed, rules.overprovisioning),
    )
    return candidates


def _network_ms(place: Place, edge: Place | None, to_edge_ms: float, view: EndpointView) -> float:
    """Client to region. With a placed edge by way of it, the second leg measured where possible."""
    region_place = view.endpoint.region.place
    if edge is None:
        return rtt_prior_ms(place, region_place)
    return to_edge_ms + (rtt_prior_ms(edge, region_place) if view.rtt_ms is None else view.rtt_ms)
