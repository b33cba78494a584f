"""How much one client may have at once: running requests of a tenant, connections of an address. Pure.

Both count what is open now and forget what is closed, so their memory is bounded by what is open.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from ipaddress import IPv4Address, IPv6Address
from typing import Final, Protocol

_SUBSCRIBER_BITS: Final = 64
"""One IPv6 subscriber gets a /64 at least (RFC 6177, RFC 7934): whoever has one has all of its addresses."""


class SharedCount(Protocol):
    """A count that several processes keep together (a `routing.load.InFlight`)."""

    def open_ticket(self, uncached_tokens: int, capacity: int | None = None) -> object | None:
        """Count one more, unless `capacity` are counted already: then None."""

    def add(self, requests: int, pending_tokens: int) -> None:
        """Change this process's part of the count."""


class ConcurrencyLimit:
    """Running requests of each tenant (by name, so that a reload forgets none)."""

    __slots__ = ("_running", "_shared", "_shared_of")

    def __init__(
        self,
        running: MutableMapping[str, int] | None = None,
        shared_of: Callable[[str], SharedCount] | None = None,
    ) -> None:
        """`running` is where this process's counts are kept: tenant -> requests, tenants without any left out.
        `shared_of` finds the count that the limit holds for where several processes count together."""
        self._running: MutableMapping[str, int] = {} if running is None else running
        self._shared_of = shared_of
        self._shared: dict[str, SharedCount] = {}

    def running(self, tenant: str) -> int:
        """Requests of `tenant` that run now."""
        return self._running.get(tenant, 0)

    def try_start(self, tenant: str, most: int | None) -> bool:
        """Count one more request of `tenant`, unless it runs `most` already (None: no limit).

        Looking and counting are one step: of any number of arrivals at once exactly `most` get in (FC-35).
        """
        running = self._running.get(tenant, 0)
        if self._shared_of is not None:
            shared = self._shared.get(tenant) or self._shared_of(tenant)
            if shared.open_ticket(0, most) is None:
                return False
            self._shared[tenant] = shared
        elif most is not None and running >= most:
            return False
        self._running[tenant] = running + 1
        return True

    def end(self, tenant: str) -> None:
        """One request that was started has ended. Raises KeyError when none runs."""
        if self._shared_of is not None:
            self._shared[tenant].add(-1, 0)
        if self._running[tenant] > 1:
            self._running[tenant] -= 1
        else:
            del self._running[tenant]
            self._shared.pop(tenant, None)


class ConnectionLimit:
    """Open connections of each client address, IPv6 by its /64."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: dict[int, int] = {}

    def __len__(self) -> int:
        """Clients that have a connection open."""
        return len(self._open)

    def try_open(self, address: IPv4Address | IPv6Address, most: int | None) -> int | None:
        """Count one more connection of `address`; returns what `close` wants, or None when `most` are open."""
        client = _client_of(address)
        count = self._open.get(client, 0)
        if most is not None and count >= most:
            return None
        self._open[client] = count + 1
        return client

    def close(self, client: int) -> None:
        """One connection that was opened is closed. Raises KeyError when none is open."""
        if self._open[client] > 1:
            self._open[client] -= 1
        else:
            del self._open[client]


def _client_of(address: IPv4Address | IPv6Address) -> int:
    """A number per client: IPv4 addresses as negative ones, so that they never meet a /64's."""
    number = int(address)
    return number >> _SUBSCRIBER_BITS if address.version == 6 else ~number
