"""Smuggling vectors over the reader alone, cut at every byte (over sockets: tests/system/test_smuggling.py)."""

from __future__ import annotations

import pytest

from gslb.wire.request_reader import IDLE, RequestReader
from tests.support.strict_http import requests_in
from tests.system.smuggling_vectors import (
    BODY_LIMIT_BYTES,
    COUNT_LIMIT,
    HEAD_LIMIT_BYTES,
    KINDS,
    SMUGGLED,
    VECTORS,
    Vector,
)  # fmt: skip

_LARGE_BYTES = 2000
_SEGMENT_BYTES = 256 * 1024
"""The most that one read of a socket brings (uvloop)."""
Read = tuple[list[tuple[bytes, bytes, bytes]], bool]


def read(*pieces: bytes) -> Read:
    """(requests, whether the connection is refused or in the middle of something at the end)."""
    reader = RequestReader(HEAD_LIMIT_BYTES, COUNT_LIMIT, BODY_LIMIT_BYTES)
    for piece in pieces:
        for start in range(0, len(piece), _SEGMENT_BYTES):
            reader.feed(piece[start : start + _SEGMENT_BYTES])
    requests = [(head.method, head.target, body) for head, body in reader.ready]
    return requests, reader.fault is None and reader.stage == IDLE


def test_fc02_fc36_there_are_enough_vectors() -> None:
    names = [(vector.kind, vector.name) for vector in VECTORS]
    assert len(set(names)) == len(names)
    assert sum(not vector.kind.startswith("FC-") for vector in VECTORS) >= 80


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{vector.kind}: {vector.name}")
def test_the_same_wherever_it_is_cut(vector: Vector) -> None:
    raw = vector.raw + SMUGGLED
    whole = read(raw)
    step = 1 if len(raw) < _LARGE_BYTES else 65_521
    for place in range(1, len(raw), step):
        assert read(raw[:place], raw[place:]) == whole, raw[:place][-40:]
    assert read(*(raw[i : i + step] for i in range(0, len(raw), step))) == whole


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_read_that_a_strict_reading_does_not_find(kind: str) -> None:
    for vector in VECTORS:
        if vector.kind == kind:
            found, _ = read(vector.raw + SMUGGLED)
            strict, _ = requests_in(vector.raw + SMUGGLED)
            told = [(*message.line[:2], message.body) for message in strict]
            assert found == told[: len(found)], vector.name
