"""The configuration's shape: pydantic models whose tree mirrors the packages that use them.

Every default here is the true default; `config/example.yaml` states each again and a test holds it to that.
Meaning that needs knowledge (does this location exist, does this file open) is checked in `config.load`.
The text under each field is its description in `gslb schema`.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from gslb.config.fields import EndpointUrl, HostPort, Name, Network, Ratio, TimeText, UrlPath, WorkerCount
from gslb.config.units import Duration, PositiveDuration, Size

PolicyName = Literal[
    "ttft", "near_room", "nearest", "ordered", "hot_cold", "gorgo", "lmetric", "least_load", "round_robin"
]
POLICY_NAMES: tuple[str, ...] = get_args(PolicyName)
"""Names of the routing policies, the default first."""

Count = Annotated[int, Field(ge=1)]


def _unquoted_version(value: object) -> object:
    """`1.2` without quotes is a number to YAML."""
    return str(value) if isinstance(value, float) else value


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, nothing is coerced silently, nothing changes later."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class Edge(Section):
    """This deployment of gslb. Without `location` the edge is taken to stand beside each client."""

    name: Name = "edge"
    """Name of this edge in logs and in Via lines."""
    location: str | None = None
    """Where this edge stands: a cloud region id, a city, a country code or `LAT,LON`."""


class Admin(Section):
    """The admin listener. POST calls need the token named here."""

    listen: HostPort = "127.0.0.1:9090"
    """Address of the admin API, the metrics and the dashboard; keep it off public interfaces."""
    token_env: str | None = None
    """Environment variable with the token for changing calls; without one they are refused."""


class Geo(Section):
    """Where clients are. Order: overrides, database, embedded country table, default, unknown."""

    database: str | None = None
    """A .mmdb file (country or city, nested or flat records); read whole, never memory-mapped."""
    embedded: bool = True
    """Use the built-in country table for addresses the database does not know."""
    default: str | None = None
    """Location of clients nobody knows. Unset, they are unknown, and residency rules fail closed."""
    overrides: dict[Network, str] = {}
    """Network -> location: offices, VPN exits, private ranges. The longest match wins."""
    trusted_proxies: list[Network] = []
    """Networks of proxies whose X-Forwarded-For is believed. Nobody's is otherwise."""
    proxy_protocol: bool = False
    """Expect a PROXY protocol header (v1 or v2) from trusted proxies."""


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
    api_key_env: str | None = None
    """Environment variable with the key sent to this endpoint."""
    api_key_file: str | None = None
    """File with the key sent to this endpoint; a line end is dropped."""
    tls_server_name: str | None = None
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


class TlsCertificate(Section):
    """A certificate and its key."""

    cert_file: str
    """PEM file: the certificate, then the chain that leads to its authority."""
    key_file: str
    """PEM file with the certificate's key, not encrypted; may be the same file."""


class Tls(Section):
    """TLS for clients. With any certificate `listen` speaks TLS only."""

    certificates: list[TlsCertificate] = []
    """A client is shown the one with the name it asks for, or the first. They are read again when they change."""
    min_version: Annotated[Literal["1.2", "1.3"], BeforeValidator(_unquoted_version)] = "1.2"
    """The oldest TLS version spoken."""
    client_ca_file: str | None = None
    """PEM file of the authorities whose certificates clients must show; unset: clients are not asked for any."""
    client_auth: Literal["require", "optional"] = "require"
    """`optional`: a client may come without a certificate, but not with one of another authority."""

    @model_validator(mode="after")
    def _consistent(self) -> Tls:
        if self.client_ca_file is not None and not self.certificates:
            raise ValueError("client_ca_file needs certificates: without its own the listener speaks no TLS")
        if self.client_auth == "optional" and self.client_ca_file is None:
            raise ValueError("client_auth needs client_ca_file: the authorities of clients' certificates")
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
    prefill_per_token: Duration = 0.00005
    """Prefill time of one prompt token, until it is learnt (H100 with a 70B model: 0.05 ms)."""
    slot_hold: PositiveDuration = 3.9
    """How long an answer holds its slot, until it is learnt (a median chat answer: 3.9 s)."""
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
    ejection: Duration = 10.0
    """Least time an ejected endpoint stays out; it grows with repeated ejections."""
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


class Timeouts(Section):
    """Separate clocks: a long healthy stream is never cut unless `total` is set."""

    connect: PositiveDuration = 2.0
    """TCP and TLS to an endpoint."""
    first_byte: PositiveDuration = 60.0
    """From the request sent to the first byte of a streamed answer."""
    answer: PositiveDuration = 600.0
    """From the request sent to the first byte of an answer that is not streamed: all of it is made first."""
    between_bytes: PositiveDuration = 60.0
    """Longest silence within an answer."""
    tunnel_idle: PositiveDuration = 300.0
    """Longest silence of a WebSocket, in both directions at once."""
    tls_handshake: PositiveDuration = 5.0
    """A client's TLS handshake, with a PROXY header before it."""
    request_head: PositiveDuration = 10.0
    """A client's whole request head, from its first byte on."""
    request_body: PositiveDuration = 60.0
    """A client's whole request body."""
    client_idle: PositiveDuration = 75.0
    """A kept-alive client connection without a request."""
    client_write: PositiveDuration = 60.0
    """A client that takes no byte of its answer."""
    upstream_idle: PositiveDuration = 4.0
    """A pooled connection is retired after this; vLLM closes its own after 5 s."""
    commit_after: Duration = 15.0
    """A stream's head is held for failover until the first content event, at most this long."""
    dns: PositiveDuration = 10.0
    """How long a resolved address of an endpoint is used before it is looked up again."""
    grace: Duration = 30.0
    """At shutdown, running answers get this long to end."""
    total: PositiveDuration | None = None
    """Most time of a whole exchange; unset: no limit."""


class Limits(Section):
    """Bounds on what a client may send."""

    head_bytes: Size = 32 * 1024
    """Request line and headers together."""
    header_count: Count = 100
    """Header lines of one request."""
    body_bytes: Size = 32 * 1024 * 1024
    """Body of one request; it is kept for failover until the answer is committed."""
    multipart_bytes: Size = 32 * 1024 * 1024
    """Body of one request on the paths that take a form (audio), in place of `body_bytes`."""
    buffered_bytes: Size = 512 * 1024 * 1024
    """Request bodies held at once, over all connections; more are refused with 503 and Retry-After."""
    connections: Count = 20_000
    """Client connections open at once."""
    connections_per_address: Count | None = None
    """Connections one client address (IPv6: /64) may have open; trusted proxies are exempt. Unset: any number."""
    allow_half_close: bool = False
    """True: a client that has shut its sending side still gets its answer. False: it counts as gone, as over TLS
    it always does."""

    @model_validator(mode="after")
    def _one_body_fits(self) -> Limits:
        most_bytes = max(self.body_bytes, self.multipart_bytes)
        if self.buffered_bytes < most_bytes:
            raise ValueError(
                f"buffered_bytes ({self.buffered_bytes}) must hold one whole body ({most_bytes}): raise it, or "
                "lower body_bytes and multipart_bytes"
            )
        return self


class ResidencyRule(Section):
    """Clients in `countries` (ISO codes, or groups such as EU) may be served only in `jurisdictions`."""

    countries: Annotated[list[str], Field(min_length=1)]
    """ISO 3166-1 alpha-2 codes, or the groups EU and EEA."""
    jurisdictions: Annotated[list[str], Field(min_length=1)]
    """A region that has one of these may serve them."""


class Residency(Section):
    """Fences by law. `unknown: deny` refuses clients whose country nobody knows, as soon as a rule exists."""

    rules: list[ResidencyRule] = []
    """Every rule that names a client's country binds."""
    unknown: Literal["deny", "allow"] = "deny"
    """What happens to clients of unknown country once there is a rule."""


class ModelAlias(Section):
    """A name clients may use for a model the endpoints know under `target`."""

    target: str
    """The model's name at the endpoints, or another alias."""


class Tenant(Section):
    """One client organisation: its key (by env or file, never inline) and its rights."""

    key_env: str | None = None
    """Environment variable with the tenant's key."""
    key_file: str | None = None
    """File with the tenant's key; a line end is dropped."""
    models: list[str] | None = None
    """Models it may use; unset: all."""
    jurisdictions: list[str] | None = None
    """It is served only in regions that have one of these; unset: anywhere."""
    expires: TimeText | None = None
    """When its key ends, as a date-time with offset such as 2027-01-01T00:00:00Z; unset: never."""
    latency_budget: PositiveDuration | None = None
    """Its time-to-first-token budget, before `routing.latency_budget`."""
    max_concurrency: Count | None = None
    """Most of its requests that run at once; more are refused with 429 and Retry-After. Unset: no limit."""

    @model_validator(mode="after")
    def _one_key(self) -> Tenant:
        if (self.key_env is None) == (self.key_file is None):
            raise ValueError("a tenant needs exactly one of key_env and key_file")
        return self


class Observability(Section):
    """Where the access log goes."""

    access_log: str = "stdout"
    """`stdout`, `stderr`, `off`, or a file path (relative to the directory gslb is started in)."""


class Config(Section):
    """A gslb configuration."""

    listen: HostPort = "127.0.0.1:8080"
    """Address that clients connect to."""
    tls: Tls = Tls()
    """TLS for clients; off without certificates."""
    admin: Admin = Admin()
    """The admin listener; `admin: HOST:PORT` is short for `admin: {listen: HOST:PORT}`."""
    workers: WorkerCount = "auto"
    """Processes that serve clients; `auto`: one per CPU. More than one have a supervisor that probes for all."""
    edge: Edge = Edge()
    """This deployment."""
    geo: Geo = Geo()
    """How clients are located."""
    regions: Annotated[dict[Name, RegionConfig], Field(min_length=1)]
    """Region name -> place and endpoints."""
    models: dict[str, ModelAlias] = {}
    """Alias -> model."""
    routing: Routing = Routing()
    """How a region is chosen."""
    health: Health = Health()
    """Probes and scrapes."""
    timeouts: Timeouts = Timeouts()
    """Clocks of the data path."""
    limits: Limits = Limits()
    """Bounds on requests."""
    residency: Residency = Residency()
    """Where clients of a country may be served."""
    tenants: dict[Name, Tenant] = {}
    """Tenant name -> key and rights. With any tenant, every request needs a key."""
    observability: Observability = Observability()
    """Logs."""
    watch: bool = True
    """Reload when this file, or a certificate, key or database it names, has changed."""

    @field_validator("admin", mode="before")
    @classmethod
    def _admin_short(cls, value: object) -> object:
        """`admin: HOST:PORT` is short for `admin: {listen: HOST:PORT}`."""
        return {"listen": value} if isinstance(value, str) else value
