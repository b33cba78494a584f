"""What a simulated world is made of, as values: who asks, what runs where, what goes wrong and when.

Times named `_s` are simulated seconds from the start of the run, which is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random

from gslb.routing.health import HealthMarks
from gslb.routing.hold import HoldRules
from gslb.routing.profiles import Profile
from gslb.routing.rules import RoutingRules
from gslb.types import Endpoint, Place, Region


@dataclass(slots=True)
class Ask:
    """One request as the world offers it, in order of `at_s`, the moment its client sends it.

    `place` is where the client is (the same object for clients of one city: places are interned), `edge` the name
    of the edge it comes to. `blocks` are chained ids of the prompt's leading blocks of `block_tokens` tokens
    (equal id, equal prompt up to there), `answer_blocks` those that follow when its answer stands behind it, where
    that is known. `session` marks requests of one conversation. `budget_ms` is what its first token may take, seen
    from the client; goodput counts those that met it.
    """

    at_s: float
    place: Place
    edge: str
    prompt_tokens: int
    output_tokens: int
    budget_ms: float
    blocks: tuple[int, ...] = ()
    block_tokens: int = 0
    session: int | None = None
    tenant: str = ""
    priority: int = 0
    model: str = "model"
    answer_blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """The truth about one endpoint's engine. `kv_tokens` bounds running sequences and cached prefixes together;
    `step_tokens` is one step's budget, decodes and prompt chunks together (vLLM's max_num_batched_tokens)."""

    key: str
    profile: Profile
    slots: int = 64
    kv_tokens: int = 1_300_000
    block_tokens: int = 16
    step_tokens: int = 8192
    has_prefix_cache: bool = True


@dataclass(frozen=True, slots=True)
class EdgeSpec:
    """One gslb deployment and where it stands."""

    name: str
    place: Place


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong from `at_s` to `until_s`.

    `kind`: `region_loss` (connections refused, running streams cut), `brown_out` (engines are `factor` times
    slower), `slow_node` (the same for one endpoint or node), `hung_engine` (accepts, says it is well, makes no
    token), `scrape_loss` (no /metrics), `wrong_health` (`/health` fails though requests succeed), `spot_reclaim`
    (a notice `notice_s` before `at_s`: refuses new work; then gone). `target` is a region's name, a node's, or an
    endpoint's key.
    """

    kind: str
    target: str
    at_s: float
    until_s: float
    factor: float = 1.0
    notice_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Setting:
    """A whole world but for its requests: the same for every policy that is compared.

    `rtt_ms` tells the mean round trip between two places (a table's value or the prior); a trip's real time is
    that times a lognormal factor of `jitter` (sigma). The edges believe the prior and learn. `offered` is called
    once per run with dice of the run's seed and yields the requests in order of time.
    `signal_age_s` is added to every scraped sample's age: the engine's state reaches an edge that late.
    """

    name: str
    regions: tuple[Region, ...]
    endpoints: tuple[Endpoint, ...]
    engines: Mapping[str, EngineSpec]
    edges: tuple[EdgeSpec, ...]
    offered: Callable[[Random], Iterator[Ask]]
    rtt_ms: Callable[[Place, Place], float]
    duration_s: float
    warm_up_s: float = 0.0
    """Requests that come before this are served but not counted."""
    jitter: float = 0.05
    scrape_interval_s: float = 1.0
    signal_age_s: float = 0.0
    probe_interval_s: float = 2.0
    rules: RoutingRules = field(default_factory=RoutingRules)
    hold: HoldRules = field(default_factory=HoldRules)
    marks: HealthMarks = field(default_factory=HealthMarks)
    faults: tuple[Fault, ...] = ()
    max_attempts: int = 3
    synthetic_geography: bool = False
    """True when requests come from a trace without places: who is where was made up."""
    without: frozenset[str] = frozenset()
    """Parts of gslb that the edges do not have (`parts.PARTS`)."""
