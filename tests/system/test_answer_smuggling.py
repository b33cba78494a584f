"""No answer of an endpoint becomes part of another one: doubtful ones are refused or cut."""

from __future__ import annotations

import pytest

from tests.support.edge import RunningEdge
from tests.support.raw_client import Answer, chat, request, until
from tests.support.raw_upstream import RawUpstream, answer
from tests.system.answer_vectors import ANSWER_VECTORS, AnswerVector
from tests.system.conftest import MakeEdge, MakeUpstream

ASK = request(chat())
NEXT = b'"the next answer"'


def _check(vector: AnswerVector, found: Answer) -> None:
    if vector.is_cut:
        assert not found.is_complete, "a cut answer looks complete"
        return
    assert found.is_complete
    if vector.payload is None:
        assert (found.status, found.error["code"]) == (502, "upstream_error")
    else:
        assert (found.status, bytes(found.body)) == (vector.status, vector.payload)
        assert found.one("x-request-id") != "evil"
        assert not any(byte < 32 for byte in found.status_line), "a reason may not carry control bytes"


async def _until_gone(one: RawUpstream) -> None:
    link = one.asked[0]
    await until(lambda: link.ended or link.is_closed, "the edge to drop the connection")


async def _try(vector: AnswerVector, running: RunningEdge, one: RawUpstream) -> None:
    client = await running.connect()
    found = client.send(ASK)
    await until(lambda: found.is_complete or client.ended, vector.name)
    _check(vector, found)
    await until(lambda: running.in_flight == 0)
    if not vector.is_kept:
        await _until_gone(one)
    again = client if not client.ended and not vector.is_cut else await running.connect()
    assert client.unread == b""
    following = await again.ask(ASK)
    assert (following.status, bytes(following.body)) == (200, NEXT), "the next request got another answer"
    assert len(one.asked) == (1 if vector.is_kept else 2)
    assert len(one.requests) == 2, "a request was sent twice"


@pytest.mark.parametrize("vector", ANSWER_VECTORS, ids=lambda vector: vector.name)
async def test_no_answer_becomes_part_of_another(
    vector: AnswerVector, edge: MakeEdge, upstream: MakeUpstream
) -> None:
    one = await upstream(vector.script, default=[answer(200, NEXT)])
    running = await edge({"eu": [one]}, health={"passive_fall": 100})
    await _try(vector, running, one)
