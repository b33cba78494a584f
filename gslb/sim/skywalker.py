"""Baseline: pending-based pushing between regions, as SkyWalker does it (Xia et al., EuroSys 2026,
arXiv 2505.24095).

Each edge is a balancer with the replicas of the regions nearest to it; it forwards to other balancers, not to
their replicas. The rule, in this order:

1. Push to a local replica that has no request pending (waiting in its engine) by the last probe, own pushes since
   then counted as pending: among several the one with most of the prompt's blocks, then the fewest running.
2. Else forward to the nearest other balancer that had available replicas, and nothing in its own queue, by the
   last probe, own forwards since then counted. What was forwarded is not forwarded again.
3. Else wait in the balancer's first-in-first-out queue, which every probe empties as far as it can.

Probes go out every 100 ms, to replicas and balancers alike. What a probe cannot read is not available, which is
also what ejection is here. Nothing is refused.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Final

from gslb.routing.health import Outcome
from gslb.sim.agenda import Agenda
from gslb.sim.edge import Edge
from gslb.sim.journey import Attempt, Journey
from gslb.sim.site import Site

PROBE_INTERVAL_S: Final = 0.1
_STATUSES_KEPT: Final = 32
"""Statuses of a balancer that may still be on their way to others: 3.2 s."""
_BLOCKS_KEPT: Final = 50_000
"""Prompt blocks remembered for each replica."""


class _Replica:
    """A local replica as its balancer sees it."""

    __slots__ = ("blocks", "is_well", "pending", "running", "site")

    def __init__(self, site: Site) -> None:
        self.site = site
        self.is_well = True
        self.pending = 0
        self.running = 0
        self.blocks: OrderedDict[int, None] = OrderedDict()

    def probe(self) -> None:
        """Read its queue."""
        site = self.site
        self.is_well = not (site.is_gone or site.is_draining or site.hides_metrics or site.looks_ill)
        self.pending = site.engine.waiting
        self.running = site.engine.running

    def known_blocks(self, blocks: Sequence[int]) -> int:
        """How many of the leading blocks were sent here before."""
        known = 0
        for block in blocks:
            if block not in self.blocks:
                break
            known += 1
        return known

    def pushed(self, blocks: Sequence[int]) -> None:
        """A request goes there now."""
        self.pending += 1
        self.running += 1
        mine = self.blocks
        for block in reversed(blocks):
            mine[block] = None
            mine.move_to_end(block)
        while len(mine) > _BLOCKS_KEPT:
            mine.popitem(last=False)


class _Peer:
    """Another balancer as this one sees it: by its last status, `leg_s` one way from here."""

    __slots__ = ("balancer", "forwarded", "leg_s", "told_s")

    def __init__(self, balancer: Balancer, leg_s: float) -> None:
        self.balancer = balancer
        self.leg_s = leg_s
        self.told_s = -1.0
        self.forwarded = 0

    def has_room(self, now_s: float) -> bool:
        """Whether, as far as known here, it could push one more request at once."""
        told_s, available, queued = self.balancer.status_at(now_s - self.leg_s)
        if told_s != self.told_s:
            self.told_s, self.forwarded = told_s, 0
        return not queued and available > self.forwarded


class Balancer:
    """The balancer of one edge (a `Chooser`)."""

    def __init__(self, edge: Edge, regions: tuple[str, ...], agenda: Agenda) -> None:
        """`regions` are those whose replicas it has."""
        self._edge = edge
        self.regions = regions
        self._agenda = agenda
        self._replicas: list[_Replica] = []
        self._peers: list[_Peer] = []
        self._queue: deque[tuple[Journey, bool, float]] = deque()
        """Who waits, whether it has been forwarded, since when."""
        self._statuses: deque[tuple[float, int, int]] = deque([(0.0, 0, 0)], maxlen=_STATUSES_KEPT)

    def start(self, sites: Iterable[Site], others: Iterable[Balancer], dice: Random) -> None:
        """Take over `sites`, meet `others`, begin to probe."""
        self._replicas = [_Replica(site) for site in sites]
        legs_s = self._edge.legs_s
        for other in others:
            if other.regions:
                self._peers.append(_Peer(other, min(legs_s[name] for name in other.regions)))
        self._peers.sort(key=lambda peer: peer.leg_s)
        self._agenda.at(PROBE_INTERVAL_S * dice.random(), self._probe, None)

    @property
    def held(self) -> int:
        """Requests that wait at the edge now."""
        return len(self._queue)

    def status_at(self, at_s: float) -> tuple[float, int, int]:
        """What it said of itself last before `at_s`: when, replicas available, requests in its queue."""
        for status in reversed(self._statuses):
            if status[0] <= at_s:
                return status
        return self._statuses[0]

    # --- a request comes -----------------------------------------------------------------------------

    def take(self, journey: Journey, now_s: float) -> None:
        """Push, forward, or let it wait behind the others."""
        if self._queue or not self._place(journey, now_s, is_forwarded=False):
            self._queue.append((journey, False, now_s))

    def again(self, journey: Journey, now_s: float, never_sent: bool) -> bool:
        """Another replica after a failure, or none; it does not wait twice."""
        if not (never_sent or self._edge.retry_budget.try_retry(now_s)):
            return False
        return self._place(journey, now_s, is_forwarded=False)

    def _forwarded(self, now_s: float, journey: Journey) -> None:
        """Another balancer's request has arrived here."""
        if self._queue or not self._place(journey, now_s, is_forwarded=True):
            self._queue.append((journey, True, now_s))

    def _place(self, journey: Journey, now_s: float, is_forwarded: bool) -> bool:
        replica = self._best(journey)
        if replica is not None:
            replica.pushed(journey.ask.blocks)
            region = replica.site.region
            journey.edge.send(
                journey, replica.site.key, now_s, "home" if region == journey.edge.home_region else "pushed",
                way_out_s=0.0 if is_forwarded else None,
            )  # fmt: skip
            return True
        if is_forwarded:
            return False
        for peer in self._peers:
            if peer.has_room(now_s):
                peer.forwarded += 1
                self._agenda.at(now_s + peer.leg_s * journey.wan_factor, peer.balancer._forwarded, journey)
                return True
        return False

    def _best(self, journey: Journey) -> _Replica | None:
        best: _Replica | None = None
        rank = (0, 0)
        blocks = journey.ask.blocks
        for replica in self._replicas:
            if replica.pending or not replica.is_well or replica.site.key in journey.tried:
                continue
            mine = (-replica.known_blocks(blocks), replica.running)
            if best is None or mine < rank:
                best, rank = replica, mine
        return best

    def _probe(self, now_s: float, _argument: object) -> None:
        for replica in self._replicas:
            replica.probe()
        self._drain(now_s)
        available = sum(1 for replica in self._replicas if replica.is_well and not replica.pending)
        self._statuses.append((now_s, available, len(self._queue)))
        self._agenda.at(now_s + PROBE_INTERVAL_S, self._probe, None)

    def _drain(self, now_s: float) -> None:
        queue = self._queue
        while queue:
            journey, is_forwarded, since_s = queue[0]
            if not self._place(journey, now_s, is_forwarded):
                return
            journey.held_s += now_s - since_s
            queue.popleft()

    # --- what becomes of it ----------------------------------------------------------------------------

    def first_token(self, attempt: Attempt, now_s: float) -> None:
        """Nothing is learnt from it."""

    def ended(self, attempt: Attempt, outcome: Outcome, now_s: float, why: str) -> None:
        """A replica that breaks is not available until a probe says otherwise."""
        if outcome is Outcome.BROKEN:
            for replica in self._replicas:
                if replica.site is attempt.site:
                    replica.is_well = False

    def is_doubted(self, key: str) -> bool:
        """It knows no doubt, only availability."""
        return any(replica.site.key == key and not replica.is_well for replica in self._replicas)

    def tick(self, now_s: float) -> None:
        """Probes do what is to be done."""


def balancers(edges: Mapping[str, Edge], sites: Mapping[str, Site], agenda: Agenda, dice: Random) -> None:
    """Make every edge a balancer with the replicas of the regions that it is the nearest edge to."""
    regions_of: dict[str, list[str]] = {name: [] for name in edges}
    for region in dict.fromkeys(site.region for site in sites.values()):
        regions_of[_nearest(edges, region)].append(region)
    made = {name: Balancer(edge, tuple(regions_of[name]), agenda) for name, edge in edges.items()}
    for name, edge in edges.items():
        mine = [site for site in sites.values() if site.region in regions_of[name]]
        made[name].start(mine, (other for other in made.values() if other is not made[name]), dice)
        edge.chooser = made[name]


def _nearest(edges: Mapping[str, Edge], region: str) -> str:
    return min(edges, key=lambda name: edges[name].legs_s[region])
