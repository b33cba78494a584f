"""Chunks: written, and known for what they are in one look."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gslb.wire.chunks import chunk, chunk_payload, whole_chunk_bytes


@given(st.binary(min_size=1, max_size=300))
def test_chunks(payload: bytes) -> None:
    size, _, rest = chunk(payload).partition(b"\r\n")
    assert int(size, 16) == len(payload)
    assert rest == payload + b"\r\n"


@given(st.binary(min_size=1, max_size=300))
def test_a_whole_chunk_is_known_by_its_length_and_a_cut_one_is_not(payload: bytes) -> None:
    whole = chunk(payload)
    assert whole_chunk_bytes(whole) == len(payload)
    assert chunk_payload(whole) == payload
    for cut in range(len(whole)):
        if size := whole_chunk_bytes(whole[:cut]):  # a shorter chunk that it happens to be
            assert whole[:cut] == chunk(chunk_payload(whole[:cut]))
            assert size == len(chunk_payload(whole[:cut]))


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\r\n", b"0\r\n\r\n", b"3\r\nabc", b"3\r\nabcd\r", b"3\r\nab\r\n", b"03\r\nabc\r\n",
        b"A\r\n0123456789\r\n",
        b"+3\r\nabc\r\n", b" 3\r\nabc\r\n", b"3 \r\nabc\r\n", b"3;x\r\nabc\r\n", b"3\nabc\r\n", b"3\r\nabc\n\n",
        b"3\r\nabc\r\n3\r\nabc\r\n", b"3\r\nabc\r\n0\r\n\r\n",
    ],
)  # fmt: skip
def test_nothing_else_is_a_whole_chunk(data: bytes) -> None:
    assert whole_chunk_bytes(data) == 0
