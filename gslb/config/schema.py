"""The configuration's shape: pydantic models whose tree mirrors the packages that use them.

Every default here is the true default; `config/example.yaml` states each again and a test holds it to that.
Meaning that needs knowledge (does this location exist, does this file open) is checked in `config.load`.
The text under each field is its description in `gslb schema`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from gslb.config.fields import HostPort, Name, Network, TimeText, WorkerCount
from gslb.config.schema_fleet import (
    Count,
    Health,
    RegionConfig,
    Routing,
    Section,
)
from gslb.config.units import Duration, PositiveDuration, Size


def _unquoted_version(value: object) -> object:
    """`1.2` without quotes is a number to YAML."""
    return str(value) if isinstance(value, float) else value


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


class TenantRate(Section):
    """How much a tenant may ask for per time: buckets that refill evenly. Unset: any amount."""

    requests: Count | None = None
    """Requests in `per`; more are refused with 429 and Retry-After."""
    prompt_tokens: Count | None = None
    """Prompt tokens in `per`, as estimated when a request comes."""
    per: PositiveDuration = 60.0
    """The time that both are for."""
    burst: Count | None = None
    """Requests that may come at once; unset: as many as `requests`."""

    @model_validator(mode="after")
    def _bounds_something(self) -> TenantRate:
        if self.model_fields_set and not self.amounts:
            raise ValueError("a rate needs `requests`, `prompt_tokens` or both: it bounds nothing without")
        if self.burst is not None and self.requests is None:
            raise ValueError("burst is a number of requests: say how many `requests` it refills with")
        return self

    @property
    def amounts(self) -> dict[str, int]:
        """What is bounded, `requests` or `tokens`, to how much of it there is in `per`."""
        stated = {"requests": self.requests, "tokens": self.prompt_tokens}
        return {counts: amount for counts, amount in stated.items() if amount is not None}


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
    rate: TenantRate = TenantRate()
    """How much it may ask for per time."""

    priority: Literal["high", "normal", "low"] = "normal"
    """The class its requests are held in when nobody has room; a request's x-gslb-priority may only lower it."""

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
