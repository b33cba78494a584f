"""Made-up requests: rates, bursts, order, days, conversations; equal dice, equal asks."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from math import sqrt
from random import Random
from statistics import fmean, median, pstdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gslb.sim.arrivals import (
    Demand,
    Talk,
    conversations,
    gamma_gaps,
    poisson_gaps,
    singles,
    typical_lengths,
)
from gslb.sim.clients import Client, Crowd, Day, Surge
from gslb.sim.lengths import Independent, Lognormal, Seen
from gslb.sim.setting import Ask
from gslb.types import Place

EU, US = Place(country="DE", city="Berlin"), Place(country="US", city="Chicago")
SHORT = Independent(Lognormal(100, 120), Lognormal(10, 12))


def crowd(edge: str, share: float, day: Day | None = None, *surges: Surge, offset_h: float = 0.0) -> Crowd:
    place = EU if edge == "eu" else US
    return Crowd([Client(place, edge, share, offset_h)], day, surges)


def demand(*crowds: Crowd, rate: float = 50.0, duration_s: float = 200.0) -> Demand:
    return Demand(crowds, rate, duration_s, 1000.0)


def asks_of(wanted: Demand, seed: int = 1, cv: float = 1.0) -> list[Ask]:
    gaps = poisson_gaps if cv == 1.0 else gamma_gaps(cv)
    return list(singles(wanted, SHORT, gaps, Random(seed)))


def test_rate_shares_and_places() -> None:
    asks = asks_of(demand(crowd("eu", 0.75), crowd("us", 0.25)))
    assert len(asks) == pytest.approx(10_000, abs=4 * sqrt(10_000))
    by_edge = Counter(ask.edge for ask in asks)
    assert by_edge["eu"] / len(asks) == pytest.approx(0.75, abs=0.02)
    assert {(ask.edge, id(ask.place)) for ask in asks} == {("eu", id(EU)), ("us", id(US))}
    assert {(ask.budget_ms, ask.blocks, ask.session) for ask in asks} == {(1000.0, (), None)}
    assert 0 <= asks[0].at_s < asks[-1].at_s < 200


def gap_cv(asks: list[Ask]) -> float:
    gaps = [after.at_s - before.at_s for before, after in pairwise(asks)]
    return pstdev(gaps) / fmean(gaps)


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_gaps_vary_as_they_should(cv: float) -> None:
    asks = asks_of(demand(crowd("eu", 1.0), rate=200), cv=cv)
    assert gap_cv(asks) == pytest.approx(cv, rel=0.08)
    assert len(asks) == pytest.approx(40_000, abs=4 * max(cv, 1) * sqrt(40_000))


@given(
    seed=st.integers(0, 2**32),
    rate=st.floats(0.1, 30),
    duration_s=st.floats(0.5, 10),
    surges=st.lists(st.tuples(st.floats(0, 25), st.floats(0, 25), st.floats(0.1, 10)), max_size=3),
    day_s=st.none() | st.floats(5, 1000),
)
@settings(max_examples=30, deadline=None)
def test_order_span_and_equal_dice(
    seed: int, rate: float, duration_s: float, surges: list[tuple[float, float, float]], day_s: float | None
) -> None:
    day = Day(day_s) if day_s is not None else None
    busy = [Surge("eu", min(a, b), max(a, b), factor) for a, b, factor in surges]
    wanted = demand(crowd("eu", 0.5, day, *busy), crowd("us", 0.5, day), rate=rate, duration_s=duration_s)
    asks = asks_of(wanted, seed)
    assert asks == asks_of(wanted, seed)
    assert all(before.at_s <= after.at_s for before, after in pairwise(asks))
    assert all(0 <= ask.at_s < duration_s for ask in asks)
    talk = Talk(Lognormal(50, 60), Lognormal(10, 12), turns=3, think_s=1.0)
    talks = list(conversations(wanted, talk, Random(seed)))
    assert talks == list(conversations(wanted, talk, Random(seed)))
    assert all(before.at_s <= after.at_s for before, after in pairwise(talks))
    assert all(0 <= ask.at_s < duration_s for ask in talks)


def test_a_surge_is_that_edges_alone_and_as_long_as_it_lasts() -> None:
    surge = Surge("eu", 50, 100, 4.0)
    asks = asks_of(demand(crowd("eu", 0.5, None, surge), crowd("us", 0.5, None, surge), rate=100))
    counts = Counter((ask.edge, 50 <= ask.at_s < 100) for ask in asks)
    assert counts["eu", True] == pytest.approx(4 * 50 * 50, rel=0.05)
    assert counts["eu", False] == pytest.approx(50 * 150, rel=0.05)
    assert counts["us", True] == pytest.approx(50 * 50, rel=0.08)


def test_the_day_peaks_by_the_clients_own_clock() -> None:
    day = Day(length_s=240, start_hour=0, peak_hour=15, swing=0.8)
    asks = asks_of(
        demand(crowd("eu", 0.5, day, offset_h=1), crowd("us", 0.5, day, offset_h=-6), rate=400, duration_s=240)
    )
    for edge, peak_utc in (("eu", 14), ("us", 21)):
        hours = Counter(int(ask.at_s / 10) for ask in asks if ask.edge == edge)
        mean = sum(hours.values()) / 24
        near_peak = fmean(hours[(peak_utc + step) % 24] for step in (-1, 0))
        near_low = fmean(hours[(peak_utc + 12 + step) % 24] for step in (-1, 0))
        assert near_peak / mean == pytest.approx(1.8, abs=0.12)
        assert near_low / mean == pytest.approx(0.2, abs=0.08)
        assert mean == pytest.approx(2000, rel=0.05)


# --- conversations ----------------------------------------------------------------------------------------

TALK = Talk(
    question=Lognormal(60, 100),
    answer=Lognormal(100, 150),
    turns=4,
    think_s=5.0,
    opening=Lognormal(800, 1000),
    systems=3,
    system_tokens=300,
    most_tokens=6000,
    block_tokens=64,
)


def talks_of(seed: int = 1, rate: float = 60.0) -> dict[int, list[Ask]]:
    by_session: dict[int, list[Ask]] = defaultdict(list)
    for ask in conversations(demand(crowd("eu", 0.6), crowd("us", 0.4), rate=rate), TALK, Random(seed)):
        assert ask.session is not None
        by_session[ask.session].append(ask)
    return by_session


def test_a_conversation_stays_where_it_is_and_its_prompts_grow() -> None:
    by_session = talks_of()
    assert len(by_session) > 1000
    for asks in by_session.values():
        assert len({(ask.edge, id(ask.place)) for ask in asks}) == 1
        for before, after in pairwise(asks):
            assert after.at_s > before.at_s
            assert after.prompt_tokens > before.prompt_tokens + before.output_tokens or (
                after.prompt_tokens == TALK.most_tokens
            )
            spoken = before.blocks + before.answer_blocks
            assert len(spoken) == (before.prompt_tokens + before.output_tokens - 1) // TALK.block_tokens
            assert after.blocks[: len(spoken)] == spoken[: len(after.blocks)]


def test_blocks_are_whole_and_shared_only_in_the_system_prompt() -> None:
    by_session = talks_of()
    owners: dict[int, set[int]] = defaultdict(set)
    for session, asks in by_session.items():
        for ask in asks:
            assert len(ask.blocks) == ask.prompt_tokens // 64
            assert ask.block_tokens == 64
            for block in ask.blocks:
                owners[block].add(session)
    shared = {block for block, sessions in owners.items() if len(sessions) > 1}
    assert len(shared) == 3 * (300 // 64)  # 44 tokens of each system prompt share a block with what follows
    assert all(block < 0 for block in shared)


def test_the_rate_is_reached_when_a_conversation_would_be_over() -> None:
    assert TALK.span_s == 44
    quarters = Counter(
        int(ask.at_s / 50) for seed in range(5) for asks in talks_of(seed, rate=100).values() for ask in asks
    )
    assert all(quarters[quarter] == pytest.approx(25_000, rel=0.07) for quarter in (1, 2, 3))
    first = Counter(int(ask.at_s / 10) for seed in range(5) for asks in talks_of(seed).values() for ask in asks)
    assert first[0] < 0.5 * first[10] < first[2] < 0.9 * first[10]


def test_typical_lengths_are_those_of_the_requests() -> None:
    asks = [ask for asks in talks_of().values() for ask in asks]
    typical = typical_lengths(TALK)
    assert typical == typical_lengths(TALK)
    assert fmean(prompt for prompt, _ in typical) == pytest.approx(fmean(a.prompt_tokens for a in asks), rel=0.1)
    assert fmean(output for _, output in typical) == pytest.approx(fmean(a.output_tokens for a in asks), rel=0.1)


# --- lengths ----------------------------------------------------------------------------------------------


def test_lognormal_has_its_median_and_mean() -> None:
    dice = Random(1)
    drawn = [Lognormal(129, 211).draw(dice) for _ in range(40_000)]
    assert median(drawn) == pytest.approx(129, rel=0.03)
    assert fmean(drawn) == pytest.approx(211, rel=0.03)
    assert min(drawn) >= 1


def test_lognormal_is_cut() -> None:
    dice = Random(1)
    assert max(Lognormal(129, 211, most=300).draw(dice) for _ in range(1000)) == 300
    assert {Lognormal(7, 7).draw(dice) for _ in range(10)} == {7}


def test_seen_pairs_stay_together() -> None:
    pairs = [(1, 2), (30, 40)]
    dice = Random(1)
    assert {Seen(pairs)(dice) for _ in range(50)} == set(pairs)
