"""Hashes of a prompt's leading blocks: equal as far as prompts are, and no further."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gslb.wire.openai import read_json_facts
from gslb.wire.prefix import (
    BLOCK_BYTES,
    BLOCK_TOKENS,
    MOST_BLOCKS,
    affinity_hash,
    affinity_mark,
    hash_blocks,
    prefix_blocks,
    prefix_space,
)
from tests.support.interpreters import printed_elsewhere

SPACE = prefix_space("", "m")
LONG = "".join(f"{number:07d} " for number in range(1024))  # four blocks
SYSTEM = {"role": "system", "content": LONG}


def blocks(document: dict[str, Any], space: bytes = SPACE) -> tuple[int, ...]:
    return prefix_blocks(document, space)


def chat(*messages: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages), **members}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def common(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    """How many leading blocks two prompts share; behind them none may be equal."""
    same = [one == other for one, other in zip(first, second, strict=False)]
    depth = same.index(False) if False in same else len(same)
    assert not any(same[depth:])
    return depth


# --- blocks -----------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(st.binary(min_size=1), st.integers(0, 5 * BLOCK_BYTES - 1), st.integers(1, 255))
def test_a_byte_that_differs_changes_its_block_and_all_behind(start: bytes, at: int, by: int) -> None:
    content = (start * (5 * BLOCK_BYTES // len(start) + 1))[: 5 * BLOCK_BYTES]
    other = bytearray(content)
    other[at] = (other[at] + by) % 256
    first = hash_blocks(content, SPACE)
    assert len(first) == 5
    assert common(first, hash_blocks(bytes(other), SPACE)) == at // BLOCK_BYTES


@settings(deadline=None)
@given(st.integers(0, 3 * BLOCK_BYTES))
def test_what_grows_keeps_its_blocks(size: int) -> None:
    content = LONG.encode()
    grown = hash_blocks(content[:size], SPACE)
    assert len(grown) == size // BLOCK_BYTES
    assert hash_blocks(content, SPACE)[: len(grown)] == grown


def test_hashes_are_64_bits_and_all_differ() -> None:
    many = hash_blocks(b"x" * BLOCK_BYTES * 100, SPACE)  # the same block a hundred times, each at its own place
    assert len(set(many)) == 100
    assert all(0 <= one < 2**64 for one in many)
    assert max(many).bit_length() > 56


def test_there_is_a_most() -> None:
    huge = b"x" * (BLOCK_BYTES * MOST_BLOCKS + 5 * BLOCK_BYTES)
    assert len(hash_blocks(huge, SPACE)) == MOST_BLOCKS
    assert len(blocks({"prompt": huge.decode()})) == MOST_BLOCKS
    many = chat(*(user("x" * 3000) for _ in range(1000)))
    assert len(blocks(many)) == MOST_BLOCKS


def test_every_process_agrees() -> None:
    code = "from gslb.wire.prefix import *; print(hash_blocks(b'x' * 4096, prefix_space('t', 'm')))"
    assert printed_elsewhere(code) == {f"{hash_blocks(b'x' * 4096, prefix_space('t', 'm'))}\n"}


# --- spaces -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [("b", "m"), ("a", "n"), ("", "m"), ("am", ""), ("a\0m", "")])
def test_tenants_and_models_share_nothing(other: tuple[str, str]) -> None:
    document = chat(SYSTEM)
    mine = blocks(document, prefix_space("a", "m"))
    theirs = blocks(document, prefix_space(*other))
    assert len(mine) == len(theirs) == 4
    assert common(mine, theirs) == 0


def test_who_salts_the_engines_cache_shares_nothing_here_either() -> None:
    assert common(blocks(chat(SYSTEM)), blocks(chat(SYSTEM, cache_salt="mine"))) == 0
    assert blocks(chat(SYSTEM, cache_salt=7)) == blocks(chat(SYSTEM))


# --- prompts ----------------------------------------------------------------------------------------


def test_short_prompts_have_no_blocks() -> None:
    assert blocks(chat(user("x" * (BLOCK_BYTES - 20)))) == ()
    assert blocks({}) == ()


def test_a_conversation_that_grows_keeps_its_blocks() -> None:
    turns: list[dict[str, Any]] = [SYSTEM]
    before: tuple[int, ...] = ()
    for number in range(12):
        turns.append({"role": "user" if number % 2 == 0 else "assistant", "content": f"{number} " * 400})
        now = blocks(chat(*turns))
        assert now[: len(before)] == before
        before = now
    assert len(before) >= 8


def test_other_questions_on_one_document_share_the_document() -> None:
    asked = [blocks(chat(user(f"{LONG}\n\nQuestion: {question}" + "?" * 3000))) for question in ("who", "why")]
    assert common(*asked) == 4
    assert len(asked[0]) == 5


def test_roles_and_order_count() -> None:
    assert common(blocks(chat(user(LONG))), blocks(chat(SYSTEM))) == 0
    assert common(blocks(chat(user("a"), user(LONG))), blocks(chat(user("b"), user(LONG)))) == 0
    assert common(blocks(chat(user("ab"), user(LONG))), blocks(chat(user("a"), user("b" + LONG)))) == 0


def test_order_of_members_and_spelling_do_not() -> None:
    document = {"model": "m", "stream": True, "messages": [SYSTEM, user("é" * 5000)], "temperature": 0.5}
    turned = {
        "temperature": 0.5,
        "messages": [dict(reversed(list(message.items()))) for message in document["messages"]],  # type: ignore[attr-defined]
        "model": "m",
    }
    spelled = [
        json.dumps(document).encode(),
        json.dumps(turned, indent=2).encode(),
        json.dumps(turned, ensure_ascii=False).encode(),
    ]
    found = {blocks(orjson.loads(body)) for body in spelled}
    assert len(found) == 1
    assert len(found.pop()) == 8


def test_text_as_a_part_is_text() -> None:
    part = {"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}
    assert blocks(chat(user([part]))) == blocks(chat(user(LONG)))
    assert blocks({"system": [part], "messages": []}) == blocks({"system": LONG, "messages": []})


def test_tools_and_system_come_before_messages() -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": "x" * 3000}}]
    plain = blocks(chat(user(LONG)))
    assert common(plain, blocks(chat(user(LONG), tools=tools))) == 0
    assert common(plain, blocks(chat(user(LONG), system="be kind"))) == 0
    assert common(blocks(chat(user(LONG), tools=tools)), blocks(chat(user("other" * 900), tools=tools))) == 1
    assert common(blocks({"input": LONG}), blocks({"input": LONG, "instructions": "be kind"})) == 0


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
OTHER_PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 99_999 + "B"}}


def test_a_picture_is_one_thing_whatever_its_size() -> None:
    asked = [user([picture, {"type": "text", "text": LONG}]) for picture in (PICTURE, OTHER_PICTURE)]
    first, second = (blocks(chat(one)) for one in asked)
    assert len(first) == 4
    assert common(first, second) == 0
    behind = [blocks(chat(user([{"type": "text", "text": LONG}, one, {"type": "text", "text": LONG}])))
              for one in (PICTURE, OTHER_PICTURE)]  # fmt: skip
    assert common(*behind) == 4
    assert len(behind[0]) == 8


def test_calls_of_tools_and_what_they_returned_count() -> None:
    def call(name: str) -> dict[str, Any]:
        return {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": name}}]}

    result = {"role": "tool", "tool_call_id": "1", "content": LONG}
    assert common(blocks(chat(SYSTEM, call("f"), result)), blocks(chat(SYSTEM, call("g"), result))) == 4
    returned = [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": LONG}]}]
    assert len(blocks(chat(user(returned)))) == 4
    used = {"type": "tool_use", "name": "f", "input": {"text": LONG}}
    assert len(blocks(chat({"role": "assistant", "content": [used]}))) == 4


def test_a_mark_for_the_cache_may_wander() -> None:
    plain = {"type": "tool_use", "name": "f", "input": {"path": LONG}}
    marked = {**plain, "cache_control": {"type": "ephemeral"}}
    assert blocks(chat(user([plain]))) == blocks(chat(user([marked])))
    assert blocks(chat({**SYSTEM, "cache_control": {"type": "ephemeral"}})) == blocks(chat(SYSTEM))


def test_prompts_of_completions() -> None:
    assert len(blocks({"prompt": LONG})) == 4
    assert blocks({"prompt": [LONG, "other"]}) == blocks({"prompt": LONG})
    tokens = list(range(3 * BLOCK_TOKENS + 7))
    assert len(blocks({"prompt": tokens})) == 3
    assert blocks({"prompt": [tokens, [1]]}) == blocks({"prompt": tokens})
    assert common(blocks({"prompt": tokens}), blocks({"prompt": [*tokens[:1000], 7, *tokens[1001:]]})) == 1


@pytest.mark.parametrize(
    "document",
    [
        {"prompt": [-1] * 4000}, {"prompt": [2**40] * 4000}, {"prompt": [1, "x"] * 4000}, {"prompt": 7},
        {"messages": 7}, {"messages": [7, None, "x", [], {}]}, {"messages": {}}, {"input": [[1, 2]]},
        {"messages": [{"role": 7, "content": 7.5, "tool_calls": {}}]}, {"tools": 7}, {"system": False},
        {"prompt": []}, {"prompt": None}, {"input": None, "prompt": {}},
    ],
)  # fmt: skip
def test_odd_prompts_are_no_way_to_raise(document: dict[str, Any]) -> None:
    assert len(blocks(document)) in (0, 1, 2, 3, 4)


@pytest.mark.parametrize("depth", [10, 300, 500])
@pytest.mark.parametrize(("start", "end"), [("[", "]"), ('{"text":', "}"), ('{"x":[', "]}")])
@pytest.mark.parametrize("name", ["prompt", "messages", "tools", "system"])
def test_deep_nesting_is_no_way_to_raise(depth: int, start: str, end: str, name: str) -> None:
    body = f'{{"{name}":[{start * depth}1{end * depth}]}}'
    blocks(orjson.loads(body))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["role", "content", "text", "type", "x"]), inner, max_size=4)
    ),
    max_leaves=10,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["messages", "tools", "system", "prompt", "input"]), JSON))
def test_any_body_has_blocks_or_none(document: dict[str, Any]) -> None:
    blocks(document)
    affinity_mark(document, "t")


def test_every_cut_of_a_prompt_shares_what_it_has() -> None:
    whole = blocks(chat(user(LONG)))
    body = orjson.dumps(chat(user(LONG)))
    for cut in range(0, len(LONG), 37):
        shorter = body.replace(LONG.encode(), LONG[:cut].encode())
        found = blocks(orjson.loads(shorter))
        assert found == whole[: len(found)]
        assert len(found) == max(0, cut + len("\x1euser\x1f")) // BLOCK_BYTES


def test_a_body_that_is_read_has_its_tree() -> None:
    found = read_json_facts(orjson.dumps(chat(SYSTEM)))
    assert found.tree is not None
    assert blocks(dict(found.tree)) == blocks(chat(SYSTEM))


# --- marks ------------------------------------------------------------------------------------------


def test_marks_of_requests_that_belong_together() -> None:
    by_key = affinity_mark({"prompt_cache_key": "k", "user": "u"}, "")
    assert by_key == affinity_hash("", "prompt_cache_key", b"k") == affinity_mark({"prompt_cache_key": "k"}, "")
    assert affinity_mark({"user": "k"}, "") == affinity_hash("", "user", b"k") != by_key
    by_metadata = affinity_mark({"metadata": {"user_id": "u"}}, "")
    assert by_metadata is not None
    assert affinity_mark({"user": "u", "metadata": {"user_id": "x"}}, "") == affinity_mark({"user": "u"}, "")
    assert by_key is not None
    assert 0 <= by_key < 2**64


@pytest.mark.parametrize(
    "document", [{}, {"user": ""}, {"user": 7}, {"metadata": "u"}, {"metadata": {}}, {"metadata": {"user_id": []}}]
)
def test_no_mark(document: dict[str, Any]) -> None:
    assert affinity_mark(document, "") is None


def test_marks_of_two_tenants_differ() -> None:
    assert affinity_mark({"user": "u"}, "a") != affinity_mark({"user": "u"}, "b")
