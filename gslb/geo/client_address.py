"""Who the client is when proxies stand in front: the nearest address that somebody trusted vouched for.

Anyone can write X-Forwarded-For. Each trusted proxy appends the peer it saw, so the list is read from its
right end, and only as far as the proxies that wrote it are trusted (RFC 7239 section 8.1). Several lines are
one list, in order (RFC 9110 section 5.3).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gslb.geo.addresses import Address, PrefixTable, parse_address

MOST_BYTES_READ = 4096
"""Of a longer list only this much of its right end, the newest entries, is read and passed on."""

_UNKNOWN = "unknown"
"""RFC 7239 section 6.2: the sender does not know who its peer was."""

_PORT = r"(?::(?:[0-9]{1,5}|_[A-Za-z0-9._-]+))?"
_NODE = re.compile(
    rf'("?)(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]{_PORT}|(?P<v4>[0-9.]+){_PORT}|(?P<bare_v6>[0-9A-Fa-f:.]+))\1'
)
_VISIBLE = re.compile(rb"[\t -~]+")


@dataclass(frozen=True, slots=True)
class ClientAddress:
    """`address` in canonical form (RFC 5952), for geography, limits and logs alike; `forwarded_for` is the
    value of the one X-Forwarded-For line to send upstream."""

    address: str
    forwarded_for: str


class TrustedProxies:
    """The networks whose word about who their peer was is believed."""

    __slots__ = ("_networks",)

    def __init__(self, cidrs: Iterable[str]) -> None:
        """Raises ValueError for a text that is no network. IPv4-mapped networks are IPv4 networks."""
        self._networks = PrefixTable((cidr, True) for cidr in cidrs)

    def client_address(
        self, peer: str, x_forwarded_for: Sequence[bytes], forwarded: Sequence[bytes] = ()
    ) -> ClientAddress:
        """The client behind `peer`, from the values of all X-Forwarded-For (and Forwarded) lines in their
        order.

        From an untrusted peer both headers are ignored and replaced. An entry that is no address (or
        `unknown`) ends the walk at the address before it. `Forwarded` is read only when X-Forwarded-For has
        no entry: most proxies write the latter and pass the former through unread. A trusted proxy must
        therefore append to one of them. Never raises; at most MOST_BYTES_READ of each header are looked at. A
        peer that is no IP address (a Unix socket) is never trusted.
        """
        peer_address = parse_address(peer.partition("%")[0])
        if peer_address is None:
            return ClientAddress(peer, _UNKNOWN)
        canonical_peer = str(peer_address)
        if not self._trusts(peer_address):
            return ClientAddress(canonical_peer, canonical_peer)
        if any(line.strip(b" \t,") for line in x_forwarded_for):
            entries = _entries(x_forwarded_for)
        else:
            entries = [_for_node(element) for element in _entries(forwarded)]
        client = peer_address
        for entry in reversed(entries):
            hop = _node_address(entry)
            if hop is None:
                break
            client = hop
            if not self._trusts(hop):
                break
        return ClientAddress(str(client), ", ".join((*entries, canonical_peer)))

    def trusts(self, peer: str) -> bool:
        """Whether the word of `peer` (an address text) about its clients is believed. Never raises."""
        address = parse_address(peer.partition("%")[0])
        return address is not None and self._trusts(address)

    def _trusts(self, address: Address) -> bool:
        return self._networks.find(address) is not None


def _entries(lines: Sequence[bytes]) -> list[str]:
    """The list members of all lines in order. Empty ones are skipped (RFC 9110 section 5.6.1), so are
    `unknown`s at the left end, which say nothing; a member with unprintable bytes becomes `unknown`."""
    if not lines:
        return []
    joined = b",".join(lines)
    if len(joined) > MOST_BYTES_READ:
        # Cut at a comma: half an address could read as another one.
        joined = joined[-MOST_BYTES_READ:].partition(b",")[2]
    entries = [
        member.decode("ascii") if _VISIBLE.fullmatch(member) else _UNKNOWN
        for member in map(bytes.strip, joined.split(b","))
        if member
    ]
    while entries and entries[0].lower() == _UNKNOWN:
        del entries[0]
    return entries


def _for_node(element: str) -> str:
    """The `for` parameter of one Forwarded element (RFC 7239 section 4), `unknown` if it has none. Node names
    hold no comma or semicolon; a quoted parameter that does breaks its element, which is then unreadable."""
    for pair in element.split(";"):
        name, _, value = pair.partition("=")
        if name.strip().lower() == "for":
            return value.strip()
    return _UNKNOWN


def _node_address(entry: str) -> Address | None:
    """The address in `1.2.3.4`, `1.2.3.4:80`, `2001:db8::5`, `[2001:db8::5]:443`, with or without quotes, or
    None."""
    match = _NODE.fullmatch(entry)
    if match is None:
        return None
    text = match["v6"] or match["v4"] or match["bare_v6"]
    if match["v6"] and ":" not in text:
        return None
    return parse_address(text)
