"""The part of the configuration's shape that is about the fleet: regions, endpoints, routing, health.

`config.schema` says what holds for all of it.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gslb.config.fields import EndpointUrl, HostName, Ratio, UrlPath
from gslb.config.units import Duration, PositiveDuration

PolicyName = Literal[
    "ttft", "near_room", "nearest", "ordered", "hot_cold", "gorgo", "lmetric", "least_load", "round_robin"
]
POLICY_NAMES: tuple[str, ...] = get_args(PolicyName)
"""Names of the routing policies, the default first."""

Count = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, nothing is coerced silently, nothing changes later."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class EndpointConfig(Section):
    """One vLLM API server, or a gateway in front of a cluster."""

    url: EndpointUrl
    """http://HOST:PORT or https://HOST[:PORT], with a base path if the server has one."""
    models: Annotated[list[str], Field(min_length=1)] | None = None
    """Models served here; unset, they are learnt from the endpoint's /v1/models."""
    capacity: Count | None = None
    """Most requests this edge keeps running here at once; unset, it is learnt."""
    node: str | None = None
    """Machine the endpoint runs on: endpoints of one node are suspected together."""
    purchase: Literal["reserved", "on_demand", "spot"] = "on_demand"
    """How its GPUs are paid for."""
    price_per_gpu_hour: Annotated[float, Field(ge=0)] | None = None
    """Price of one GPU for one hour, in any one currency; only `objective: cost` reads it."""
    gpus: Count = 1
    """GPUs behind this endpoint."""
    profile: str | None = None
    """What it runs on, such as `h100-70b-tp8`: how fast it is believed to be until that is learnt."""
    api_key_env: str | None = None
    """Environment variable with the key sent to this endpoint."""
    api_key_file: str | None = None
    """File with the key sent to this endpoint; a line end is dropped."""
    tls_server_name: HostName | None = None
    """Name to verify in the certificate, when it is not the URL's host."""
    tls_ca_file: str | None = None
    """PEM file of the authorities to trust instead of the system's."""
    tls_cert_file: str | None = None
    """PEM file with the certificate to show to an endpoint that asks for one."""
    tls_key_file: str | None = None
    """PEM file with that certificate's key."""

    @model_validator(mode="after")
    def _consistent(self) -> EndpointConfig:
        if self.api_key_env is not None and self.api_key_file is not None:
            raise ValueError("api_key_env and api_key_file exclude each other: keep one")
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_cert_file and tls_key_file belong together: give both or none")
        tls = (self.tls_server_name, self.tls_ca_file, self.tls_cert_file)
        if self.url.startswith("http://") and any(tls):
            raise ValueError("tls_server_name, tls_ca_file and tls_cert_file need an https:// url")
        return self


class RegionConfig(Section):
    """One region: a place, the law that holds there, its endpoints."""

    location: str
    """Where it is: a cloud region id such as `aws:eu-central-1`, a city, a country code or `LAT,LON`."""
    endpoints: Annotated[list[EndpointConfig], Field(min_length=1)]
    """The API servers of this region."""
    jurisdictions: list[str] | None = None
    """Jurisdictions that hold here, exactly these; unset: the location's country and its groups (EU, EEA)."""
    certifications: list[str] = []
    """Audits the region has passed, such as soc2 or hipaa."""
    provider: str | None = None
    """Who runs it; unset: the cloud named in `location`, if any."""
    priority: Annotated[int, Field(ge=0)] = 0
    """Failover tier: a higher number is used only when no lower one can serve."""


class Gate(Section):
    """A region's door for foreign traffic: shut above `shut`, open again below `open` of capacity."""

    shut: Ratio = 0.85
    """Share of capacity in use above which foreign traffic is turned away."""
    open: Ratio = 0.75
    """Share of capacity in use below which it is let in again."""

    @model_validator(mode="after")
    def _order(self) -> Gate:
        if self.open >= self.shut:
            raise ValueError(f"open ({self.open}) must be below shut ({self.shut}), or the gate flaps")
        return self


class RetryBudget(Section):
    """Retries allowed over ten seconds: `floor` plus `share` of the requests of that time."""

    share: Ratio = 0.2
    """Retries per request of the last ten seconds."""
    floor: Annotated[int, Field(ge=0)] = 10
    """Retries allowed in ten seconds however few the requests."""


class Hedge(Section):
    """A second attempt beside a slow first one, before the first content byte; the faster one answers."""

    after: PositiveDuration | None = None
    """How long a stream may be without content before another endpoint is asked as well; unset: never."""
    share: Ratio = 0.05
    """Most of the requests under way that are hedged at once; one always may be."""


class Failover(Section):
    """What may be tried again before the first content byte has gone to the client."""

    max_attempts: Annotated[int, Field(ge=1, le=16)] = 3
    """Upstream attempts of one request, the first included."""
    replay: Literal["any", "connect_only"] = "any"
    """`any`: also after the request was sent (generating changes nothing); `connect_only`: RFC 9110 9.2.2."""
    retry_budget: RetryBudget = RetryBudget()
    """Keeps retries from multiplying an outage."""
    hedge: Hedge = Hedge()
    """Whether to ask a second endpoint while the first is slow."""

    @model_validator(mode="after")
    def _may_hedge(self) -> Failover:
        if self.hedge.after is not None and (self.replay != "any" or self.max_attempts < 2):
            raise ValueError("hedge sends a request twice: it needs `replay: any` and max_attempts of 2 or more")
        return self


class Hold(Section):
    """Requests that wait at the edge while everybody who may serve them is full."""

    max_requests: Annotated[int, Field(ge=0)] = 1000
    """Most requests held at once; more are refused with 503 and a true Retry-After. 0: none is ever held."""
    max_wait: PositiveDuration = 30.0
    """Longest time a request is held before it is refused."""


class Affinity(Section):
    """Sending a prompt where its beginning is cached already: worth the milliseconds that saves, no more."""

    session: bool = True
    """Remember where x-gslb-session, else `prompt_cache_key`, else `user` was answered last."""
    prefix: bool = True
    """Remember which beginnings of prompts an endpoint has prefilled: hashes of blocks of 512 tokens, no text."""
    index_blocks: Count = 2048
    """Blocks an endpoint is believed to keep, until its /metrics tell the size of its cache."""


class Routing(Section):
    """How a region is chosen."""

    policy: PolicyName = "ttft"
    """`ttft` predicts the time to first token; the others are simpler rules and baselines."""
    objective: Literal["latency", "cost"] = "latency"
    """`cost`: the cheapest endpoint that still meets the latency budget."""
    order: list[str] = []
    """Region names in order of preference, for `policy: ordered`."""
    latency_budget: PositiveDuration | None = None
    """Time to first token each request should meet; a client's own budget header goes before it."""
    over_budget: Literal["serve", "refuse"] = "serve"
    """When no endpoint can meet the budget: serve late, or refuse at once with a true Retry-After."""
    near_equal: Duration = 0.012
    """Endpoints whose predictions lie this close are chosen among at random, so that edges do not herd."""
    foreign_tax: Duration = 0.030
    """Added to the prediction of endpoints outside the home region: damps spillover."""
    gate: Gate = Gate()
    """When a region takes foreign traffic."""
    spill_cap: Ratio = 0.5
    """Share of a region's slots that foreign requests may fill, while another region has room."""
    overprovisioning: Annotated[float, Field(ge=1)] = 1.4
    """Regions of one `priority` keep all traffic until their live capacity times this is below what they have."""
    prefill_per_token: PositiveDuration = 0.00005
    """Prefill time of one prompt token, until it is learnt (H100 with a 70B model: 0.05 ms)."""
    slot_hold: PositiveDuration = 3.9
    """How long an answer holds its slot, until it is learnt (a median chat answer: 3.9 s)."""
    hold: Hold = Hold()
    """What waits at the edge when nobody has room."""
    affinity: Affinity = Affinity()
    """Whether prompts go where they are cached."""
    failover: Failover = Failover()
    """Second tries."""


class Health(Section):
    """Active probes, scrapes, and what passive outcomes do."""

    interval: PositiveDuration = 2.0
    """Between two probes of an endpoint."""
    timeout: PositiveDuration = 1.0
    """A probe without an answer for this long has failed; never longer than `interval`."""
    path: UrlPath = "/health"
    """Path that is probed; any 200 is well."""
    fall: Count = 3
    """Failed probes in a row that eject an endpoint."""
    rise: Count = 2
    """Good probes in a row that bring it back."""
    passive_fall: Count = 3
    """Failed requests in a row that eject an endpoint."""
    min_success: Ratio = 0.5
    """An endpoint that serves less than this share of its requests is ejected (429 is not served); 0: never."""
    ratio_samples: Count = 20
    """Requests within `ratio_window` without which that share is not judged."""
    ratio_window: PositiveDuration = 30.0
    """How far back that share looks."""
    stall_after: Duration = 10.0
    """Requests run, but the token counters have not moved for this long: the engine hangs and is ejected, whatever
    its /health says. Never less than two `scrape_interval`; 0: not judged."""
    ejection: Duration = 10.0
    """Least time an ejected endpoint stays out; it grows with repeated ejections."""
    kept_capacity: Ratio = 0.5
    """Share of each model's capacity that requests and token counters cannot eject; failed probes always do."""
    slow_start: Duration = 30.0
    """How long an endpoint that is back, or new by a reload, takes from a tenth of its slots to all; 0: none."""
    panic: Ratio = 0.0
    """When less than this share of what a request may use is in use, ejected endpoints are used too, once no other
    has room; 0: only when no other is left."""
    scrape_interval: PositiveDuration = 1.0
    """Between two reads of an endpoint's /metrics."""
    scrape_timeout: PositiveDuration = 1.0
    """A read of /metrics that takes longer is given up."""
    stale_after: PositiveDuration = 10.0
    """A load sample older than this counts as absent."""
    models_interval: PositiveDuration = 10.0
    """Between two reads of an endpoint's /v1/models."""

    @model_validator(mode="after")
    def _order(self) -> Health:
        if "timeout" in self.model_fields_set and self.timeout > self.interval:
            raise ValueError(
                f"timeout ({self.timeout:g}s) must not exceed interval ({self.interval:g}s), "
                "or the probes of one endpoint overlap"
            )
        return self
