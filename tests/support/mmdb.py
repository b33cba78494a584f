"""A MaxMind DB file from plain records, as small as the format allows (maxmind-db.github.io, version 2.0)."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from ipaddress import ip_network
from typing import Any

_METADATA = b"\xab\xcd\xefMaxMind.com"
_STRING, _DOUBLE, _UINT16, _UINT32, _MAP, _UINT64, _ARRAY = 2, 3, 5, 6, 7, 9, 11


def mmdb(records: Mapping[str, Any], ip_version: int = 4) -> bytes:
    """A database in which each network of `records` has its record; of nested networks the inner ones last."""
    data = b""
    leaves: dict[str, int] = {}
    for cidr, record in records.items():
        network = ip_network(cidr)
        bits = format(int(network.network_address), "b").zfill(network.max_prefixlen)
        if network.version < ip_version:
            bits = "0" * 96 + bits
        leaves[bits[: network.prefixlen + len(bits) - network.max_prefixlen]] = len(data)
        data += _encoded(record)
    nodes: list[list[int | None]] = [[None, None]]
    for bits, offset in leaves.items():
        at = 0
        for bit in map(int, bits[:-1]):
            following = nodes[at][bit]
            if following is None:
                following = nodes[at][bit] = len(nodes)
                nodes.append([None, None])
            at = following
        nodes[at][int(bits[-1])] = -1 - offset
    tree = b"".join(_record(value, len(nodes)) for node in nodes for value in node)
    return tree + bytes(16) + data + _METADATA + _encoded(
        {
            "binary_format_major_version": 2, "binary_format_minor_version": 0, "build_epoch": 1_700_000_000,
            "database_type": "Test-City", "description": {"en": "test"}, "ip_version": ip_version,
            "languages": ["en"], "node_count": len(nodes), "record_size": 24,
        },
    )  # fmt: skip


def _record(value: int | None, node_count: int) -> bytes:
    if value is None:
        value = node_count
    elif value < 0:
        value = node_count + 16 + (-1 - value)
    return value.to_bytes(3, "big")


def _encoded(value: Any, kind: int = _UINT16) -> bytes:
    """`value` in the data format; `kind` is the type of whole numbers."""
    if isinstance(value, str):
        text = value.encode()
        return _control(_STRING, len(text)) + text
    if isinstance(value, float):
        return _control(_DOUBLE, 8) + struct.pack(">d", value)
    if isinstance(value, int):
        size = (value.bit_length() + 7) // 8
        return _control(kind, size) + value.to_bytes(size, "big")
    if isinstance(value, list):
        return _control(_ARRAY, len(value)) + b"".join(map(_encoded, value))
    kinds = {"node_count": _UINT32, "build_epoch": _UINT64}
    pairs = (_encoded(name) + _encoded(part, kinds.get(name, _UINT16)) for name, part in value.items())
    return _control(_MAP, len(value)) + b"".join(pairs)


def _control(kind: int, size: int) -> bytes:
    assert size < 285
    first, more = (size, b"") if size < 29 else (29, bytes([size - 29]))
    return bytes([kind << 5 | first]) + more if kind <= _MAP else bytes([first, kind - 7]) + more
