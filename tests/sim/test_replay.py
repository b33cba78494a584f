"""A trace replayed: at what rate, in what order, by whom."""

from __future__ import annotations

import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gslb.sim.clients import Client, Crowd
from gslb.sim.replay import Replay, replayed, spread, survey
from gslb.sim.setting import Ask
from gslb.sim.traces import Row
from gslb.types import Place

CROWDS = [
    Crowd([Client(Place(city="a"), "eu", 0.3), Client(Place(city="b"), "eu", 0.3)]),
    Crowd([Client(Place(city="c"), "us", 0.4)]),
]


def fine_rows(count: int = 1000, gap_s: float = 0.25) -> Iterator[Row]:
    for number in range(count):
        talk = number % 100
        yield Row(number * gap_s, 100 + number, 5, (talk, 1000 + number), 16, session=talk, client=talk)


def coarse_rows(ticks: int = 40, tick_s: float = 3.0) -> Iterator[Row]:
    """Like Mooncake's: ten requests each 3 s, some of them a millisecond apart."""
    for tick in range(ticks):
        for number in range(10):
            yield Row(tick * tick_s + 0.001 * (number > 5), tick * 10 + number + 1, 5)


def replay_of(rate: float = 4.0, duration_s: float = 50.0, *, is_superposed: bool = False) -> Replay:
    return Replay(fine_rows, survey(fine_rows()), rate, duration_s, 1000.0, is_superposed)


def asks_of(replay: Replay, seed: int = 1) -> list[Ask]:
    return list(replayed(replay, CROWDS, Random(seed)))


def test_survey() -> None:
    seen = survey(fine_rows())
    assert (seen.count, seen.span_s, seen.tick_s) == (1000, 249.75, 0)
    assert seen.rate_per_s == pytest.approx(4, rel=0.01)
    assert len(seen.lengths) == 1000


def test_survey_samples_long_traces_evenly() -> None:
    seen = survey(fine_rows(40_000))
    assert len(seen.lengths) == 4000
    assert sum(prompt for prompt, _ in seen.lengths) / 4000 == pytest.approx(20_100, rel=0.03)


def test_survey_sees_coarse_times() -> None:
    seen = survey(coarse_rows())
    assert seen.tick_s == pytest.approx(3, abs=0.002)
    assert seen.span_s == pytest.approx(120, abs=0.01)


def test_a_trace_of_one_instant_has_no_rate() -> None:
    with pytest.raises(ValueError, match="the same time"):
        survey([Row(0, 1, 1), Row(0, 1, 1)])


def test_requests_of_a_tick_are_spread_over_it() -> None:
    rows = list(spread(coarse_rows(), 2.999))
    assert [row.prompt_tokens for row in rows] == list(range(1, 401))
    assert all(before.at_s <= after.at_s for before, after in pairwise(rows))
    seconds = Counter(int(row.at_s) for row in rows)
    assert max(seconds.values()) <= 8  # 3.3 on average; all ten in one second before
    assert len(seconds) > 110
    assert rows == list(spread(coarse_rows(), 2.999))


def test_fine_times_stay_as_they_are() -> None:
    assert list(spread(fine_rows(), 0.0)) == list(fine_rows())


@pytest.mark.parametrize("is_superposed", [False, True])
@pytest.mark.parametrize("rate", [1.0, 4.0, 13.0, 40.0])
def test_the_rate_is_reached(rate: float, is_superposed: bool) -> None:
    replay = replay_of(rate, duration_s=20.0, is_superposed=is_superposed)
    asks = asks_of(replay)
    assert len(asks) == pytest.approx(20 * rate, rel=0.25, abs=6)
    assert all(before.at_s <= after.at_s for before, after in pairwise(asks))
    assert all(0 <= ask.at_s < 20 for ask in asks)


@given(seed=st.integers(0, 2**32), rate=st.floats(0.5, 60), is_superposed=st.booleans())
@settings(max_examples=30, deadline=None)
def test_order_and_equal_dice(seed: int, rate: float, is_superposed: bool) -> None:
    replay = replay_of(rate, 10.0, is_superposed=is_superposed)
    asks = asks_of(replay, seed)
    assert asks == asks_of(replay, seed)
    assert all(before.at_s <= after.at_s for before, after in pairwise(asks))


def test_a_trace_is_used_once() -> None:
    replay = replay_of(rate=400.0, duration_s=1e9)
    assert replay.longest_s == pytest.approx(2.5, rel=0.01)
    asks = asks_of(replay)
    assert sorted(ask.prompt_tokens for ask in asks) == list(range(100, 1100))
    assert asks[0].prompt_tokens != 100  # it starts somewhere in the middle, by the dice, and goes around
    assert asks[-1].at_s < 2.5


def test_faster_time_keeps_order_prefixes_and_sessions() -> None:
    asks = asks_of(replay_of(rate=8.0))
    numbers = [ask.prompt_tokens for ask in asks]
    assert all((after - before) % 1000 == 1 for before, after in pairwise(numbers))
    assert {ask.blocks for ask in asks} <= {((number - 100) % 100, 900 + number) for number in range(100, 1100)}
    assert all(ask.session == ask.blocks[0] and ask.block_tokens == 16 for ask in asks)


def test_a_conversation_has_one_client() -> None:
    places = defaultdict(set)
    asks = asks_of(replay_of(rate=40.0))
    for ask in asks:
        places[ask.session].add(ask.place.city)
    assert all(len(cities) == 1 for cities in places.values())
    edges = Counter(ask.edge for ask in asks)
    assert edges["eu"] / len(asks) == pytest.approx(0.6, abs=0.15)


def test_copies_share_no_prefix_and_no_session() -> None:
    replay = replay_of(rate=16.0, duration_s=249.0, is_superposed=True)
    asks = asks_of(replay)
    by_session = defaultdict(set)
    for ask in asks:
        by_session[ask.session].add((ask.blocks[0], id(ask.place)))
    assert len(by_session) > 390
    assert all(len(shared) == 1 for shared in by_session.values())


def test_thinning_keeps_whole_conversations() -> None:
    asks = asks_of(replay_of(rate=2.0, duration_s=249.0, is_superposed=True))
    counts = Counter(ask.session for ask in asks)
    assert all(count >= 9 for count in counts.values())
    assert len(counts) == pytest.approx(50, abs=20)


def test_memory_does_not_grow_with_the_trace() -> None:
    def peak_of(count: int) -> int:
        tracemalloc.start()
        seen = survey(fine_rows(count))
        replay = Replay(partial(fine_rows, count), seen, 2 * seen.rate_per_s, 1e9, 1000.0)
        asked = sum(1 for _ in replayed(replay, CROWDS, Random(1)))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert asked == count
        return peak

    assert peak_of(40_000) < 1.2 * peak_of(8000)


def test_too_many_copies() -> None:
    replay = replay_of(rate=1e6, is_superposed=True)
    with pytest.raises(ValueError, match="copies of the trace"):
        asks_of(replay)
    assert replace(replay, is_superposed=False).factor > 500
