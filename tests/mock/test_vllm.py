"""The mock as a server: order, queue, disconnects, keep-alive, texts, pooling."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import uvloop

from gslb.mock.settings import MockSettings
from gslb.mock.vllm import MockVllm
from tests.mock.mocks import ASK, HOUR_MS, STREAM, Mocks, ask_bytes
from tests.mock.raw import RawClient, get, parse, post, request_bytes
from tests.support.raw_client import connected_socket


async def test_request_is_logged_as_it_came(mocks: Mocks) -> None:
    mock = await mocks()
    await post(mock.port, "/v1/completions?x=%20y", ASK, ("X-Odd", "  Value "))
    (record,) = mock.requests
    assert (record.method, record.target) == ("POST", "/v1/completions?x=%20y")
    assert (b"X-Odd", b"Value") in record.headers
    assert json.loads(record.body) == ASK
    assert record.connection_id == 1
    assert (mock.requests_total, mock.connections_accepted) == (1, 1)
    await mock.wait_until(lambda: mock.open_connections == 0)
    assert [connection_id for connection_id, _ in mock.closings] == [1]


async def test_request_log_is_bounded(mocks: Mocks) -> None:
    mock = await mocks(request_log_size=2)
    for path in ("/health", "/ping", "/version"):
        await get(mock.port, path)
    assert [record.target for record in mock.requests] == ["/ping", "/version"]
    assert mock.requests_total == 3


async def test_stream_headers_come_while_the_request_still_waits(mocks: Mocks) -> None:
    mock = await mocks(slots=1, itl_ms=HOUR_MS)
    clients = [await RawClient.connect(mock.port) for _ in range(2)]
    for client in clients:
        await client.send(ask_bytes(STREAM))
        assert (await client.read_until(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
    assert (mock.driver.running, mock.driver.waiting) == (1, 1)
    assert await clients[1].is_silent_for(0.05)


async def test_identity_is_the_first_word_and_ends_the_fingerprint(mocks: Mocks) -> None:
    mock = await mocks(identity="eu-1")
    answer = await post(mock.port, "/v1/completions", ASK)
    assert answer.json["choices"][0]["text"].split()[0] == "eu-1"
    assert answer.json["system_fingerprint"] == "vllm-0.32.0-eu-1"


async def test_the_same_seed_says_the_same_and_another_does_not(mocks: Mocks) -> None:
    texts = []
    for seed in (1, 1, 2):
        mock = await mocks(seed=seed)
        answer = await post(mock.port, "/v1/completions", ASK)
        texts.append(answer.json["choices"][0]["text"])
    assert texts[0] == texts[1] != texts[2]


async def test_streamed_and_whole_text_are_the_same(mocks: Mocks) -> None:
    mock = await mocks()
    whole = await post(mock.port, "/v1/completions", {**ASK, "max_tokens": 40})
    streamed = await post(mock.port, "/v1/completions", {**STREAM, "max_tokens": 40})
    assert streamed.chunks is not None
    pieces = [json.loads(chunk[6:])["choices"][0]["text"] for chunk in streamed.chunks[:-1]]
    assert len(pieces) == 40
    assert "".join(pieces) == whole.json["choices"][0]["text"]


async def test_answer_ends_by_itself_when_no_length_is_asked(mocks: Mocks) -> None:
    mock = await mocks(default_max_tokens=5)
    answer = await post(mock.port, "/v1/completions", {"model": "m", "prompt": "Hello"})
    assert answer.json["choices"][0]["finish_reason"] == "stop"
    assert answer.json["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("is_queued", [False, True])
async def test_client_that_leaves_frees_its_place(mocks: Mocks, is_stream: bool, is_queued: bool) -> None:
    mock = await mocks(slots=1, itl_ms=HOUR_MS)
    if is_queued:
        holder = await RawClient.connect(mock.port)
        await holder.send(ask_bytes(ASK))
        await mock.wait_until(lambda: mock.driver.running == 1)
    before = mock.driver.running
    client = await RawClient.connect(mock.port)
    await client.send(ask_bytes(STREAM if is_stream else ASK))
    await mock.wait_until(lambda: mock.driver.running + mock.driver.waiting == before + 1)
    client.close()
    await mock.wait_until(lambda: mock.driver.running + mock.driver.waiting == before)
    assert mock.aborted == 1
    assert b'finished_reason="abort",model_name="m"} 0.0' in mock.metrics_text()


async def test_client_that_leaves_while_uploading_is_no_request(mocks: Mocks) -> None:
    mock = await mocks()
    client = await RawClient.connect(mock.port)
    await client.send(ask_bytes(ASK)[:-5])
    await mock.wait_until(lambda: mock.open_connections == 1)
    client.close()
    await mock.wait_until(lambda: mock.open_connections == 0)
    assert (mock.requests_total, mock.aborted) == (0, 0)


async def test_kept_alive_connection_serves_one_after_the_other(mocks: Mocks) -> None:
    mock = await mocks()
    client = await RawClient.connect(mock.port)
    for _ in range(3):
        await client.send(ask_bytes(ASK))
        assert (await client.read_response()).header("connection") is None
    assert mock.connections_accepted == 1


async def test_pipelined_requests_are_answered_in_order(mocks: Mocks) -> None:
    mock = await mocks()
    client = await RawClient.connect(mock.port)
    await client.send(ask_bytes(ASK) + request_bytes("GET", "/version", is_closing=False) + ask_bytes(STREAM))
    assert (await client.read_response()).json["object"] == "text_completion"
    assert "version" in (await client.read_response()).json
    assert (await client.read_until(b"0\r\n\r\n")).count(b"data: ") == 4


async def test_request_is_understood_however_it_is_cut(mocks: Mocks) -> None:
    mock = await mocks(itl_ms=0.0)
    whole = ask_bytes(ASK)
    client = await RawClient.connect(mock.port)
    for cut in range(1, len(whole)):
        await client.send(whole[:cut])
        await asyncio.sleep(0)
        await client.send(whole[cut:])
        assert (await client.read_response()).status == 200


async def test_idle_connection_is_closed_after_its_time(mocks: Mocks) -> None:
    mock = await mocks(keep_alive_s=0.05)
    client = await RawClient.connect(mock.port)
    await client.send(request_bytes("GET", "/version", is_closing=False))
    await client.read_response()
    assert await client.read_to_end() == (b"", False)


async def test_default_keep_alive_is_that_of_vllm() -> None:
    assert MockSettings().keep_alive_s == 5.0


async def test_what_is_no_http_gets_400_and_the_end(mocks: Mocks) -> None:
    mock = await mocks()
    client = await RawClient.connect(mock.port)
    await client.send(b"\x16\x03\x01 nonsense\r\n\r\n")
    raw, _ = await client.read_to_end()
    assert raw.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert raw.endswith(b"Invalid HTTP request received.")


async def test_expect_continue_is_answered_before_the_body(mocks: Mocks) -> None:
    mock = await mocks()
    request = ask_bytes(ASK, ("expect", "100-continue"))
    head, body = request.split(b"\r\n\r\n", 1)
    client = await RawClient.connect(mock.port)
    await client.send(head + b"\r\n\r\n")
    assert await client.read_until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    await client.send(body)
    assert (await client.read_response()).status == 200


async def test_slow_reader_gets_all_text_in_fewer_events(mocks: Mocks) -> None:
    mock = await mocks(itl_ms=0.0, itl_per_seq_ms=0.0)
    # Small socket buffers on the reading side, so that the server has to hold back.
    reader, writer = await asyncio.open_connection(sock=await connected_socket(mock.port, 4096), limit=1024)
    client = RawClient(reader, writer)
    await client.send(ask_bytes({**STREAM, "max_tokens": 100_000}, is_closing=True))
    await mock.wait_until(lambda: mock.driver.running == 0 and mock.requests_total == 1, timeout_s=30)
    answer = parse((await client.read_to_end())[0])
    assert answer.chunks is not None
    assert answer.is_complete
    pieces = [json.loads(chunk[6:])["choices"][0]["text"] for chunk in answer.chunks[:-1]]
    assert len(pieces) < 100_000
    assert len("".join(pieces).split(" ")) == 100_000


async def test_waiting_in_vain_tells_the_state(mocks: Mocks) -> None:
    mock = await mocks(identity="who")
    with pytest.raises(TimeoutError, match="'identity': 'who'"):
        await mock.wait_until(lambda: False, timeout_s=0.01)


async def test_prefix_cache_shows_in_usage_and_metrics(mocks: Mocks) -> None:
    mock = await mocks(has_prompt_tokens_details=True)
    ask = {"model": "m", "prompt": "abcd" * 100, "max_tokens": 1}
    usages = [(await post(mock.port, "/v1/completions", ask)).json["usage"] for _ in range(2)]
    assert [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages] == [0, 96]
    text = mock.metrics_text().decode()
    assert 'vllm:prefix_cache_queries_total{engine="0",model_name="m"} 200.0' in text
    assert 'vllm:prefix_cache_hits_total{engine="0",model_name="m"} 96.0' in text


async def test_adapter_is_listed_with_its_parent_and_answers_under_its_name(mocks: Mocks) -> None:
    mock = await mocks(loras={"ad-1": "m"})
    cards = {card["id"]: card for card in (await get(mock.port, "/v1/models")).json["data"]}
    assert cards["ad-1"]["parent"] == "m"
    assert (await post(mock.port, "/v1/completions", {**ASK, "model": "ad-1"})).json["model"] == "ad-1"


@pytest.mark.parametrize(
    ("path", "document", "member"),
    [
        ("/v1/embeddings", {"input": ["a", "b"]}, "data"),
        ("/v1/score", {"text_1": "a", "text_2": ["b", "c"]}, "data"),
        ("/score", {"text_1": "a", "text_2": ["b", "c"]}, "data"),
        ("/v1/rerank", {"query": "q", "documents": ["a", {"text": "b"}]}, "results"),
        ("/rerank", {"query": "q", "documents": ["a", "b", "c"], "top_n": 2}, "results"),
    ],
)
async def test_pooling_answers_once_per_input(
    mocks: Mocks, path: str, document: dict[str, Any], member: str
) -> None:
    mock = await mocks()
    answer = await post(mock.port, path, {"model": "m", **document})
    assert answer.status == 200
    assert len(answer.json[member]) == 2
    assert answer.json == {**(await post(mock.port, path, {"model": "m", **document})).json, **{
        key: answer.json[key] for key in ("id", "created") if key in answer.json}}  # fmt: skip


async def test_hundreds_of_streams_all_come_to_their_end() -> None:
    # On the loop that serves the demo and the benchmarks.
    async def scene() -> None:
        mock = MockVllm(MockSettings(models=["m"], slots=64, itl_ms=1.0, itl_per_seq_ms=0.0))
        await mock.start()
        asks = [post(mock.port, "/v1/completions", {**STREAM, "max_tokens": 5}) for _ in range(300)]
        answers = await asyncio.gather(*asks)
        assert all(answer.is_complete and len(answer.chunks or ()) == 6 for answer in answers)
        assert (mock.driver.running, mock.driver.waiting, mock.aborted) == (0, 0, 0)
        await mock.stop()

    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(scene())

    await asyncio.to_thread(run)
