"""Words, tokens, prompts and settings: what the answers are made of."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gslb.mock.answers import ChatAnswer, CompletionAnswer, Framing
from gslb.mock.answers_named import MessagesAnswer, ResponsesAnswer
from gslb.mock.asks import Ask, decode_object, read_ask
from gslb.mock.refusals import Refusal
from gslb.mock.settings import MockSettings
from gslb.mock.words import VOCABULARY, Speech, block_hashes, text_of, token_count, token_ids

SETTINGS = MockSettings(models=["m"], max_model_len=1000)
CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


@given(st.text(max_size=200))
def test_text_survives_the_tokenizer(text: str) -> None:
    raw = text.encode()
    ids = token_ids(raw)
    assert text_of(ids) == text
    assert token_count(raw) == max(1, len(ids))


def test_ids_nobody_made_become_replacement_characters() -> None:
    assert text_of([0, 42, -1]) == "\N{REPLACEMENT CHARACTER}" * 3


@given(st.binary(max_size=500), st.binary(max_size=500), st.integers(1, 8))
def test_blocks_agree_as_far_as_the_prompts_do(one: bytes, other: bytes, block_size: int) -> None:
    ours, theirs = (block_hashes(prompt, block_size, "m") for prompt in (one, other))
    step = 4 * block_size
    whole = min(len(one), len(other)) // step
    same = next(
        (n for n in range(whole) if one[n * step : n * step + step] != other[n * step : n * step + step]), whole
    )
    assert ours[:same] == theirs[:same]
    assert len(ours) == len(one) // step
    assert ours[same : same + 1] != theirs[same : same + 1] or not ours[same:] or not theirs[same:]
    assert block_hashes(one, block_size, "other") != ours or not ours


def test_speech_uses_every_word_and_is_the_sum_of_its_tokens() -> None:
    speech = Speech(3, "", b"prompt")
    words = [speech.token(index).strip() for index in range(len(VOCABULARY))]
    assert sorted(words) == sorted(VOCABULARY)
    assert speech.between(0, 9) == speech.between(0, 4) + speech.between(4, 9)


@given(st.text(max_size=60), st.integers(0, 3))
def test_body_cut_anywhere_is_refused_and_never_crashes(text: str, key: int) -> None:
    body = json.dumps({"model": "m", "prompt": text, "k" * key: 1}).encode()
    for cut in range(len(body)):
        with pytest.raises(Refusal) as caught:
            decode_object(body[:cut], "application/json")
        assert caught.value.status == 400
        assert set(orjson.loads(caught.value.body)["error"]) == {"message", "type", "param", "code"}
    assert decode_object(body, "application/json; charset=utf-8")["prompt"] == text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2000) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
members = st.sampled_from(
    ["model", "messages", "prompt", "input", "max_tokens", "stream", "stream_options", "temperature", "n", "tools",
     "text_1", "text_2", "query", "documents", "system", "max_output_tokens", "instructions"]
)  # fmt: skip
apis = st.sampled_from(["chat", "completion", "responses", "messages", "embeddings", "score", "rerank"])


@given(apis, st.dictionaries(members, json_values, max_size=8))
def test_any_document_is_an_ask_or_a_refusal(api: str, document: dict[str, Any]) -> None:
    ask, refused = None, None
    try:
        ask = read_ask(api, document, SETTINGS)
    except Refusal as refusal:
        refused = refusal.status
    assert refused in (None, 400, 404)
    if ask is not None:
        assert 1 <= ask.prompt_tokens <= 1000
        assert ask.prompt_tokens + ask.max_tokens <= 1000 or ask.finish_reason == "stop"


def test_prompt_and_answer_must_fit_together() -> None:
    with pytest.raises(Refusal) as caught:
        read_ask("completion", {"prompt": "abcd" * 900, "max_tokens": 200}, SETTINGS)
    assert b"maximum context length is 1000" in caught.value.body
    assert read_ask("completion", {"prompt": "abcd" * 900, "max_tokens": 100}, SETTINGS).prompt_tokens == 900


def test_prompt_of_token_ids_counts_them() -> None:
    assert read_ask("completion", {"prompt": [1, 2, 3]}, SETTINGS).prompt_tokens == 3


def test_chat_prompts_share_their_beginning() -> None:
    first = read_ask("chat", CHAT, SETTINGS).prompt
    turns = [*CHAT["messages"], {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "More"}]
    later = read_ask("chat", {"model": "m", "messages": turns}, SETTINGS).prompt
    assert later.startswith(first)


def test_parts_of_a_message_are_read() -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    document = {"model": "m", "messages": [{"role": "user", "content": parts}]}
    assert read_ask("chat", document, SETTINGS).prompt == read_ask("chat", CHAT, SETTINGS).prompt


def test_newer_name_of_the_budget_wins() -> None:
    assert read_ask("chat", {**CHAT, "max_tokens": 5, "max_completion_tokens": 7}, SETTINGS).max_tokens == 7


@pytest.mark.parametrize("maker", [ChatAnswer, CompletionAnswer, ResponsesAnswer, MessagesAnswer])
def test_every_event_is_whole_and_the_texts_add_up(maker: Any) -> None:
    ask = Ask(api="", model="m", prompt=b"", max_tokens=3, is_stream=True)
    answer = maker(ask, Framing("id", 1, "fp"))
    events = [*answer.greeting(), *answer.opening(), answer.delta("a", 1), answer.delta(" b", 2)]
    events += answer.ending(" c", 3, "stop")
    assert all(event.endswith(b"\n\n") and event.count(b"\n\n") == 1 for event in events)
    deltas = [event for event in events if b'" b"' in event]
    assert len(deltas) == 1
    whole = orjson.loads(maker(ask, Framing("id", 1, "fp")).whole("a b c", 3, "stop", 0))
    assert "a b c" in json.dumps(whole)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"models": []}, "models"),
        ({"slots": 0}, "slots"),
        ({"itl_ms": -1.0}, "itl_ms"),
        ({"time_scale": float("nan")}, "time_scale"),
        ({"queue_limit": -1}, "queue_limit"),
        ({"wan": [("10.0.0.0/33", 1.0)]}, "wan"),
        ({"wan": [("10.0.0.0/8", -1.0)]}, "wan"),
        ({"default_max_tokens": 0}, "default_max_tokens"),
    ],
)
def test_settings_that_cannot_be_are_named(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        MockSettings(**settings)
