"""The demo's client: what it makes of answers, whole or broken, and of servers that misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gslb.demo.clients import AnswerReader, Client, Question
from gslb.demo.tally import Answer
from gslb.mock.faults import Fault
from gslb.mock.settings import MockSettings
from gslb.mock.vllm import MockVllm

ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error":{"message":"dead","code":500}}\n\n'


def content(text: str) -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{"content":%b}}]}\n\n' % orjson.dumps(text)


STREAM = ROLE + content("the") + content(" café\n\n") + b": comment\n\n" + content(" end") + DONE


def read(pieces: list[bytes], *, status: int = 200, leaves_after: int | None = None, ends: bool = True) -> Answer:
    """An answer read from pieces; piece number n comes at n seconds."""
    answer = Answer(sent_s=0.0, status=status)
    reader = AnswerReader(answer, leaves_after)
    for number, piece in enumerate(pieces):
        if reader.feed(piece, float(number)):
            return answer
    if ends:
        reader.end()
    return answer


@pytest.mark.parametrize("cut", range(len(STREAM) + 1))
def test_a_stream_is_whole_wherever_it_is_parted(cut: int) -> None:
    answer = read([STREAM[:cut], STREAM[cut:]])
    assert answer.is_whole
    assert answer.problem == ""
    assert answer.first_content_s == (0.0 if cut >= len(ROLE + content("the")) else 1.0)


@given(st.sets(st.integers(0, len(STREAM))))
def test_a_stream_is_whole_in_any_pieces(cuts: set[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    assert read([STREAM[a:b] for a, b in pairwise(edges)]).is_whole


def test_a_role_and_comments_are_no_content() -> None:
    answer = read([ROLE, b": comment\n\n"], ends=False)
    assert answer.first_content_s is None


def test_an_end_without_done_and_an_error_event_are_not_whole() -> None:
    assert not read([ROLE, content("the")]).is_whole
    assert not read([ROLE, content("the"), ERROR, DONE]).is_whole


def test_an_empty_answer_tells_that_it_has_no_content() -> None:
    answer = read([ROLE, DONE])
    assert answer.first_content_s is None
    assert answer.problem == "no content"


@pytest.mark.parametrize(
    "body", [b"", b"oops", b"[]", b'{"error":"text"}', b'{"error":{}}', b'data: {"error":{}}']
)
def test_an_error_answer_without_a_code_tells_its_status(body: bytes) -> None:
    answer = read([body], status=503)
    assert answer.problem in ("status 503", "error event")
    assert not answer.is_whole


def test_an_error_answers_code_is_read_across_pieces() -> None:
    assert read([b'{"error":{"code":', b'"residency_denied"}}'], status=403).problem == "residency_denied"


def test_an_impatient_client_leaves_after_so_many_events_but_not_after_the_end() -> None:
    assert read([ROLE, content("a"), content("b"), content("c")], leaves_after=2, ends=False).has_left
    assert not read([ROLE, content("a")], leaves_after=2, ends=False).has_left
    assert not read([ROLE + content("a") + DONE], leaves_after=2).has_left


# --- over a socket -----------------------------------------------------------------------------------


@pytest.fixture
async def mock() -> AsyncIterator[MockVllm]:
    server = MockVllm(MockSettings(models=("m",), itl_ms=1.0))
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def client(mock: MockVllm) -> AsyncIterator[Client]:
    client = Client("127.0.0.1", mock.port, asyncio.get_running_loop().time)
    yield client
    client.close()


def a_question(max_tokens: int = 5, leaves_after: int | None = None, model: str = "m") -> Question:
    return Question("DE", "91.16.0.7", model, "why?", max_tokens, leaves_after)


async def test_answers_come_over_one_warm_connection(mock: MockVllm, client: Client) -> None:
    for _ in range(3):
        answer = await client.ask(a_question())
        assert answer.is_whole
        assert answer.first_content_s is not None
        assert answer.sent_s <= answer.first_content_s <= answer.ended_s
    assert mock.connections_accepted == 1
    assert mock.requests[0].header("x-forwarded-for") == "91.16.0.7"


async def test_questions_at_once_do_not_share_a_connection(mock: MockVllm, client: Client) -> None:
    answers = await asyncio.gather(*(client.ask(a_question()) for _ in range(8)))
    assert all(answer.is_whole for answer in answers)
    assert mock.connections_accepted == 8


async def test_leaving_hangs_up(mock: MockVllm, client: Client) -> None:
    answer = await client.ask(a_question(max_tokens=5000, leaves_after=3))
    assert answer.has_left
    assert not answer.is_whole
    await mock.wait_until(lambda: mock.aborted == 1)


@pytest.mark.parametrize(
    ("fault", "has_content"),
    [
        (Fault(reset=True), False),
        (Fault(garbage=True), False),
        (Fault(reset_after_events=3), True),
        (Fault(fin_after_events=3), True),
        (Fault(error_event=True), False),
        (Fault(error_event_after=3), True),
        (Fault(status=503), False),
    ],
)
async def test_a_broken_answer_is_told_not_raised(
    mock: MockVllm, client: Client, fault: Fault, has_content: bool
) -> None:
    mock.set_faults(fault)
    answer = await client.ask(a_question(max_tokens=30))
    assert (answer.first_content_s is not None) is has_content
    assert not answer.is_whole
    assert answer.problem
    mock.set_faults()
    assert (await client.ask(a_question())).is_whole


async def test_an_error_of_the_api_is_told_by_its_code(client: Client) -> None:
    answer = await client.ask(a_question(model="nobody's"))
    assert answer.status == 404
    assert answer.problem


async def test_a_closed_port_is_told(mock: MockVllm, client: Client) -> None:
    mock.kill()
    answer = await client.ask(a_question())
    assert "no connection" in answer.problem


async def test_cancelling_a_question_hangs_up(mock: MockVllm, client: Client) -> None:
    asking = asyncio.create_task(client.ask(a_question(max_tokens=5000)))
    await mock.wait_until(lambda: mock.driver.running == 1)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await mock.wait_until(lambda: mock.open_connections == 0)
