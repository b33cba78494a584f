"""One instant of the fleet as readers see it, and what the writer remembers between two of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gslb.routing.health import Cause, HealthMachine, State
from gslb.routing.learn import Beliefs, Moments, ServiceFit
from gslb.routing.load import InFlight
from gslb.routing.progress import Progress
from gslb.routing.slots import LearntSlots
from gslb.types import Endpoint, ForcedState, LoadSample

_KV_FULL: Final = 0.9
"""Above this KV-cache use, waiting requests wait for memory, not for one step's token budget."""


class EndpointView:
    """One endpoint in one snapshot. `others` is requests in the engine that are not this edge's, as of `at_s`
    (minus infinity while nobody has told), `usual_others` their average. `base_ms`, `rate_ms`, `drain_ms` and
    `slot_hold_ms` are what `learn.ServiceFit` believes. `own`, and `guests` (this edge's foreign requests in the
    region), are shared and live; all else stays as it was.

    After a return `share` (0..1) of what others get is due to it; `slots` are that share of `all_slots`, one at
    least.
    """

    __slots__ = (
        "all_slots", "at_s", "base_ms", "drain_ms", "endpoint", "forced", "guests", "is_kv_full", "load", "models",
        "others", "own", "rate_ms", "reason", "rtt_ms", "share", "slot_hold_ms", "slots", "state", "suspicion",
        "usual_others",
    )  # fmt: skip

    def __init__(self, record: Record) -> None:
        load = record.load
        self.endpoint = record.endpoint
        self.own = record.own
        self.guests = record.guests
        self.state = record.health.state
        self.reason = record.health.reason
        self.suspicion = record.health.suspicion
        self.forced = record.forced
        self.models = record.models
        self.rtt_ms = record.rtt_ms
        self.load = load
        self.share = share = record.health.share
        self.all_slots: int | None = record.slots
        self.slots = max(1, int(record.slots * share)) if record.slots and share < 1.0 else record.slots
        fit = record.fit
        self.base_ms = fit.base_ms
        self.rate_ms = fit.rate_ms
        self.drain_ms = fit.drain_ms
        self.slot_hold_ms = fit.slot_hold_ms
        self.others = record.others
        self.usual_others = record.usual_others
        self.at_s = float("-inf")
        self.is_kv_full = False
        if load is not None and (load.running is not None or load.waiting is not None):
            self.at_s = load.at_s
            self.is_kv_full = bool(load.waiting) and load.kv_usage is not None and load.kv_usage > _KV_FULL


def others_in(load: LoadSample | None) -> float:
    """Requests of others in an engine, by a sample; none where nobody tells."""
    if load is None:
        return 0.0
    return max(0.0, (load.running or 0.0) + (load.waiting or 0.0) - load.own_running_then)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole fleet at one instant. No endpoint prefills quicker than `least_rate_ms` a unit of work.
    `assumes_models` is for offline use: unlearnt models count as served."""

    endpoints: tuple[EndpointView, ...]
    roster: int
    generation: int
    assumes_models: bool = False
    least_rate_ms: float = 0.0


@dataclass(slots=True)
class Record:
    """What the writer remembers of one endpoint between snapshots."""

    endpoint: Endpoint
    health: HealthMachine
    own: InFlight
    guests: InFlight
    fit: ServiceFit
    seen: Moments = field(default_factory=Moments)
    progress: Progress = field(default_factory=Progress)
    load: LoadSample | None = None
    others: float = 0.0
    """Requests of others in the engine, by `load`."""
    usual_others: float = 0.0
    load_error: str | None = None
    models: frozenset[str] | None = None
    model_cards: tuple[Mapping[str, Any], ...] = ()
    forced: ForcedState = ForcedState.NONE
    rtt_ms: float | None = None
    learnt_slots: LearntSlots = field(default_factory=LearntSlots)

    def load_age_s(self, now_s: float) -> float:
        """How old the last sample is; infinity without one."""
        return float("inf") if self.load is None else now_s - self.load.at_s

    @property
    def slots(self) -> int | None:
        """Requests it can run at once: as declared, else as learnt."""
        return self.endpoint.capacity or self.endpoint.slots or self.learnt_slots.slots

    def learn(self) -> bool:
        """Take in what was seen since the last time; True when there was anything."""
        seen = self.seen
        if seen.is_empty:
            return self.fit.follow_kin()
        self.seen = Moments()
        self.fit.absorb(seen)
        return True


@dataclass(frozen=True, slots=True)
class Known:
    """What a view knows of one endpoint, as a value that another process can be told."""

    state: State
    cause: Cause | None
    reason: str
    failed_requests: int
    share: float
    load: LoadSample | None
    models: frozenset[str] | None
    model_cards: tuple[Mapping[str, Any], ...]
    forced: ForcedState
    rtt_ms: float | None
    learnt_slots: int | None
    usual_others: float
    beliefs: Beliefs
