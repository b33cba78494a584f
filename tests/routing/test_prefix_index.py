"""The prefix index: never claims what was not noted, keeps its bounds, holds prefixes whole."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gslb.routing.prefix_index import NOTHING, PrefixIndex

A, B, C = "eu/a", "us/b", "ap/c"


def chain(text: str) -> tuple[int, ...]:
    """Chained block hashes: one for each leading part of `text`."""
    return tuple(hash(text[: end + 1]) for end in range(len(text)))


def test_nothing_is_known_at_first_and_costs_nothing() -> None:
    index = PrefixIndex(10)
    assert index.cached_blocks(chain("abc")) is NOTHING
    assert index.cached_blocks(()) is NOTHING
    index.note(A, chain("abc"))
    assert index.cached_blocks(chain("xbc")) is NOTHING


def test_one_walk_tells_every_depth() -> None:
    index = PrefixIndex(10)
    index.note(A, chain("sys"))
    index.note(B, chain("system"))
    index.note(C, chain("sysop"))
    assert index.cached_blocks(chain("systems")) == {A: 3, B: 6, C: 3}
    assert index.cached_blocks(chain("sysop")) == {A: 3, B: 3, C: 5}
    assert index.cached_blocks(chain("sy")) == {A: 2, B: 2, C: 2}


def test_looking_up_changes_nothing() -> None:
    index = PrefixIndex(2)
    index.note(A, chain("a"))
    index.note(A, chain("b"))
    index.cached_blocks(chain("a"))
    index.note(A, chain("c"))
    assert index.cached_blocks(chain("a")) == {}
    assert index.cached_blocks(chain("b")) == {A: 1}


def test_the_least_recently_used_goes_and_of_one_prompt_its_end() -> None:
    index = PrefixIndex(5)
    index.note(A, chain("abc"))
    index.note(A, chain("xyz"))
    assert index.cached_blocks(chain("abc")) == {A: 2}
    index.note(A, chain("ab"))  # used again: now the other one is older
    index.note(A, chain("q"))
    assert index.cached_blocks(chain("abc")) == {A: 2}
    assert index.cached_blocks(chain("xyz")) == {A: 2}


def test_of_a_prompt_longer_than_the_cache_the_first_blocks_stay() -> None:
    index = PrefixIndex(3)
    index.note(A, chain("abcdef"))
    assert index.cached_blocks(chain("abcdef")) == {A: 3}
    index.note(A, chain("abcdef"), limit_blocks=0)
    assert index.blocks == 0


def test_a_limit_that_shrinks_is_kept_from_the_next_note_on() -> None:
    index = PrefixIndex(6)
    index.note(A, chain("abcdef"))
    index.note(A, chain("x"), limit_blocks=4)
    assert index.blocks_of(A) == 4
    assert index.cached_blocks(chain("abcdef")) == {A: 3}


def test_forgetting_one_leaves_the_others() -> None:
    index = PrefixIndex(10)
    index.note(A, chain("abc"))
    index.note(B, chain("ab"))
    index.forget(A)
    index.forget("never/seen")
    assert index.cached_blocks(chain("abc")) == {B: 2}
    assert A not in index
    assert index.blocks == 2


def test_a_number_that_comes_free_is_the_next_ones_and_nothing_else_moves() -> None:
    index = PrefixIndex(10)
    index.note(A, chain("abc"))
    index.note(B, chain("abc"))
    index.cached_blocks(chain("abc"))
    index.forget(A)
    index.note(C, chain("ab"))
    assert index.cached_blocks(chain("abc")) == {B: 3, C: 2}


def test_all_together_are_bounded_too() -> None:
    index = PrefixIndex(100, most_blocks=120)
    for number in range(50):
        index.note(A, chain(f"a{number}")[1:])
    for number in range(50):
        index.note(B, chain(f"b{number}")[1:])
        index.note(C, chain(f"c{number}")[1:])
        assert index.blocks <= 120
    assert min(index.blocks_of(key) for key in (A, B, C)) >= 20  # the fullest gave


PROMPTS = st.text("ab", min_size=1, max_size=8)
NOTES = st.tuples(st.just("note"), st.sampled_from([A, B, C]), PROMPTS, st.sampled_from([None, 1, 3, 50]))
FORGETS = st.tuples(st.just("forget"), st.sampled_from([A, B, C]), st.just(""), st.none())


@settings(deadline=None)
@given(st.lists(NOTES | FORGETS, max_size=40), PROMPTS, st.integers(1, 12), st.integers(5, 30))
def test_it_never_claims_more_than_was_noted_and_keeps_its_bounds(
    acts: Sequence[tuple[str, str, str, int | None]], asked: str, limit: int, most: int
) -> None:
    index = PrefixIndex(limit, most)
    noted: dict[str, set[int]] = {A: set(), B: set(), C: set()}
    for act, key, prompt, own_limit in acts:
        if act == "forget":
            index.forget(key)
            noted[key] = set()
            assert index.blocks_of(key) == 0
            continue
        index.note(key, chain(prompt), own_limit)
        noted[key] |= set(chain(prompt))
        assert index.blocks_of(key) <= (limit if own_limit is None else own_limit)
        kept = min(len(prompt), limit if own_limit is None else own_limit)
        if index.blocks < most // 2:
            assert index.cached_blocks(chain(prompt))[key] == kept
    assert index.blocks == sum(index.blocks_of(key) for key in noted) <= most
    for key, depth in index.cached_blocks(chain(asked)).items():
        assert 1 <= depth <= len(asked)
        assert set(chain(asked)[:depth]) <= noted[key]


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from([A, B]), PROMPTS), max_size=30), st.integers(1, 10))
def test_what_is_held_is_whole_prefixes(notes: Sequence[tuple[str, str]], limit: int) -> None:
    index = PrefixIndex(limit)
    for key, prompt in notes:
        index.note(key, chain(prompt))
    held = {A: 0, B: 0}
    for start in {prompt[:end] for _, prompt in notes for end in range(1, len(prompt) + 1)}:
        depths = index.cached_blocks(chain(start))
        for key in held:
            held[key] += depths.get(key, 0) == len(start)
    # Every block held is reached by a walk from the first: none lies behind a gap.
    assert held == {key: index.blocks_of(key) for key in held}


@pytest.mark.parametrize("endpoints", [70, 1000])
def test_any_number_of_endpoints_has_a_bit(endpoints: int) -> None:
    index = PrefixIndex(4)
    for number in range(endpoints):
        index.note(f"r/{number}", chain("abc"[: 1 + number % 3]))
    depths = index.cached_blocks(chain("abc"))
    assert depths == {f"r/{number}": 1 + number % 3 for number in range(endpoints)}
