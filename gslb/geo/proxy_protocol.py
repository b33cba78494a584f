"""The PROXY protocol, versions 1 (text) and 2 (binary): who the client is when a TCP balancer stands in
front.

After the specification by W. Tarreau, haproxy.org, doc/proxy-protocol.txt, revision 2020/03/05. The header is
the first thing on a connection and comes from the balancer, never from the client: whoever enables it must
make sure that only the balancer can connect.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from gslb.geo.addresses import parse_address

V1_MOST_BYTES = 107
"""The longest line that version 1 allows, its CRLF included."""

V2_MOST_BYTES = 4096
"""The longest version 2 header that is read. Addresses take 52 bytes; the rest is TLVs."""

_V1_START = b"PROXY "
_V2_START = b"\r\n\r\n\x00\r\nQUIT\n"
_V2_FIXED_BYTES = 16
_V2_ADDRESS_BYTES = {0: 0, 1: 12, 2: 36, 3: 216}
"""By address family: UNSPEC, INET, INET6, UNIX. Two addresses and, but for UNIX, two ports."""


class ProxyProtocolError(ValueError):
    """Bytes that cannot begin with a valid PROXY header: close the connection."""


@dataclass(frozen=True, slots=True)
class ProxyHeader:
    """A complete header of `length_bytes`. `source` is the client's canonical address, None when the balancer
    speaks for itself (LOCAL), does not know (UNKNOWN, UNSPEC) or names no IP stream (UNIX, UDP): then the
    connection's own peer is the client."""

    length_bytes: int
    source: str | None = None
    source_port: int | None = None


def parse_proxy_header(data: bytes) -> ProxyHeader | None:
    """The header at the start of `data`, or None while it is incomplete (call again with more of the same
    bytes).

    At most V2_MOST_BYTES are ever waited for. Raises ProxyProtocolError as soon as the bytes cannot be a
    header.
    """
    if data.startswith(_V1_START):
        return _parse_v1(data)
    if data.startswith(_V2_START):
        return _parse_v2(data)
    if _V1_START.startswith(data) or _V2_START.startswith(data):
        return None
    raise ProxyProtocolError(
        "this connection starts without a PROXY header: make the balancer send one, or turn proxy_protocol off"
    )


def _parse_v1(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\r\n", 0, V1_MOST_BYTES)
    if end < 0:
        if len(data) >= V1_MOST_BYTES:
            raise ProxyProtocolError(f"PROXY v1 line without CRLF within {V1_MOST_BYTES} bytes")
        return None
    fields = data[len(_V1_START) : end].split(b" ")
    length_bytes = end + 2
    if fields[0] == b"UNKNOWN":
        return ProxyHeader(length_bytes)
    if fields[0] not in (b"TCP4", b"TCP6") or len(fields) != 5:
        raise ProxyProtocolError("PROXY v1 line is not TCP4|TCP6 SOURCE DESTINATION PORT PORT or UNKNOWN")
    is_v6 = fields[0] == b"TCP6"
    source = _v1_address(fields[1], is_v6)
    _v1_address(fields[2], is_v6)
    _v1_port(fields[4])
    return ProxyHeader(length_bytes, source, _v1_port(fields[3]))


def _v1_address(field: bytes, is_v6: bool) -> str:
    text = field.decode("latin-1")
    address = parse_address(text)
    # By the spelling, not by the parsed type: an IPv4-mapped address is IPv6 on the wire and IPv4 to everyone
    # else.
    if address is None or (":" in text) is not is_v6:
        raise ProxyProtocolError(f"PROXY v1 line has {text[:45]!r} where a TCP{6 if is_v6 else 4} address belongs")
    return str(address)


def _v1_port(field: bytes) -> int:
    if not (field.isdigit() and len(field) <= 5 and int(field) <= 65535 and (field == b"0" or field[0] != 0x30)):
        raise ProxyProtocolError(f"PROXY v1 line has {field[:10]!r} where a port belongs")
    return int(field)


def _parse_v2(data: bytes) -> ProxyHeader | None:
    if len(data) > 12 and data[12] not in (0x20, 0x21):
        raise ProxyProtocolError(
            f"PROXY v2 header with version and command {data[12]:#04x}: 0x20 or 0x21 expected"
        )
    if len(data) > 13 and (data[13] >> 4 not in _V2_ADDRESS_BYTES or data[13] & 0x0F > 2):
        raise ProxyProtocolError(f"PROXY v2 header with unknown family and transport {data[13]:#04x}")
    if len(data) < _V2_FIXED_BYTES:
        return None
    family, transport = data[13] >> 4, data[13] & 0x0F
    is_local = data[12] == 0x20
    payload_bytes = int.from_bytes(data[14:16], "big")
    length_bytes = _V2_FIXED_BYTES + payload_bytes
    if length_bytes > V2_MOST_BYTES:
        raise ProxyProtocolError(f"PROXY v2 header of {length_bytes} bytes: at most {V2_MOST_BYTES} are read")
    if not is_local and payload_bytes < _V2_ADDRESS_BYTES[family]:
        raise ProxyProtocolError(f"PROXY v2 header with {payload_bytes} bytes is too short for its addresses")
    if len(data) < length_bytes:
        return None
    is_stream = transport == 1
    if is_local or not is_stream or family not in (1, 2):
        return ProxyHeader(length_bytes)
    addresses = data[_V2_FIXED_BYTES:length_bytes]
    if family == 1:
        return ProxyHeader(length_bytes, str(IPv4Address(addresses[0:4])), int.from_bytes(addresses[8:10], "big"))
    source = IPv6Address(addresses[0:16])
    return ProxyHeader(length_bytes, str(source.ipv4_mapped or source), int.from_bytes(addresses[32:34], "big"))
