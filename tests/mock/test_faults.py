"""Everything that can be made to go wrong, as a client sees it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gslb.mock.faults import Fault, FaultBook, FaultError, parse_faults
from gslb.mock.settings import MockSettings
from gslb.mock.vllm import MockVllm
from tests.mock.mocks import ASK, STREAM, Mocks, ask_bytes, is_refused
from tests.mock.raw import RawClient, dechunk, fetch, get, parse, post, request_bytes


async def outcome(port: int, document: dict[str, Any]) -> tuple[bytes, bool]:
    """All bytes of the answer to a completion request, and whether it ended with a reset."""
    client = await RawClient.connect(port)
    await client.send(ask_bytes(document))
    ended = await client.read_to_end()
    client.close()
    return ended


def events_in(raw: bytes) -> tuple[list[bytes], bool]:
    return dechunk(raw.partition(b"\r\n\r\n")[2])


LONG = {**STREAM, "max_tokens": 50}


async def test_hang_takes_the_request_and_never_answers(mocks: Mocks) -> None:
    mock = await mocks()
    mock.set_faults(Fault(hang=True))
    client = await RawClient.connect(mock.port)
    await client.send(ask_bytes(STREAM))
    await mock.wait_until(lambda: mock.requests_total == 1)
    assert await client.is_silent_for(0.05)
    assert (await get(mock.port, "/health")).status == 200
    client.close()
    await mock.wait_until(lambda: mock.aborted == 1)


@pytest.mark.parametrize("events", [0, 2])
async def test_stream_hangs_after_events(mocks: Mocks, events: int) -> None:
    mock = await mocks()
    mock.set_faults(Fault(hang_after_events=events))
    client = await RawClient.connect(mock.port)
    await client.send(ask_bytes(LONG))
    raw = await client.read_until(b"\r\n\r\n")
    for _ in range(events):
        raw += await client.read_until(b"\n\n\r\n")
    assert await client.is_silent_for(0.05)
    assert len(events_in(raw)[0]) == events


@pytest.mark.parametrize("events", [0, 1, 3])
async def test_stream_is_reset_after_events(mocks: Mocks, events: int) -> None:
    mock = await mocks()
    mock.set_faults(Fault(reset_after_events=events))
    raw, is_reset = await outcome(mock.port, LONG)
    assert is_reset
    assert len(events_in(raw)[0]) == events
    assert raw.startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("events", [0, 1, 3])
async def test_stream_ends_with_a_fin_but_no_zero_chunk(mocks: Mocks, events: int) -> None:
    mock = await mocks()
    mock.set_faults(Fault(fin_after_events=events))
    raw, is_reset = await outcome(mock.port, LONG)
    assert not is_reset
    chunks, is_complete = events_in(raw)
    assert (len(chunks), is_complete) == (events, False)


async def test_whole_stream_without_the_zero_chunk(mocks: Mocks) -> None:
    mock = await mocks()
    mock.set_faults(Fault(fin_after_events=4))
    chunks, is_complete = events_in((await outcome(mock.port, STREAM))[0])
    assert chunks[-1] == b"data: [DONE]\n\n"
    assert not is_complete


async def test_stream_is_cut_inside_an_event(mocks: Mocks) -> None:
    mock = await mocks()
    mock.set_faults(Fault(reset_after_events=2, is_half_event=True))
    raw, is_reset = await outcome(mock.port, LONG)
    assert is_reset
    assert len(events_in(raw)[0]) == 2
    assert not raw.endswith(b"\n")
    assert raw.count(b"data: {") == 3


async def test_truncated_json_is_announced_in_full(mocks: Mocks) -> None:
    mock = await mocks()
    mock.set_faults(Fault(truncate_json=True))
    raw, is_reset = await outcome(mock.port, ASK)
    assert not is_reset
    head, _, body = raw.partition(b"\r\n\r\n")
    assert 0 < len(body) < int(dict(parse(raw).headers)["content-length"])
    with pytest.raises(json.JSONDecodeError):
        json.loads(body)
    assert head.startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize(
    "fault", [Fault(reset_after_events=1), Fault(hang_after_events=1), Fault(fin_after_events=1)]
)
async def test_whole_answer_breaks_in_the_middle(mocks: Mocks, fault: Fault) -> None:
    mock = await mocks()
    mock.set_faults(fault)
    client = await RawClient.connect(mock.port)
    await client.send(ask_bytes(ASK))
    raw = await client.read_until(b'"object"')
    if fault.hang_after_events is not None:
        while not await client.is_silent_for(0.05):
            pass
    else:
        rest, is_reset = await client.read_to_end()
        assert is_reset is (fault.reset_after_events is not None)
        assert not parse(raw + rest).is_complete


async def test_error_as_first_event_ends_well_formed(mocks: Mocks) -> None:
    mock = await mocks()
    mock.set_faults(Fault(error_event=True))
    answer = await post(mock.port, "/v1/chat/completions", {"model": "m", "messages": [], "stream": True})
    assert answer.status == 200
    assert answer.is_complete
    assert answer.chunks is not None
    assert [chunk[:9] for chunk in answer.chunks] == [b'data: {"e', b"data: [DO"]
    assert (await post(mock.port, "/v1/completions", ASK)).status == 500
    assert mock.driver.running == 0


async def test_connection_survives_an_error_event(mocks: Mocks) -> None:
    mock = await mocks()
    mock.set_faults(Fault(error_event=True, count=1))
    client = await RawClient.connect(mock.port)
    await client.send(ask_bytes(STREAM))
    await client.read_until(b"\r\n0\r\n\r\n")
    await client.send(ask_bytes(ASK))
    assert (await client.read_response()).status == 200


async def test_slow_headers_come_late(mocks: Mocks) -> None:
    mock = await mocks()
    mock.set_faults(Fault(slow_headers_ms=80.0))
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    assert (await post(mock.port, "/v1/completions", STREAM)).is_complete
    assert loop.time() - started_s >= 0.079


async def test_status_with_retry_after(mocks: Mocks) -> None:
    mock = await mocks()
    mock.set_faults(*parse_faults({"status": 429, "retry_after": 7}))
    answer = await post(mock.port, "/v1/completions", STREAM)
    assert (answer.status, answer.header("retry-after")) == (429, "7")
    assert set(answer.json["error"]) == {"message", "type", "param", "code"}
    assert mock.driver.running == 0


@pytest.mark.parametrize("document", [STREAM, ASK])
async def test_bad_chunk_size(mocks: Mocks, document: dict[str, Any]) -> None:
    mock = await mocks()
    mock.set_faults(Fault(bad_chunk=True))
    raw, _ = await outcome(mock.port, document)
    assert raw.endswith(b"\r\nzz\r\n")
    assert len(events_in(raw)[0]) == 1


async def test_garbage_is_no_http(mocks: Mocks) -> None:
    mock = await mocks()
    mock.set_faults(Fault(garbage=True))
    raw, is_reset = await outcome(mock.port, ASK)
    assert raw
    assert not raw.startswith(b"HTTP/")
    assert not is_reset


async def test_reset_before_a_byte(mocks: Mocks) -> None:
    mock = await mocks()
    mock.set_faults(Fault(reset=True))
    assert await outcome(mock.port, ASK) == (b"", True)


async def test_refuse_closes_the_port_until_it_is_cleared(mocks: Mocks) -> None:
    mock = await mocks()
    port = mock.port
    mock.faults = [Fault(refuse=True)]
    assert await is_refused(port)
    mock.set_faults()
    await mock.wait_until(lambda: mock.is_listening)
    assert mock.port == port
    assert (await get(port, "/health")).status == 200


async def test_health_can_be_ill_while_requests_are_served(mocks: Mocks) -> None:
    mock = await mocks()
    mock.set_faults(Fault(health_status=503, count=1), Fault(metrics_status=500))
    assert (await get(mock.port, "/health")).status == 503
    assert (await get(mock.port, "/health")).status == 200
    assert (await get(mock.port, "/metrics")).status == 500
    assert (await post(mock.port, "/v1/completions", ASK)).status == 200


@pytest.mark.parametrize(
    ("path", "fault"), [("/health", Fault(health_hang=True)), ("/metrics", Fault(metrics_hang=True))]
)
async def test_probe_that_hangs(mocks: Mocks, path: str, fault: Fault) -> None:
    mock = await mocks()
    mock.set_faults(fault)
    client = await RawClient.connect(mock.port)
    await client.send(request_bytes("GET", path))
    await mock.wait_until(lambda: mock.requests_total == 1)
    assert await client.is_silent_for(0.05)
    assert (await post(mock.port, "/v1/completions", ASK)).status == 200


async def test_stalled_engine_is_well_but_makes_no_token(mocks: Mocks) -> None:
    mock = await mocks()
    mock.set_faults(Fault(stall=True))
    task = asyncio.create_task(post(mock.port, "/v1/completions", STREAM))
    await mock.wait_until(lambda: mock.driver.running == 1)
    assert (await get(mock.port, "/health")).status == 200
    text = (await get(mock.port, "/metrics")).body.decode()
    assert 'vllm:num_requests_running{engine="0",model_name="m"} 1.0' in text
    assert 'vllm:generation_tokens_total{engine="0",model_name="m"} 0.0' in text
    assert not task.done()
    mock.set_faults()
    assert (await task).is_complete


async def test_count_is_used_up(mocks: Mocks) -> None:
    mock = await mocks()
    mock.set_faults(Fault(status=503, count=2))
    statuses = [(await post(mock.port, "/v1/completions", ASK)).status for _ in range(3)]
    assert statuses == [503, 503, 200]
    assert mock.faults == ()


async def test_faults_are_set_shown_and_cleared_over_http(mocks: Mocks) -> None:
    mock = await mocks()
    shown = await post(mock.port, "/mock/faults", [{"status": 503, "count": 5}, {"health_hang": True}])
    assert shown.json == {"faults": [{"status": 503, "count": 5}, {"health_hang": True}]}
    assert (await post(mock.port, "/v1/completions", ASK)).status == 503
    assert (await get(mock.port, "/mock/faults")).json["faults"][0] == {"status": 503, "count": 4}
    assert (await fetch(mock.port, request_bytes("DELETE", "/mock/faults"))).json == {"faults": []}
    assert (await post(mock.port, "/v1/completions", ASK)).status == 200
    assert (await get(mock.port, "/mock/state")).json["requests_total"] == mock.requests_total == 2


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ({"hagn": True}, "did you mean 'hang'"),
        ({"hang": 1}, "hang: true or false"),
        ({"hang_after_events": -1}, "whole number"),
        ({"hang_after_events": 1.5}, "whole number"),
        ({"slow_headers_ms": "x"}, "number"),
        ({"status": 99}, "HTTP status"),
        ({"status": 503, "count": 0}, "at least 1"),
        ({"count": 3}, "nothing that goes wrong"),
        ({}, "nothing that goes wrong"),
        ("hang", "JSON object"),
        ([{"hang": True}, 7], "JSON object"),
        ({"status": True}, "whole number"),
    ],
)
async def test_what_is_no_fault_is_told(mocks: Mocks, document: Any, complaint: str) -> None:
    with pytest.raises(FaultError, match=complaint):
        parse_faults(document)
    mock = await mocks()
    answer = await post(mock.port, "/mock/faults", document)
    assert answer.status == 400
    assert complaint in answer.json["error"]["message"]


def test_first_fault_that_fits_hits() -> None:
    book = FaultBook()
    book.standing = [Fault(health_hang=True), Fault(status=500, count=1), Fault(status=503)]
    assert book.take_for_request().status == 500
    assert book.take_for_request().status == 503
    assert book.take_for_health().health_hang
    assert book.take_for_metrics() == Fault()


def test_faults_survive_the_way_through_json() -> None:
    for fault in (
        Fault(hang_after_events=0),
        Fault(status=429, retry_after="3"),
        Fault(slow_headers_ms=2.5, count=1),
    ):
        assert parse_faults(json.loads(json.dumps(fault.as_json()))) == [fault]


async def test_faults_may_be_set_before_the_start_and_stand_after_a_restart() -> None:
    mock = MockVllm(MockSettings(models=["m"]))
    mock.set_faults(Fault(status=503))
    mock.kill()
    await mock.start()
    assert (await post(mock.port, "/v1/completions", ASK)).status == 503
    await mock.restart()
    assert (await post(mock.port, "/v1/completions", ASK)).status == 503
    await mock.stop()


async def test_refusal_can_come_and_go_quickly_and_ends_with_the_mock(mocks: Mocks) -> None:
    mock = await mocks()
    for _ in range(3):
        mock.set_faults(Fault(refuse=True))
        mock.set_faults()
    mock.set_faults(Fault(refuse=True))
    assert [await is_refused(mock.port) for _ in range(5)][-1]
    mock.set_faults()
    mock.kill()
    assert [await is_refused(mock.port) for _ in range(5)][-1]
    await mock.restart()
    assert not await is_refused(mock.port)
