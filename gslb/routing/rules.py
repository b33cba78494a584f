"""The operator's settings the router and its policies obey. Times in ms unless named otherwise."""

from __future__ import annotations

from dataclasses import dataclass, field

from gslb.types import Place


@dataclass(frozen=True, slots=True)
class Damping:
    """What keeps edges from marching in step, and requests from others' time. Times in ms."""

    near_equal_ms: float = 12.0
    foreign_tax_ms: float = 30.0
    crowd_tax: float = 1.0
    """What a prompt is charged for computing what another endpoint has cached, as a share of the time it takes,
    where all slots are in use; elsewhere less, by the square of their share: all others there wait for it too.

    Without it a conversation leaves its cache behind for a little less waiting, which costs its next engine five
    times the work: simulated at 0.85 of what well used caches make possible, .42 of the requests were in time (of
    three seeds two collapsed), and .97 with it; at 0.5 both have .98.
    """


@dataclass(frozen=True, slots=True)
class RoutingRules:
    """One configuration's rules for decisions."""

    policy: str = "ttft"
    objective: str = "latency"
    order: tuple[str, ...] = ()
    damping: Damping = field(default_factory=Damping)
    gate_shut: float = 0.85
    gate_open: float = 0.75
    spill_cap: float = 0.5
    """Most of a region's slots that this edge fills with foreign requests while others have room."""
    overprovisioning: float = 1.4
    """A tier of regions keeps all traffic until its live capacity times this is less than what it has in all."""
    stale_after_s: float = 10.0
    panic_below: float = 0.0
    """Share of capacity (0..1) under which ejected endpoints are used before anybody is held or refused."""
    refuses_over_budget: bool = False
    holds: bool = False
    """Without room anywhere: hold at the edge (`NoRoom`) instead of queueing at an engine."""
    waits_for_caches: bool = True
    """Where `ttft` decides and requests are held: hold one for the full endpoint that has its prompt cached."""
    edge_place: Place | None = None
