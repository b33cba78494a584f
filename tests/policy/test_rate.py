"""Limits per time: never more than there is, waits that are true, one bucket for any number of writers (FC-37)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gslb.policy.rate import Bucket, Rate, RateLimit

SECOND_NS = 10**9
ONE_IN_2500_MS = (Rate.of("requests", 1, 2.5),)


def bucket(columns: int = 1) -> list[Bucket]:
    """One bucket, as seen by each of its writers."""
    taken, full = [0] * columns, [0] * columns
    return [Bucket(taken, full, column, nullcontext()) for column in range(columns)]


def test_fc37_one_request_per_2500_ms() -> None:
    """FC-37, send: the second request at 0.1 s, the third exactly after the advertised wait."""
    limit = RateLimit()
    assert limit.take("acme", ONE_IN_2500_MS, 9, 1000.0).wait_s == 0
    second = limit.take("acme", ONE_IN_2500_MS, 9, 1000.1)
    assert (second.wait_s, second.short) == (2.4, "requests")
    assert limit.take("acme", ONE_IN_2500_MS, 9, 1000.1 + 2.399).wait_s == 0.001
    assert limit.take("acme", ONE_IN_2500_MS, 9, 1000.1 + 2.4).wait_s == 0
    assert limit.take("zeta", ONE_IN_2500_MS, 9, 1000.1).wait_s == 0, "each tenant has its own"


def test_a_burst_and_what_refills() -> None:
    limit = RateLimit()
    rates = (Rate.of("requests", 60, 60.0, burst=3),)
    waits = [limit.take("acme", rates, 0, 50.0).wait_s for _ in range(5)]
    assert waits == [0, 0, 0, 1.0, 1.0]
    (left,) = limit.take("acme", rates, 0, 51.5).standings
    assert (left.counts, left.limit, left.remaining, left.reset_s) == ("requests", 3, 0, 2.5)
    (left,) = limit.take("acme", rates, 0, 1000.0).standings
    assert (left.remaining, left.reset_s) == (2, 1.0), (
        "a bucket holds no more than its burst, however long it rests"
    )


def test_what_is_refused_takes_nothing_of_the_other_rate_either() -> None:
    limit = RateLimit()
    rates = (Rate.of("requests", 10, 60.0), Rate.of("tokens", 1000, 60.0))
    assert [left.remaining for left in limit.take("acme", rates, 600, 0.0).standings] == [9, 400]
    refused = limit.take("acme", rates, 500, 0.0)
    assert (refused.short, refused.wait_s) == ("tokens", 6.0)
    assert [left.remaining for left in refused.standings] == [9, 400]
    assert [left.remaining for left in limit.take("acme", rates, 400, 0.0).standings] == [8, 0]


def test_more_than_a_bucket_holds_goes_when_it_is_full_and_takes_its_time() -> None:
    """Otherwise no wait that is told would be true."""
    limit = RateLimit()
    rates = (Rate.of("tokens", 1000, 60.0),)
    assert limit.take("acme", rates, 3000, 0.0).wait_s == 0
    assert limit.take("acme", rates, 1, 0.0).wait_s == pytest.approx(120.06)
    assert limit.take("acme", rates, 3000, 0.0).wait_s == 180.0
    assert limit.take("acme", rates, 3000, 180.0).wait_s == 0


def test_a_reload_that_changes_the_rate_keeps_what_is_owed() -> None:
    limit = RateLimit()
    slow, fast = (Rate.of("requests", 1, 60.0),), (Rate.of("requests", 60, 60.0),)
    assert limit.take("acme", slow, 0, 0.0).wait_s == 0
    limit.forget_all_but(["acme"])
    assert limit.take("acme", slow, 0, 1.0).wait_s == 59.0
    assert limit.take("acme", fast, 0, 1.0).wait_s == 0, "a minute is owed of a bucket that refills in one"
    assert limit.take("acme", fast, 0, 1.0).wait_s == 1.0
    limit.forget_all_but([])
    assert limit.take("acme", slow, 0, 1.0).wait_s == 0, "one that was removed begins anew"


@pytest.mark.parametrize("amount", [1, 10**12])
def test_the_longest_refills_fit_into_64_bits(amount: int) -> None:
    limit = RateLimit()
    rates = (Rate.of("tokens", 1, 366 * 86_400.0),)
    assert limit.take("acme", rates, amount, 1e7).wait_s == 0
    assert limit.take("acme", rates, amount, 1e7).wait_s > 0
    cells = limit._buckets["acme", "tokens"]
    assert all(abs(cell) < 2**62 for cell in (*cells._taken, *cells._full))


STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 3 * SECOND_NS), st.integers(1, 5 * SECOND_NS)), max_size=60
)


@given(STEPS, st.integers(1, 4 * SECOND_NS))
def test_any_number_of_writers_are_one_bucket(steps: list[tuple[int, int, int]], depth_ns: int) -> None:
    """Against a level that rises with time and falls by what is taken; and every wait that is told is true."""
    writers = bucket(3)
    level_ns = depth_ns
    now_ns = 7 * SECOND_NS
    for writer, passed_ns, refill_ns in steps:
        now_ns += passed_ns
        level_ns = min(depth_ns, level_ns + passed_ns)
        wait_ns = writers[writer].take(refill_ns, depth_ns, now_ns)
        assert wait_ns == max(0, min(refill_ns, depth_ns) - level_ns)
        if wait_ns:
            if wait_ns > 1:
                assert writers[2 - writer].take(refill_ns, depth_ns, now_ns + wait_ns - 1) == 1
            now_ns += wait_ns
            level_ns = min(depth_ns, level_ns + wait_ns)
            assert writers[writer].take(refill_ns, depth_ns, now_ns) == 0
        level_ns -= refill_ns
        assert writers[0].full_at_ns() - now_ns == depth_ns - level_ns


class Interrupted(list[int]):
    """Cells of which every access may be the moment in which another process runs."""

    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    def __iter__(self) -> Iterator[int]:
        self.meanwhile()
        return super().__iter__()

    def __setitem__(self, i: int, value: int) -> None:  # type: ignore[override]
        self.meanwhile()
        super().__setitem__(i, value)

    def __getitem__(self, i: int) -> int:  # type: ignore[override]
        value = super().__getitem__(i)
        self.meanwhile()
        return value


@pytest.mark.parametrize("moment", range(16))
@pytest.mark.parametrize("rest_ns", [0, 100 * SECOND_NS])
@pytest.mark.parametrize("places", [1, 2])
def test_two_at_once_never_take_more_than_there_is(moment: int, rest_ns: int, places: int) -> None:
    """One process is interrupted at each of its accesses by another that takes as well: of a bucket that was just
    emptied and refilled to the last, and of one that has rested."""
    depth_ns = places * SECOND_NS
    taken, full = Interrupted([0, 0]), Interrupted([0, 0])
    mine, theirs = (Bucket(taken, full, column, nullcontext()) for column in range(2))
    for _ in range(places):
        assert theirs.take(SECOND_NS, depth_ns, 50 * SECOND_NS) == 0
    now_ns = 50 * SECOND_NS + depth_ns + rest_ns
    waits: list[int] = []
    accesses = iter(range(-moment, 100))

    def meanwhile() -> None:
        if next(accesses) == 0:
            waits.append(theirs.take(SECOND_NS, depth_ns, now_ns))

    taken.meanwhile = full.meanwhile = meanwhile  # type: ignore[method-assign]
    waits.append(mine.take(SECOND_NS, depth_ns, now_ns))
    del taken.meanwhile, full.meanwhile
    if len(waits) == 1:  # that many accesses there are not
        waits.append(theirs.take(SECOND_NS, depth_ns, now_ns))
    done = waits.count(0)
    assert done <= places
    assert mine.full_at_ns() - now_ns == done * SECOND_NS, "who stepped back left nothing behind"
    more = [mine.take(SECOND_NS, depth_ns, now_ns) for _ in range(places)]
    assert more.count(0) == places - done
