"""The soak's payload and its checker: a checker that overlooks a byte proves nothing."""

from __future__ import annotations

from random import Random

import orjson
import pytest

from benchmarks.soak_payload import (
    MOST_EVENTS,
    Body,
    Checker,
    expected_answer,
    pieces,
    stream_events,
    whole_answer,
)
from benchmarks.upstream import DONE

_ERROR_EVENT = b'data: {"error":{"message":"cut","type":"server_error","param":null,"code":"upstream_error"}}\n\n'


def _verdict(seed: int, is_stream: bool, *parts: bytes, has_ended_well: bool) -> Body:
    checker = Checker(seed, is_stream)
    for part in parts:
        checker.feed(part)
    return checker.verdict(has_ended_well)


def test_a_seed_makes_the_same_answer_each_time_and_another_one_another() -> None:
    for is_stream in (False, True):
        assert expected_answer(7, is_stream) == expected_answer(7, is_stream)
        assert len({expected_answer(seed, is_stream) for seed in range(50)}) == 50


def test_answers_are_what_an_engine_sends() -> None:
    for seed in range(1, 60):
        assert orjson.loads(whole_answer(seed))["object"] == "chat.completion"
        events = stream_events(seed)
        assert 3 <= len(events) <= MOST_EVENTS + 2
        assert events[-1].endswith(DONE)
        for event in events[:-1]:
            chunk = orjson.loads(event.rsplit(b"data: ", 1)[1])
            assert chunk["choices"][0]["finish_reason"] is None


def test_pieces_are_the_whole_and_none_is_empty() -> None:
    rng = Random(1)
    for payload in (b"x", b"xy", *stream_events(3)):
        cut = pieces(payload, rng)
        assert b"".join(cut) == payload
        assert all(cut)


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_right_answer_is_whole_however_it_is_cut(is_stream: bool) -> None:
    expected = expected_answer(5, is_stream)
    assert _verdict(5, is_stream, *pieces(expected, Random(2)), has_ended_well=True) is Body.WHOLE
    assert _verdict(5, is_stream, *(bytes([byte]) for byte in expected), has_ended_well=True) is Body.WHOLE


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("has_ended_well", [False, True])
def test_every_changed_byte_is_wrong(is_stream: bool, has_ended_well: bool) -> None:
    expected = expected_answer(9, is_stream)
    for at in range(0, len(expected), 61):
        changed = bytearray(expected)
        changed[at] ^= 0x01
        assert _verdict(9, is_stream, bytes(changed), has_ended_well=has_ended_well) is Body.WRONG


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_byte_left_out_or_too_many_or_anothers_answer_is_wrong(is_stream: bool) -> None:
    expected = expected_answer(9, is_stream)
    middle = len(expected) // 2
    for body in (
        expected[:middle] + expected[middle + 1 :],
        expected + b"\n",
        expected + expected,
        expected_answer(8, is_stream),
        b"",
        expected[:-1],
    ):
        assert _verdict(9, is_stream, body, has_ended_well=True) is Body.WRONG


def test_a_cut_answer_is_a_beginning_of_the_right_one() -> None:
    expected = expected_answer(9, True)
    for end in range(0, len(expected), 11):
        assert _verdict(9, True, expected[:end], has_ended_well=False) is Body.CUT


def test_an_error_event_may_stand_between_events_only() -> None:
    events = stream_events(9)
    for count in range(1, len(events)):
        whole_events = b"".join(events[:count])
        assert _verdict(9, True, whole_events, _ERROR_EVENT, has_ended_well=False) is Body.CUT
        half = whole_events + events[count][: len(events[count]) // 2]
        assert _verdict(9, True, half, _ERROR_EVENT, has_ended_well=False) is Body.WRONG


@pytest.mark.parametrize(
    "tail", [DONE, _ERROR_EVENT + DONE, _ERROR_EVENT * 2, b"data: {}\n\n", b"data: [1]\n\n", _ERROR_EVENT[:-1]]
)
def test_nothing_else_may_follow_a_cut_stream(tail: bytes) -> None:
    begun = b"".join(stream_events(9)[:2])
    assert _verdict(9, True, begun, tail, has_ended_well=False) is Body.WRONG


def test_no_error_event_belongs_into_json_nor_behind_a_clean_end() -> None:
    assert _verdict(9, False, whole_answer(9)[:50], _ERROR_EVENT, has_ended_well=False) is Body.WRONG
    assert _verdict(9, True, stream_events(9)[0], _ERROR_EVENT, has_ended_well=True) is Body.WRONG
