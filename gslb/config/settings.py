"""A configuration that has been checked and made ready: what the rest of the house works with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gslb.config.files import FileMark
from gslb.config.schema import Config
from gslb.config.schema_fleet import EndpointConfig
from gslb.geo.client_address import TrustedProxies
from gslb.geo.locate import Locator
from gslb.policy.residency import ResidencyFence
from gslb.policy.tenants import TenantDirectory
from gslb.tls.contexts import ClientTls, ServerTls
from gslb.types import Endpoint, Place, Region


@dataclass(frozen=True)
class Settings:
    """One generation of the configuration. Replaced as a whole, never changed.

    `endpoint_configs`, `endpoint_tls` and `api_keys` are keyed by `Endpoint.key`; an endpoint that is not https is
    absent from `endpoint_tls`, one without a key of its own from `api_keys`. `server_tls` is None when clients
    speak plain HTTP. `files` is what the files were that all this was read from. `aliases` lead straight to the
    final model. `tenants` is None when none are configured: gslb then asks for no key. `edge_place` is None when
    the edge stands beside its clients. Without `admin_token` the admin API refuses calls that change anything.
    `source_text` is the YAML itself, which other processes of this edge are given.
    """

    config: Config
    regions: tuple[Region, ...]
    endpoints: tuple[Endpoint, ...]
    endpoint_configs: Mapping[str, EndpointConfig]
    endpoint_tls: Mapping[str, ClientTls]
    server_tls: ServerTls | None
    edge_place: Place | None
    locator: Locator
    trusted_proxies: TrustedProxies
    residency: ResidencyFence
    aliases: Mapping[str, str]
    source_path: str
    files: Mapping[Path, FileMark]
    tenants: TenantDirectory | None = field(repr=False)
    api_keys: Mapping[str, str] = field(repr=False)
    admin_token: str | None = field(repr=False)
    source_text: str = field(default="", repr=False)
