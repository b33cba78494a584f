"""What all connections together hold of request bodies: exact at any moment, however they are cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gslb.wire.body_budget import BodyBudget
from gslb.wire.request_reader import RequestReader
from tests.wire.test_request_reader import chunked, cut, post

BODIES = st.lists(st.tuples(st.binary(max_size=200), st.booleans()), min_size=1, max_size=6)


def test_what_fits_is_held_and_no_more() -> None:
    budget = BodyBudget(10)
    assert budget.try_hold(10)
    assert not budget.try_hold(1)
    assert budget.has_room(0)
    assert not budget.has_room(1)
    budget.let_go(4)
    assert budget.try_hold(4)
    budget.limit_bytes = 5  # a reload: what is held stays, nothing new comes
    assert not budget.try_hold(1)
    budget.let_go(10)
    assert budget.try_hold(5)
    assert budget.held_bytes == 5


@given(BODIES, st.lists(st.integers(0, 10_000), max_size=12), st.integers(0, 600), st.booleans())
def test_readers_hold_exactly_what_they_have_and_leave_nothing(
    bodies: list[tuple[bytes, bool]], cuts: list[int], limit_bytes: int, is_taken: bool
) -> None:
    budget = BodyBudget(limit_bytes)
    readers = [RequestReader(2048, 40, 150, None, budget) for _ in range(2)]
    data = b"".join(chunked(body[:50], body[50:]) if is_chunked and len(body) > 50 else post(body)
                    for body, is_chunked in bodies)  # fmt: skip
    for piece in cut(data, cuts):
        for reader in readers:
            reader.feed(piece)
            whole = sum(len(body) for one in readers for _, body in one.ready)
            assert whole <= budget.held_bytes <= limit_bytes
            while is_taken and reader.ready:
                budget.let_go(len(reader.ready.popleft()[1]))
    for reader in readers:
        fault = reader.fault
        assert fault is None or fault.code in ("payload_too_large", "saturated")
        assert fault is None or fault.is_framing
        reader.close()
        reader.close()
    assert budget.held_bytes == 0


@given(st.integers(0, 300), st.lists(st.integers(0, 1000), max_size=5))
def test_forms_are_bounded_apart(size: int, cuts: list[int]) -> None:
    for path, limit_bytes in ((b"/v1/audio/transcriptions", 200), (b"/v1/completions", 100)):
        reader = RequestReader(2048, 40, 100, 200)
        raw = post(b"x" * size).replace(b"/v1/x?q=1", path + b"?q=1")
        for piece in [*cut(raw, cuts), raw]:  # the second time over, the head repeats
            reader.feed(piece)
        assert len(reader.ready) == (2 if size <= limit_bytes else 0)
        assert (reader.fault is None) == (size <= limit_bytes)
