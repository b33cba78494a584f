"""The mock held to the recordings of a real vLLM 0.32: bytes, but for identifiers, times, texts and token ids."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gslb.mock.answers_plain import orca_header
from gslb.mock.faults import Fault
from gslb.mock.settings import MockSettings
from gslb.mock.vllm import MockVllm
from tests.mock.raw import RawClient, Response, fetch, get, parse, post, request_bytes

CAPTURES = Path(__file__).parent / "captures"

VOLATILE = {
    "id", "item_id", "created", "created_at", "text", "content", "delta", "system_fingerprint", "tokens", "prompt",
    "count", "sequence_number",
}  # fmt: skip


def capture(name: str) -> Response:
    return parse((CAPTURES / f"{name}.http").read_bytes(), is_head=name.startswith("head"))


def request_body(name: str) -> bytes:
    return (CAPTURES / f"{name}.request.json").read_bytes()


def plain(value: Any, key: str = "") -> Any:
    """`value` with its key order made visible and what may differ replaced by its type."""
    if isinstance(value, dict):
        return [(name, plain(member, name)) for name, member in value.items()]
    if isinstance(value, list):
        return f"<{key}>" if key in VOLATILE and key == "tokens" else [plain(member, key) for member in value]
    return type(value).__name__ if key in VOLATILE else value


def headers_of(response: Response, is_exact: bool) -> list[tuple[str, str]]:
    """Headers in order; the date, a random request id and (unless exact) the length without their values."""
    hidden = {"date"} if is_exact else {"date", "content-length", "x-request-id"}
    return [(name, "*" if name in hidden else value) for name, value in response.headers]


def events_of(response: Response) -> list[tuple[str, Any]]:
    """Event name and shape of each chunk; a run of text deltas of the Responses API counts as one."""
    assert response.chunks is not None
    events: list[tuple[str, Any]] = []
    for chunk in response.chunks:
        assert chunk.endswith(b"\n\n")
        assert chunk.count(b"\n\n") == 1, "one event a chunk"
        name, data = "", chunk
        if chunk.startswith(b"event: "):
            line, data = chunk.split(b"\n", 1)
            name = line.decode()
        assert data.startswith(b"data: ")
        text = data[6:-2].decode()
        event = (name, text if text == "[DONE]" else plain(json.loads(text)))
        if not (events and "output_text.delta" in name and events[-1][0] == name):
            events.append(event)
    return events


def assert_same(answer: Response, recorded: Response, *, is_exact: bool = False) -> None:
    assert answer.status_line == recorded.status_line
    assert headers_of(answer, is_exact) == headers_of(recorded, is_exact)
    if recorded.chunks is not None:
        assert answer.is_complete
        assert events_of(answer) == events_of(recorded)
    elif is_exact or not recorded.body:
        assert answer.body == recorded.body
    else:
        assert plain(answer.json) == plain(recorded.json)
        assert b": " not in re.sub(rb'"[^"]*"', b"", answer.body), "compact JSON"


@pytest.fixture
async def server_a() -> AsyncIterator[MockVllm]:
    """As the recorded server A: default flags."""
    settings = MockSettings(models=["tiny-llama"], max_model_len=8192, itl_ms=1, has_pooling=False)
    mock = MockVllm(settings)
    await mock.start()
    yield mock
    await mock.stop()


ANSWERED = {
    "chat": "/v1/chat/completions",
    "chat-stream": "/v1/chat/completions",
    "chat-stream-usage": "/v1/chat/completions",
    "chat-stream-usage-continuous": "/v1/chat/completions",
    "completion": "/v1/completions",
    "completion-stream": "/v1/completions",
    "completion-stream-usage": "/v1/completions",
    "responses-stream": "/v1/responses",
    "messages": "/v1/messages",
    "tokenize": "/tokenize",
    "tokenize-chat": "/tokenize",
    "detokenize": "/detokenize",
}


@pytest.mark.parametrize("name", ANSWERED)
async def test_answer_is_as_recorded(server_a: MockVllm, name: str) -> None:
    request = request_bytes("POST", ANSWERED[name], request_body(name))
    assert_same(await fetch(server_a.port, request), capture(name))


REFUSED = {
    "err-bad-json": "/v1/chat/completions",
    "err-bad-param": "/v1/chat/completions",
    "err-max-tokens-too-big": "/v1/completions",
    "err-missing-messages": "/v1/chat/completions",
    "err-unknown-model": "/v1/chat/completions",
    "err-unknown-model-stream": "/v1/chat/completions",
    "embeddings-unsupported": "/v1/embeddings",
}


@pytest.mark.parametrize("name", REFUSED)
async def test_refusal_is_as_recorded_to_the_byte(server_a: MockVllm, name: str) -> None:
    request = request_bytes("POST", REFUSED[name], request_body(name))
    assert_same(await fetch(server_a.port, request), capture(name), is_exact=True)


@pytest.mark.parametrize(
    ("name", "method", "path"),
    [
        ("health", "GET", "/health"),
        ("head-health", "HEAD", "/health"),
        ("ping", "GET", "/ping"),
        ("version", "GET", "/version"),
        ("load-disabled", "GET", "/load"),
        ("is-sleeping", "GET", "/is_sleeping"),
        ("not-found", "GET", "/no/such/path"),
        ("method-not-allowed", "GET", "/v1/chat/completions"),
    ],
)
async def test_plain_path_is_as_recorded_to_the_byte(
    server_a: MockVllm, name: str, method: str, path: str
) -> None:
    assert_same(await fetch(server_a.port, request_bytes(method, path)), capture(name), is_exact=True)


async def test_model_list_is_as_recorded(server_a: MockVllm) -> None:
    assert_same(await get(server_a.port, "/v1/models"), capture("models"))


async def test_wrong_content_type_is_refused_as_recorded(server_a: MockVllm) -> None:
    request = request_bytes("POST", "/v1/chat/completions", b"hello", (("content-type", "text/plain"),))
    assert_same(await fetch(server_a.port, request), capture("err-content-type"), is_exact=True)


async def test_too_long_prompt_is_refused_as_recorded(server_a: MockVllm) -> None:
    document = {"model": "tiny-llama", "prompt": "word" * 9000, "max_tokens": 8}
    answer = await post(server_a.port, "/v1/completions", document)
    assert_same(answer, capture("err-too-long"), is_exact=True)


@pytest.mark.parametrize(
    ("name", "path", "wanted"),
    [
        ("chat-orca-json", "/v1/chat/completions", "JSON"),
        ("completion-orca-text", "/v1/completions", "TEXT"),
        ("chat-stream-orca-json", "/v1/chat/completions", "JSON"),
    ],
)
async def test_load_header_is_on_answers_that_are_not_streamed(
    server_a: MockVllm, name: str, path: str, wanted: str
) -> None:
    headers = (("endpoint-load-metrics-format", wanted),)
    answer = await fetch(server_a.port, request_bytes("POST", path, request_body(name), headers))
    assert_same(answer, capture(name))


async def test_request_id_becomes_the_id_in_the_body(server_a: MockVllm) -> None:
    headers = (("X-Request-Id", "my-req-0001"),)
    body = request_body("completion-request-id")
    answer = await fetch(server_a.port, request_bytes("POST", "/v1/completions", body, headers))
    recorded = capture("completion-request-id")
    assert_same(answer, recorded)
    assert answer.json["id"] == recorded.json["id"] == "cmpl-my-req-0001"


@pytest.mark.parametrize("is_stream", [False, True])
async def test_request_id_is_echoed_only_when_switched_on(is_stream: bool) -> None:
    settings = MockSettings(
        models=["tiny-llama"], has_request_id_headers=True, has_prompt_tokens_details=True, itl_ms=1
    )
    mock = MockVllm(settings)
    await mock.start()
    name, given = ("completion-stream-request-id-header", "my-req-0003") if is_stream else (
        "completion-request-id-header", "my-req-0002")  # fmt: skip
    # Five tokens as the recording has; its own prompt is not known.
    document = {"model": "tiny-llama", "prompt": "x" * 20, "max_tokens": 2, "stream": is_stream}
    answer = await post(mock.port, "/v1/completions", document, ("x-request-id", given))
    recorded = capture(name)
    assert_same(answer, recorded)
    assert answer.header("x-request-id") == recorded.header("x-request-id") == given
    await mock.stop()


async def test_http_1_0_is_answered_with_1_1_and_chunks(server_a: MockVllm) -> None:
    body = b'{"model":"tiny-llama","prompt":"Hello","max_tokens":3,"stream":true}'
    request = request_bytes("POST", "/v1/completions", body, version="1.0", is_closing=False)
    assert_same(await fetch(server_a.port, request), capture("http10-stream"))


async def test_two_names_are_listed_and_the_first_answers() -> None:
    mock = MockVllm(MockSettings(models=["tiny-llama", "tiny-alias"], max_model_len=2048, api_key="sk-test-key"))
    await mock.start()
    key = ("authorization", "Bearer sk-test-key")
    assert_same(await get(mock.port, "/v1/models", key), capture("models-two-names"))
    document = {"model": "tiny-alias", "prompt": "Hello world", "max_tokens": 4}
    assert_same(await post(mock.port, "/v1/completions", document, key), capture("completion-alias"))
    assert_same(await get(mock.port, "/health"), capture("health-with-api-key"), is_exact=True)
    recorded = capture("err-unauthorized-401")
    assert_same(await get(mock.port, "/v1/models"), recorded, is_exact=True)
    wrong = await get(mock.port, "/v1/models", ("authorization", "Bearer sk-other"))
    assert_same(wrong, capture("err-unauthorized-wrong-key"), is_exact=True)
    await mock.stop()


@pytest.mark.parametrize("is_stream", [False, True])
async def test_full_queue_is_answered_as_recorded(is_stream: bool) -> None:
    mock = MockVllm(MockSettings(models=["m"], slots=1, queue_limit=0, itl_ms=1000))
    await mock.start()
    document = {"model": "m", "prompt": "Hello", "max_tokens": 100, "stream": is_stream}
    holder = asyncio.create_task(post(mock.port, "/v1/completions", document))
    await mock.wait_until(lambda: mock.driver.running == 1)
    answer = await post(mock.port, "/v1/completions", document)
    name = "err-queue-full-503-stream" if is_stream else "err-queue-full-503"
    assert_same(answer, capture(name), is_exact=True)
    mock.kill()
    await asyncio.wait([holder])


async def test_load_counts_when_tracked() -> None:
    mock = MockVllm(MockSettings(models=["m"], slots=1, has_load_tracking=True, itl_ms=1000))
    await mock.start()
    document = {"model": "m", "prompt": "Hello", "max_tokens": 100}
    holders = [asyncio.create_task(post(mock.port, "/v1/completions", document)) for _ in range(8)]
    await mock.wait_until(lambda: mock.driver.waiting == 7)
    answer = await get(mock.port, "/load")
    assert answer.body == capture("load-loaded").body == b'{"server_load":8}'
    mock.kill()
    await asyncio.wait(holders)


async def test_dead_engine_breaks_a_stream_as_recorded(server_a: MockVllm) -> None:
    server_a.set_faults(Fault(error_event_after=3))
    document = {"model": "tiny-llama", "prompt": "Hello", "max_tokens": 50}
    answer = await post(server_a.port, "/v1/completions", {**document, "stream": True})
    tail = (CAPTURES / "engine-killed-inflight-stream.http").read_bytes().rsplit(b"\r\na9\r\n", 1)[1]
    assert answer.chunks is not None
    assert answer.is_complete
    assert len(answer.chunks) == 5
    assert b"%s\r\ne\r\n%s\r\n0\r\n\r\n" % tuple(answer.chunks[-2:]) == tail
    recorded = capture("engine-killed-inflight-nonstream")
    plainly = await post(server_a.port, "/v1/completions", document)
    assert (plainly.status_line, plainly.body) == (recorded.status_line, recorded.body)


async def test_new_request_while_draining_is_answered_as_recorded() -> None:
    mock = MockVllm(MockSettings(models=["m"], itl_ms=1000, shutdown_timeout_s=30))
    await mock.start()
    document = {"model": "m", "prompt": "Hello", "max_tokens": 100}
    holder = asyncio.create_task(post(mock.port, "/v1/completions", document))
    await mock.wait_until(lambda: mock.driver.running == 1)
    ending = asyncio.create_task(mock.terminate())
    await mock.wait_until(lambda: mock.is_draining)
    answer = await post(mock.port, "/v1/completions", document)
    assert_same(answer, capture("sigterm-drain-new-request-0"), is_exact=True)
    assert (await get(mock.port, "/health")).status == 200
    mock.kill()
    await asyncio.wait([holder, ending])


async def test_comments_while_queued_are_as_recorded() -> None:
    mock = MockVllm(MockSettings(models=["m"], slots=1, itl_ms=1e6, sse_keep_alive_s=0.01))
    await mock.start()
    body = b'{"model":"m","prompt":"Hello","max_tokens":100,"stream":true}'
    clients = [await RawClient.connect(mock.port) for _ in range(2)]
    for client in clients:
        await client.send(request_bytes("POST", "/v1/completions", body))
        await mock.wait_until(lambda: mock.driver.running == 1)
    await mock.wait_until(lambda: mock.driver.waiting == 1)
    raw = await clients[1].read_until(b": keep-alive\n\n\r\n")
    recorded_raw = (CAPTURES / "stream-queued-keepalive-comments.http").read_bytes()
    cut = recorded_raw.index(b": keep-alive") + len(b": keep-alive\n\n\r\n")
    assert re.sub(rb"date: [^\r]*", b"", raw) == re.sub(rb"date: [^\r]*", b"", recorded_raw[:cut])
    mock.kill()


def test_load_header_of_a_loaded_server_is_as_recorded() -> None:
    recorded = capture("completion-orca-json-loaded").header("endpoint-load-metrics")
    assert orca_header("json", waiting=3, kv_usage=0.0) == (b"endpoint-load-metrics", str(recorded).encode())


def families(text: str) -> dict[str, tuple[str, str, set[str]]]:
    """Family name -> (type, help, label names of its samples without `le`)."""
    found: dict[str, tuple[str, str, set[str]]] = {}
    help_text, current = "", ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            help_text = line.split(" ", 3)[3]
        elif line.startswith("# TYPE "):
            _, _, current, kind = line.split(" ")
            found[current] = (kind, help_text, set())
        elif current:
            found[current][2].update(set(re.findall(r'(\w+)="', line)) - {"le"})
    return found


async def test_metrics_are_a_truthful_part_of_the_recorded_ones(server_a: MockVllm) -> None:
    await post(server_a.port, "/v1/completions", {"model": "tiny-llama", "prompt": "Hello", "max_tokens": 4})
    answer = await get(server_a.port, "/metrics")
    recorded = capture("metrics-loaded")
    assert headers_of(answer, False) == [
        header for header in headers_of(recorded, False) if header[0] != "x-request-id"
    ]
    ours, theirs = families(answer.body.decode()), families(recorded.body.decode())
    assert set(ours) <= set(theirs)
    missing = {name for name in theirs if name.startswith("vllm:")} - set(ours)
    assert not [name for name in missing if not re.search("estimated_|mm_cache|num_preemptions", name)]
    ours.pop("vllm:cache_config_info")
    assert all(family == theirs[name] for name, family in ours.items())
    names = [name for name in theirs if name in ours]
    assert names == list(ours), "the recorded order"


async def test_metric_samples_and_buckets_are_spelt_as_recorded(server_a: MockVllm) -> None:
    answer = await get(server_a.port, "/metrics")

    def series(text: str) -> list[str]:
        lines = [line.rsplit(" ", 1)[0] for line in text.splitlines() if line.startswith("vllm:")]
        return [line for line in lines if "cache_config" not in line]

    theirs = set(series(capture("metrics-loaded").body.decode()))
    assert [line for line in series(answer.body.decode()) if line not in theirs] == []
