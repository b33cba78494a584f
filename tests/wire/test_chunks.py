"""Chunks: written, and known for what they are in one look."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gslb.wire.chunks import chunk, chunks_payload, whole_chunks_bytes


@given(st.binary(min_size=1, max_size=300))
def test_chunks(payload: bytes) -> None:
    size, _, rest = chunk(payload).partition(b"\r\n")
    assert int(size, 16) == len(payload)
    assert rest == payload + b"\r\n"


@given(st.binary(min_size=1, max_size=300))
def test_a_whole_chunk_is_known_by_its_length_and_a_cut_one_is_not(payload: bytes) -> None:
    whole = chunk(payload)
    assert whole_chunks_bytes(whole) == len(payload)
    assert chunks_payload(whole) == payload
    for cut in range(len(whole)):
        if size := whole_chunks_bytes(whole[:cut]):  # a shorter chunk that it happens to be
            assert whole[:cut] == chunk(chunks_payload(whole[:cut]))
            assert size == len(chunks_payload(whole[:cut]))


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=6))
def test_several_are_known_as_a_parser_would_tell_them(payloads: list[bytes]) -> None:
    framed = b"".join(map(chunk, payloads))
    ends = list(accumulate(len(chunk(payload)) for payload in payloads))
    assert whole_chunks_bytes(framed) == sum(map(len, payloads))
    assert chunks_payload(framed) == b"".join(payloads)
    for cut in range(len(framed)):
        if size := whole_chunks_bytes(framed[:cut]):
            # Whole up to here, or cut where what is there of the last one happens to be a shorter chunk.
            assert cut in ends or framed[:cut].endswith(b"\r\n")
            assert len(chunks_payload(framed[:cut])) == size


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\r\n", b"0\r\n\r\n", b"3\r\nabc", b"3\r\nabcd\r", b"3\r\nab\r\n", b"03\r\nabc\r\n",
        b"A\r\n0123456789\r\n",
        b"+3\r\nabc\r\n", b" 3\r\nabc\r\n", b"3 \r\nabc\r\n", b"3;x\r\nabc\r\n", b"3\nabc\r\n", b"3\r\nabc\n\n",
        b"3\r\nabc\r\n0\r\n\r\n", b"3\r\nabc\r\n\r\n", b"3\r\nabc\r\n3\r\nabc\r", b"3\r\nabc\r\n03\r\nabc\r\n",
        b"3\r\nabc\r\n3", b"3\r\nabc\r\n3;x\r\nabc\r\n", b"fffff", b"fffff\r\n",
    ],
)  # fmt: skip
def test_nothing_else_is_a_whole_chunk(data: bytes) -> None:
    assert whole_chunks_bytes(data) == 0
