"""What the admin API needs of the edge it administers."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gslb.config.schema import Config
from gslb.counters import Counters
from gslb.routing.view import FleetView
from gslb.types import ForcedState, Place, Region


class AdminSettings(Protocol):
    """One generation of the configuration. `admin_token` None: changing calls are refused."""

    @property
    def config(self) -> Config: ...
    @property
    def regions(self) -> tuple[Region, ...]: ...
    @property
    def edge_place(self) -> Place | None: ...
    @property
    def admin_token(self) -> str | None: ...


class RoundTrips(Protocol):
    """What the observer knows beyond the FleetView, by endpoint key."""

    def rtt_ms(self, key: str) -> float | None:
        """The measured round trip in ms, averaged; None before the first measurement."""

    def problems(self, key: str) -> Mapping[str, str]:
        """What is wrong now: topic -> one sentence."""


@dataclass(frozen=True, slots=True)
class ExplainQuery:
    """A request to imagine: `ip` is an address text known to be valid, None: an unknown client."""

    ip: str | None
    model: str | None
    tenant: str | None
    prompt_tokens: int
    region: str | None


class AdminEdge(Protocol):
    """The running edge, as the admin API sees it. Calls are made in the event loop, and quick but for
    those to be awaited."""

    @property
    def fleet(self) -> FleetView: ...
    @property
    def counters(self) -> Counters: ...
    @property
    def observer(self) -> RoundTrips: ...

    def settings(self) -> AdminSettings:
        """The generation of the configuration now in force."""

    def now_s(self) -> float:
        """Monotonic seconds on the scale of the load samples."""

    def is_ready(self) -> tuple[bool, Mapping[str, Any]]:
        """Whether new traffic is welcome (not before the first good configuration nor while stopping; the state of
        upstreams plays no part), and JSON members that say why not."""

    def status(self) -> Mapping[str, Any]:
        """JSON members only the edge knows of itself: version, uptime and the like."""

    def explain(self, query: ExplainQuery) -> Mapping[str, Any]:
        """The decision for an imagined request as JSON. Raises ValueError, in words for the caller, for a query
        about something that does not exist."""

    def reload(self) -> list[str] | Awaitable[list[str]]:
        """Read the configuration anew. The problems that kept it from being used; empty when it is in force."""

    async def synced(self) -> None:
        """Returns once every process of the edge has done what it was told and its counts are in `counters`; or
        after a bounded time without one that does not answer."""

    def force(self, key: str, forced: ForcedState) -> bool:
        """Lay the operator's hand on one endpoint. False when there is no such endpoint."""
