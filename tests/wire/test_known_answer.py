"""Recognising an answer's head must come to what parsing it comes to, or to nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gslb.wire.http1 import ResponseHead, client_head, finish_response_head
from gslb.wire.known_answer import KnownAnswer

DATE = b"Mon, 30 Nov 2026 02:31:31 GMT"
LATER = b"Mon, 30 Nov 2026 02:31:32 GMT"
START = (
    b"HTTP/1.1 200 OK\r\ndate: %b\r\nserver: uvicorn\r\ncontent-length: %d\r\n"
    b"Content-Type: application/json\r\n\r\n"
)


def answer(body: bytes, date: bytes = DATE) -> bytes:
    return START % (date, len(body)) + body


def parsed(raw: bytes) -> ResponseHead:
    """The head as the long way finds it."""
    lines = raw.partition(b"\r\n\r\n")[0].split(b"\r\n")
    head = ResponseHead()
    head.status = int(lines[0].split(b" ")[1])
    head.reason = lines[0].split(b" ", 2)[2]
    head.fields = [(name, value.strip()) for name, _, value in (line.partition(b":") for line in lines[1:])]
    assert finish_response_head(head) is None
    return head


def taught(raw: bytes) -> KnownAnswer:
    known = KnownAnswer()
    known.learn(raw, parsed(raw))
    return known


def for_client(head: ResponseHead) -> bytes:
    return client_head(head, b"x-gslb-region: eu\r\n", is_http10=False, close=False)


@given(st.binary(max_size=300), st.binary(max_size=300), st.sampled_from([DATE, LATER]))
def test_what_is_recognised_is_what_parsing_finds(first: bytes, second: bytes, date: bytes) -> None:
    found = taught(answer(first)).match(answer(second, date))
    assert found is not None
    head, body = found
    assert body == second
    assert for_client(head) == for_client(parsed(answer(second, date)))
    assert (head.status, head.content_length, head.is_chunked) == (200, len(second), False)


def test_a_date_that_comes_back_is_told_as_it_is() -> None:
    known = taught(answer(b"a"))
    for date in (DATE, LATER, DATE):
        found = known.match(answer(b"xyz", date))
        assert found is not None
        assert b"date: %b\r\n" % date in for_client(found[0])


@pytest.mark.parametrize(
    "raw",
    [
        answer(b"hello")[:-1], answer(b"hello") + b"H", answer(b"x").replace(b"200 OK", b"500 No"),
        answer(b"x").replace(b"uvicorn", b"other"), answer(b"x").replace(b": 1\r", b": +1\r"),
        answer(b"x").replace(b": 1\r", b": \r"), answer(b"x").replace(b": 1\r", b": %b\r" % (b"1" * 30)),
        answer(b"x", b"x\r\nTransfer-Encoding:chunked"), answer(b"x", b"y" * 29), answer(b"x", b"soon"),
        answer(b"x").replace(b"json\r\n", b"json\r\nconnection: close\r\n"), b"", b"HTTP/1.1 200 OK\r\n",
    ],
)  # fmt: skip
def test_what_differs_in_more_is_left_to_the_parser(raw: bytes) -> None:
    assert taught(answer(b"hello")).match(raw) is None


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx",  # no date
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ndate: " + DATE + b"\r\n\r\nx",  # behind the length
        b"HTTP/1.1 200 OK\r\ndate: %b\r\nx-at: %b\r\ncontent-length: 1\r\n\r\nx" % (DATE, DATE),
        b"HTTP/1.1 200 OK\r\ndate: " + DATE + b"\r\n\r\nx",
        answer(b"x").replace(b"200 OK", b"404 Not Found"),
    ],
)
def test_nothing_is_learnt_of_other_heads(raw: bytes) -> None:
    assert taught(raw).match(raw) is None


def test_every_cut_of_an_answer_is_left_to_the_parser() -> None:
    known = taught(answer(b"hello"))
    raw = answer(b"world")
    for cut in range(len(raw)):
        assert known.match(raw[:cut]) is None
        assert known.match(raw[cut + 1 :]) is None


def test_heads_that_never_repeat_are_soon_left_alone() -> None:
    known = KnownAnswer()
    for number in range(9):
        raw = answer(b"x").replace(b"uvicorn", b"s%d" % number)
        known.learn(raw, parsed(raw))
    assert known.match(raw) is None, "the ninth was not learnt any more"
