from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gslb.geo.proxy_protocol import (
    V1_MOST_BYTES,
    V2_MOST_BYTES,
    ProxyHeader,
    ProxyProtocolError,
    parse_proxy_header,
)

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
REQUEST = b"POST /v1/completions HTTP/1.1\r\n\r\n"


def v2(command: int, family: int, payload: bytes) -> bytes:
    return SIGNATURE + bytes((0x20 | command, family)) + struct.pack("!H", len(payload)) + payload


V4_PAIR = IPv4Address("203.0.113.5").packed + IPv4Address("10.0.0.9").packed + struct.pack("!HH", 4711, 443)
V6_PAIR = IPv6Address("2001:db8::5").packed + IPv6Address("::1").packed + struct.pack("!HH", 4711, 443)
MAPPED_PAIR = IPv6Address("::ffff:203.0.113.5").packed + IPv6Address("::1").packed + struct.pack("!HH", 1, 2)
TLV = b"\x03\x00\x04abcd"
LONGEST_V1 = b"PROXY UNKNOWN " + b"f" * (V1_MOST_BYTES - 16) + b"\r\n"

GOOD = [
    (b"PROXY TCP4 203.0.113.5 10.0.0.9 4711 443\r\n", "203.0.113.5", 4711),
    (b"PROXY TCP6 2001:DB8:0::5 ::1 0 65535\r\n", "2001:db8::5", 0),
    (b"PROXY TCP6 ::ffff:203.0.113.5 ::ffff:10.0.0.9 1 2\r\n", "203.0.113.5", 1),
    (b"PROXY UNKNOWN\r\n", None, None),
    (b"PROXY UNKNOWN ffff::1 ffff::1 65535 65535\r\n", None, None),
    (LONGEST_V1, None, None),
    (v2(1, 0x11, V4_PAIR), "203.0.113.5", 4711),
    (v2(1, 0x11, V4_PAIR + TLV), "203.0.113.5", 4711),
    (v2(1, 0x21, V6_PAIR), "2001:db8::5", 4711),
    (v2(1, 0x21, MAPPED_PAIR + TLV * 20), "203.0.113.5", 1),
    (v2(1, 0x31, bytes(216)), None, None),
    (v2(1, 0x00, b""), None, None),
    (v2(1, 0x00, TLV), None, None),
    (v2(1, 0x12, V4_PAIR), None, None),
    (v2(0, 0x00, b""), None, None),
    (v2(0, 0x11, V4_PAIR), None, None),
    (v2(0, 0x21, b""), None, None),
    (v2(1, 0x11, V4_PAIR + bytes(V2_MOST_BYTES - 16 - 12)), "203.0.113.5", 4711),
]


@pytest.mark.parametrize(("header", "source", "port"), GOOD, ids=range(len(GOOD)))
def test_a_header_is_read_and_what_follows_is_left(header: bytes, source: str | None, port: int | None) -> None:
    expected = ProxyHeader(len(header), source, port)
    assert parse_proxy_header(header) == expected
    assert parse_proxy_header(header + REQUEST) == expected


@pytest.mark.parametrize("header", [header for header, _, _ in GOOD], ids=range(len(GOOD)))
def test_a_header_cut_at_any_byte_is_incomplete(header: bytes) -> None:
    for cut in range(len(header)):
        assert parse_proxy_header(header[:cut]) is None


BAD = [
    REQUEST,
    b"proxy TCP4",
    b"PROXY\r\n",
    b"PROXY \r\n",
    b"PROXY TCP4\r\n",
    b"PROXY TCP5 1.1.1.1 1.1.1.1 1 1\r\n",
    b"PROXY TCP4 1.1.1.1 1.1.1.1 1\r\n",
    b"PROXY TCP4 1.1.1.1 1.1.1.1 1 1 1\r\n",
    b"PROXY TCP4  1.1.1.1 1.1.1.1 1 1\r\n",
    b"PROXY TCP4 1.1.1.01 1.1.1.1 1 1\r\n",
    b"PROXY TCP4 ::1 1.1.1.1 1 1\r\n",
    b"PROXY TCP4 1.1.1.1 x 1 1\r\n",
    b"PROXY TCP6 1.1.1.1 ::1 1 1\r\n",
    b"PROXY TCP6 fe80::1%eth0 ::1 1 1\r\n",
    b"PROXY TCP4 1.1.1.1 1.1.1.1 65536 1\r\n",
    b"PROXY TCP4 1.1.1.1 1.1.1.1 1 -1\r\n",
    b"PROXY TCP4 1.1.1.1 1.1.1.1 01 1\r\n",
    b"PROXY TCP4 1.1.1.1 1.1.1.1 1 \xb2\r\n",
    b"PROXY UNKNOWN " + b"f" * 200,
    b"\r\n\r\n\x00\r\nQUIX",
    SIGNATURE + b"\x11",
    SIGNATURE + b"\x22",
    SIGNATURE + b"\x21\x41",
    SIGNATURE + b"\x21\x13",
    SIGNATURE + b"\x21\x11\x00\x0b",
    SIGNATURE + b"\x21\x21\x00\x23",
    SIGNATURE + b"\x21\x31\x00\x0c",
    SIGNATURE + b"\x21\x11\xff\xff",
]


@pytest.mark.parametrize("data", BAD, ids=range(len(BAD)))
def test_what_cannot_become_a_header_is_refused_at_once(data: bytes) -> None:
    with pytest.raises(ProxyProtocolError):
        parse_proxy_header(data)


@given(
    st.binary(max_size=300), st.sampled_from([b"", b"PROXY ", b"PROXY TCP4 ", SIGNATURE, SIGNATURE + b"\x21\x11"])
)
def test_any_bytes_are_a_header_incomplete_or_refused(tail: bytes, start: bytes) -> None:
    data = start + tail
    try:
        header = parse_proxy_header(data)
    except ProxyProtocolError:
        return
    if header is None:
        assert len(data) < V2_MOST_BYTES
    else:
        assert header.length_bytes <= len(data)


@given(st.ip_addresses(), st.integers(0, 65535), st.binary(max_size=100))
def test_both_versions_agree(address: IPv4Address | IPv6Address, port: int, rest: bytes) -> None:
    name = f"TCP{address.version}"
    line = f"PROXY {name} {address} {address} {port} 1\r\n".encode()
    family = 0x11 if address.version == 4 else 0x21
    binary = v2(1, family, address.packed * 2 + struct.pack("!HH", port, 1))
    first, second = parse_proxy_header(line + rest), parse_proxy_header(binary + rest)
    assert first is not None
    assert second is not None
    assert (first.source, first.source_port) == (second.source, second.source_port)
    assert (first.length_bytes, second.length_bytes) == (len(line), len(binary))
