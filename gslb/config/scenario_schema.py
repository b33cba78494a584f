"""The shape of a scenario file: a world to try policies in, as pydantic models.

`routing` and `health` are the sections of the configuration file, word for word: what is tried is what would run.
The text under each field is its description in `gslb schema --scenario`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator

from gslb.config.fields import Name, Ratio
from gslb.config.schema_fleet import Count, Health, PolicyName, Routing, Section
from gslb.config.units import Duration, PositiveDuration

ScenarioPolicy = Literal[PolicyName, "skywalker", "oracle"]
"""A policy of the router, or one that only the simulator has: one as published by others, and one that sees what
no edge can."""
SCENARIO_POLICIES: tuple[str, ...] = get_args(ScenarioPolicy)

FaultKind = Literal[
    "region_loss", "brown_out", "slow_node", "hung_engine", "scrape_loss", "wrong_health", "spot_reclaim"
]
FAULT_KINDS: tuple[str, ...] = get_args(FaultKind)

LoadKind = Literal["poisson", "gamma", "diurnal", "sessions", "trace"]

MOST_ENDPOINTS = 10_000
"""In one group, and so many that a mistyped number is told instead of tried."""

Positive = Annotated[float, Field(gt=0)]


def _groups(value: object) -> object:
    """`endpoints: 8` is short for `endpoints: [{count: 8}]`."""
    return [{"count": value}] if isinstance(value, int) and not isinstance(value, bool) else value


def _one_or_more(value: object) -> object:
    """`target: eu` is short for `target: [eu]`."""
    return [value] if isinstance(value, str) else value


class Engine(Section):
    """What endpoints are like. What a region or a group does not say is taken from the fleet."""

    profile: str = "h100-70b-tp8"
    """GPU and model class: how long steps and prompts take."""
    slots: Count = 64
    """Most sequences in a batch (vLLM's max_num_seqs)."""
    kv_tokens: Count = 1_300_000
    """Tokens that fit into the KV cache, running sequences and kept prefixes together."""
    step_tokens: Count = 8192
    """Token budget of one step (vLLM's max_num_batched_tokens)."""
    prefix_cache: bool = True
    """Whether prefixes of earlier prompts are kept."""
    capacity_known: bool = True
    """Whether the edges are told the slots (`capacity` in a configuration); if not, they have to learn them."""
    purchase: Literal["reserved", "on_demand", "spot"] = "on_demand"
    """How its GPUs are paid for."""
    price_per_gpu_hour: Annotated[float, Field(ge=0)] | None = None
    """Price of one GPU for one hour, in any one currency."""
    gpus: Count = 8
    """GPUs behind one endpoint."""


class EndpointGroup(Engine):
    """Some endpoints of a region that are alike. They are called REGION/0, REGION/1 and so on."""

    count: Annotated[int, Field(ge=1, le=MOST_ENDPOINTS)]
    """How many."""
    node: str | None = None
    """Machine they all run on."""


class FleetRegion(Engine):
    """One region of the simulated fleet."""

    location: str
    """Where it is: a cloud region id such as `aws:eu-central-1`, a city, a country code or `LAT,LON`."""
    endpoints: Annotated[list[EndpointGroup], Field(min_length=1), BeforeValidator(_groups)]
    """Its endpoints; a bare number is that many of the fleet's kind."""
    priority: Annotated[int, Field(ge=0)] = 0
    """Failover tier: a higher number is used only when no lower one can serve."""


class Fleet(Engine):
    """The endpoints: as written here, or those of a configuration file."""

    regions: Annotated[dict[Name, FleetRegion], Field(min_length=1)] | None = None
    """Region name -> place and endpoints."""
    config: str | None = None
    """A gslb configuration file: its regions, endpoints, capacities and prices, and its routing and health unless
    the scenario has its own. Relative to the scenario."""

    @model_validator(mode="after")
    def _one_source(self) -> Fleet:
        if (self.regions is None) == (self.config is None):
            raise ValueError("a fleet needs exactly one of regions and config")
        return self


class Tokens(Section):
    """Token counts with a lognormal distribution."""

    median: Positive
    """Half of them are shorter."""
    mean: Positive
    """Their mean: the more it lies above the median, the longer the tail."""
    most: Count = 131_072
    """Longer ones are cut to this."""

    @model_validator(mode="after")
    def _order(self) -> Tokens:
        if not self.median <= self.mean <= 20 * self.median:
            raise ValueError(f"mean ({self.mean:g}) must lie between median ({self.median:g}) and 20 times that")
        return self


class Sessions(Section):
    """Conversations whose prompts grow: everything said so far is the prefix of the next prompt."""

    turns: Annotated[float, Field(ge=1)] = 5.0
    """Questions in a conversation, on average."""
    think: Duration = 20.0
    """From the end of an answer to the next question, on average."""
    opening: Tokens | None = None
    """What the first question brings with it, such as a document."""
    systems: Count = 1
    """How many different system prompts there are."""
    system_tokens: Annotated[int, Field(ge=0)] = 0
    """Length of a system prompt."""
    most_tokens: Count = 32_768
    """A conversation ends before it outgrows this."""
    block_tokens: Count = 128
    """Prefixes are told apart in blocks of this many tokens."""


class Surge(Section):
    """The clients of one edge ask more for a while."""

    edge: str
    """The edge they come to (with the default edges: a region's name)."""
    at: Duration
    """When it begins."""
    until: Duration
    """When it ends."""
    factor: Positive
    """How many times as much they ask."""


class Load(Section):
    """Who asks, when, and how much."""

    kind: LoadKind
    """`poisson`; `gamma`: in bursts; `diurnal`: by the hour at the clients; `sessions`; `trace`: as recorded."""
    of_capacity: Positive | None = None
    """Mean rate as a share of what the fleet can take (see `gslb.sim.capacity` for the formula)."""
    rate: Positive | None = None
    """Mean rate in requests per second. A trace without either keeps its own."""
    cached: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of every prompt that is taken to be found cached when capacity is reckoned."""
    prompt: Tokens = Tokens(median=1020, mean=1155, most=14_000)
    """Prompt lengths; of `sessions`: of a question alone. Default: Azure's chat trace of 2023."""
    output: Tokens = Tokens(median=129, mean=211, most=2_000)
    """Answer lengths."""
    lengths_of: str | None = None
    """A trace file whose rows' lengths are drawn instead. Relative to the scenario."""
    cv: Annotated[float, Field(ge=0.1, le=20)] = 3.0
    """`gamma`: coefficient of variation of the gaps between one edge's requests; 1 would be Poisson."""
    day: Annotated[Duration, Field(ge=10)] = 86_400.0
    """`diurnal`: how long a day lasts in the simulation; 10 s or more."""
    start_hour: Annotated[float, Field(ge=0, lt=24)] = 0.0
    """`diurnal`: the hour (UTC) at which the run begins."""
    peak_hour: Annotated[float, Field(ge=0, lt=24)] = 15.0
    """`diurnal`: the hour on their own clocks at which people ask most."""
    swing: Ratio = 0.8
    """`diurnal`: at that hour they ask 1 + swing times the mean, twelve hours later 1 - swing."""
    sessions: Sessions = Sessions()
    """`sessions`: what conversations are like."""
    file: str | None = None
    """`trace`: the file, relative to the scenario; unset, `gslb simulate --trace FILE` has to give it."""
    scale: Literal["compress", "superpose"] = "compress"
    """`trace`: how the rate is reached. `compress` makes time pass faster and keeps the order of all requests and
    what they share; `superpose` lays shifted copies over each other and keeps the gaps within a conversation."""
    clients: Literal["capacity", "population"] | dict[Name, Annotated[float, Field(ge=0)]] = "capacity"
    """How much comes to which edge: as its region's share of the fleet's capacity, as people live, or weights.
    Which cities' people come to an edge is always decided by the round trip."""
    surges: list[Surge] = []
    """Edges whose clients ask more for a while."""

    @model_validator(mode="after")
    def _consistent(self) -> Load:
        if self.of_capacity is not None and self.rate is not None:
            raise ValueError("of_capacity and rate exclude each other: keep one")
        if self.of_capacity is None and self.rate is None and self.kind != "trace":
            raise ValueError("how much is asked? give of_capacity (such as 0.7) or rate (requests per second)")
        if isinstance(self.clients, dict) and not any(self.clients.values()):
            raise ValueError("nobody asks: clients needs an edge with a weight above 0")
        if self.kind == "trace" and self.surges:
            raise ValueError("surges need asks that are made up: a trace has only its own")
        return self


KIND_OF_KEY: dict[str, tuple[LoadKind, ...]] = {
    "cv": ("gamma",),
    "day": ("diurnal",),
    "start_hour": ("diurnal",),
    "peak_hour": ("diurnal",),
    "swing": ("diurnal",),
    "sessions": ("sessions",),
    "file": ("trace",),
    "scale": ("trace",),
}
"""Keys of `load` that only some kinds read."""


class ScenarioFault(Section):
    """Something that goes wrong for a while."""

    kind: FaultKind
    """`region_loss`, `brown_out` and `slow_node` (slower by `factor`), `hung_engine`, `scrape_loss`,
    `wrong_health`, `spot_reclaim` (gone, after a notice)."""
    target: Annotated[list[str], Field(min_length=1), BeforeValidator(_one_or_more)]
    """A region, a node or an endpoint (REGION/NUMBER); or a list of them."""
    at: Duration
    """When it begins."""
    until: Duration | None = None
    """When it ends; unset: not within the run."""
    factor: Positive = 1.0
    """How many times slower."""
    notice: Duration = 0.0
    """`spot_reclaim`: how long before `at` the endpoint is told, and refuses new work."""

    @model_validator(mode="after")
    def _consistent(self) -> ScenarioFault:
        if self.until is not None and self.until <= self.at:
            raise ValueError(f"until ({self.until:g}s) must be after at ({self.at:g}s)")
        if self.kind in ("brown_out", "slow_node") and "factor" not in self.model_fields_set:
            raise ValueError(f"{self.kind} needs a factor: how many times slower")
        return self


def _policy_names(value: Any) -> Any:
    """`policies: all` is short for the list of all."""
    return list(SCENARIO_POLICIES) if value == "all" else value


class Scenario(Section):
    """A world to try policies in."""

    scenario: Name
    """The scenario's name; this key tells a scenario from a configuration."""
    description: str = ""
    """What it shows, in a sentence or two."""
    fleet: Fleet
    """Regions and endpoints."""
    edges: dict[Name, str] | None = None
    """Edge name -> location. Unset: one edge beside each region, with its name."""
    load: Load
    """Who asks, when, and how much."""
    duration: PositiveDuration = 120.0
    """How long the run is, in simulated time."""
    warm_up: Duration = 20.0
    """What is asked before this is served, but not counted."""
    budget: PositiveDuration = 1.0
    """What a first token may take, seen from the client: goodput counts the requests that met it."""
    faults: list[ScenarioFault] = []
    """What goes wrong, and when."""
    signal_age: Duration = 0.0
    """How old an engine's numbers already are when an edge reads them."""
    jitter: Annotated[float, Field(ge=0, le=1)] = 0.05
    """A trip's time is its mean times a lognormal factor of this sigma."""
    rtt_table: str | None = None
    """CSV with from_region, to_region and p50_rtt_ms; relative to the scenario. Unset: round trips are reckoned
    from cable distances."""
    routing: Routing | None = None
    """How a region is chosen, as in the configuration."""
    health: Health | None = None
    """Probes and scrapes, as in the configuration."""
    policies: Annotated[list[ScenarioPolicy], Field(min_length=1), BeforeValidator(_policy_names)] = [
        "ttft",
        "near_room",
        "nearest",
        "round_robin",
    ]
    """What is compared unless the command says otherwise; `all` for all."""
