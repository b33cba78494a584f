"""IP addresses as this package reads them, and tables of networks in which the longest prefix wins."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Generic, TypeVar

Address = IPv4Address | IPv6Address
T = TypeVar("T")

_LONGEST_ADDRESS = 45
"""`ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255`"""

_MAPPED = IPv6Network("::ffff:0:0/96")


def parse_address(text: str) -> Address | None:
    """The address that `text` spells, or None. IPv4-mapped IPv6 becomes IPv4; a zone id (`%eth0`) is not
    read.

    Never raises: what is no address (leading zeros, ports, brackets, anything else) is None.
    """
    return _parsed(text) if len(text) <= _LONGEST_ADDRESS else None


@lru_cache(maxsize=8192)
def _parsed(text: str) -> Address | None:
    if "%" in text:
        return None
    try:
        address = ip_address(text)
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def parse_network(text: str) -> IPv4Network | IPv6Network:
    """The network that `text` spells (a lone address is one of its own); host bits may be set.

    A network of IPv4-mapped addresses becomes the IPv4 network. Raises ValueError naming the text.
    """
    try:
        network = ip_network(text.strip(), strict=False)
    except ValueError:
        network = None
    if network is None or "%" in text:
        raise ValueError(f"{text!r} is no network: write ADDRESS/BITS, for example 10.0.0.0/8 or 2001:db8::/32")
    if isinstance(network, IPv6Network) and network.subnet_of(_MAPPED):
        return IPv4Network((int(network.network_address) & 0xFFFF_FFFF, network.prefixlen - 96))
    return network


class PrefixTable(Generic[T]):
    """Networks and what belongs to each. Immutable once built; of two entries for one network the later
    holds."""

    __slots__ = ("_v4", "_v6")

    def __init__(self, entries: Iterable[tuple[str, T]]) -> None:
        """Raises ValueError for a text that is no network."""
        by_shift: dict[int, dict[int, dict[int, T]]] = {4: {}, 6: {}}
        for text, value in entries:
            network = parse_network(text)
            shift = network.max_prefixlen - network.prefixlen
            by_shift[network.version].setdefault(shift, {})[int(network.network_address) >> shift] = value
        # The smallest shift is the longest prefix: looked at first.
        self._v4 = sorted(by_shift[4].items())
        self._v6 = sorted(by_shift[6].items())

    def find(self, address: Address) -> T | None:
        """What belongs to the narrowest network that holds `address`, or None."""
        number = int(address)
        for shift, networks in self._v4 if address.version == 4 else self._v6:
            if (value := networks.get(number >> shift)) is not None:
                return value
        return None

    def __bool__(self) -> bool:
        return bool(self._v4 or self._v6)
