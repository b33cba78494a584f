"""The field's words as types: what every floor of the house passes to the others.

No behaviour lives here beyond what a value must know about itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

Remade = tuple[type, tuple[Any, ...]]
"""A class and what to call it with."""


def _remade(value: Any) -> Remade:
    """How to make a frozen value again in another process: compiled ones cannot be filled in afterwards."""
    return type(value), tuple(getattr(value, one.name) for one in fields(value))


@dataclass(frozen=True, slots=True)
class Place:
    """Where somebody is, as far as known. All members may be absent (None).

    `country` is ISO 3166-1 alpha-2 upper case, `subdivision` ISO 3166-2 without the country prefix,
    `lat`/`lon` degrees (WGS 84), `asn` an autonomous system number, `radius_km` how far off the
    coordinates may be. `source` names who said so: `override`, `mmdb`, `embedded`, `config`, `unknown`.
    """

    country: str | None = None
    subdivision: str | None = None
    city: str | None = None
    continent: str | None = None
    lat: float | None = None
    lon: float | None = None
    asn: int | None = None
    radius_km: float | None = None
    source: str = "unknown"

    @property
    def is_located(self) -> bool:
        """True when coordinates are known."""
        return self.lat is not None and self.lon is not None

    @property
    def is_known(self) -> bool:
        """True when a country is known: the least that residency rules need."""
        return self.country is not None

    def __reduce__(self) -> Remade:
        return _remade(self)


UNKNOWN_PLACE = Place()


class Purchase(StrEnum):
    """How an endpoint's GPUs are paid for."""

    RESERVED = "reserved"
    ON_DEMAND = "on_demand"
    SPOT = "spot"


@dataclass(frozen=True, slots=True)
class Region:
    """One region of the fleet: a place, the law that holds there, who runs it."""

    name: str
    place: Place
    jurisdictions: frozenset[str] = frozenset()
    certifications: frozenset[str] = frozenset()
    provider: str = ""
    priority: int = 0

    def __reduce__(self) -> Remade:
        return _remade(self)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One vLLM API server (or a gateway in front of a cluster). `key` identifies it across reloads.

    `capacity` is a hard cap on requests this edge has running there (None: learnt). `models` None means
    "learnt from its /v1/models". `prefill_ms_per_token`, `slot_hold_ms` and `step_ms` are what is believed of it
    until it is learnt: the prefill rate, how long an answer holds its slot, and one decoding step. `slots` is how
    many requests it runs at once, where that is known but caps nothing.
    """

    key: str
    url: str
    region: Region
    models: frozenset[str] | None = None
    capacity: int | None = None
    node: str | None = None
    purchase: Purchase = Purchase.ON_DEMAND
    price_per_hour: float | None = None
    prefill_ms_per_token: float = 0.05
    slot_hold_ms: float = 3900.0
    step_ms: float = 0.0
    slots: int | None = None

    def __reduce__(self) -> Remade:
        return _remade(self)


@dataclass(init=False, slots=True)
class Facts:
    """What one request asks, as far as the decision cares. Immutable by convention once routed.

    `prompt_tokens` is an estimate. `budget_ms` is the client's time-to-first-token budget, `pinned_region`
    the region it insists on, `tenant_jurisdictions` what its tenant allows (None: no tenant rule). `priority` is
    the class it is held in when nobody has room: the higher goes first. `affinity_key` is a hash of what marks
    requests that belong together (session, cache key, user; None: nothing does); `prefix_blocks` are chained
    hashes of the prompt's leading blocks of `block_tokens` tokens each: equal hash, equal prompt up to there.

    Its `__init__` is written out because every request makes one: what `dataclass` generates stays interpreted
    when the module is compiled.
    """

    model: str
    place: Place
    tenant: str
    prompt_tokens: int
    is_stream: bool
    budget_ms: float | None
    pinned_region: str | None
    tenant_jurisdictions: frozenset[str] | None
    priority: int
    affinity_key: int | None
    prefix_blocks: tuple[int, ...]
    block_tokens: int

    def __init__(
        self,
        model: str,
        place: Place = UNKNOWN_PLACE,
        tenant: str = "",
        prompt_tokens: int = 0,
        is_stream: bool = False,
        budget_ms: float | None = None,
        pinned_region: str | None = None,
        tenant_jurisdictions: frozenset[str] | None = None,
        priority: int = 0,
        affinity_key: int | None = None,
        prefix_blocks: tuple[int, ...] = (),
        block_tokens: int = 0,
    ) -> None:
        self.model = model
        self.place = place
        self.tenant = tenant
        self.prompt_tokens = prompt_tokens
        self.is_stream = is_stream
        self.budget_ms = budget_ms
        self.pinned_region = pinned_region
        self.tenant_jurisdictions = tenant_jurisdictions
        self.priority = priority
        self.affinity_key = affinity_key
        self.prefix_blocks = prefix_blocks
        self.block_tokens = block_tokens


@dataclass(slots=True)
class LoadSample:
    """What one scrape (or an ORCA header) said of an endpoint. Absent signals are None, never zero.

    `running`/`waiting` are requests summed over engines, `kv_usage` is 0..1 (maximum over engines),
    `at_s` monotonic seconds when it was taken. The counters are cumulative tokens since engine start, `itl_*` sum
    and count of its gaps between tokens; `kv_tokens` is how many tokens the KV cache holds.
    """

    at_s: float
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    prompt_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    prefix_hits_total: float | None = None
    prefix_queries_total: float | None = None
    itl_sum_s: float | None = None
    itl_count: float | None = None
    kv_tokens: float | None = None
    own_running_then: int = 0
    """This edge's own in-flight requests at the instant of the sample: what of `running` is ours."""


class ForcedState(StrEnum):
    """The operator's hand: apart from health, never overwritten by it."""

    NONE = "none"
    CORDONED = "cordoned"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Dropped:
    """One endpoint or region that a rule took out of a decision, and why (one plain sentence)."""

    region: str
    endpoint: str
    rule: str
    why: str


@dataclass(frozen=True, slots=True)
class Ranked:
    """One candidate of a decision with the milliseconds behind it."""

    region: str
    endpoint: str
    total_ms: float
    network_ms: float
    queue_ms: float
    prefill_ms: float
    tax_ms: float = 0.0
    has_room: bool = True
    note: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision that explains itself: the choice, the ranked runners-up, who was dropped by what rule."""

    choice: Ranked | None
    home: str | None
    reason: str
    ranked: tuple[Ranked, ...] = ()
    dropped: tuple[Dropped, ...] = field(default_factory=tuple)
