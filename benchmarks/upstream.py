"""A stand-in for many vLLM servers that costs next to nothing: what is measured is the proxy in front of it.

One process listens on as many ports as asked and answers what a vLLM API server would: chat completions whole
(JSON of JSON_BYTES) or as a stream of EVENT_BYTES events, one write per event, `/health`, `/v1/models` and a
truthful `/metrics`. `python -m benchmarks.upstream N` prints its N ports as a JSON list and runs until its
standard input closes.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import Any, Protocol, cast

import httptools
import orjson
import uvloop

from benchmarks.lines import stdin_lines

MODEL = "bench-70b"
EVENT_BYTES = 190
JSON_BYTES = 700
PROMPT_TOKENS = 60
DONE = b"data: [DONE]\n\n"
_LAST = b"e\r\n" + DONE + b"\r\n0\r\n\r\n"
_WRITE_HIGH_BYTES = 64 * 1024


def _event(delta: dict[str, str], finish_reason: str | None = None) -> bytes:
    """One `chat.completion.chunk` event, filled up to EVENT_BYTES in its id."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    chunk = {
        "id": "chatcmpl-",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": MODEL,
        "choices": [choice],
    }
    filler = "0" * (EVENT_BYTES - len(orjson.dumps(chunk)) - len(b"data: \n\n"))
    return b"data: %b\n\n" % orjson.dumps({**chunk, "id": f"chatcmpl-{filler}"})


def whole_answer(content: str = "") -> bytes:
    """One `chat.completion`, filled up to JSON_BYTES in its content."""
    message = {"role": "assistant", "content": content}
    answer = {
        "id": "chatcmpl-0", "object": "chat.completion", "created": 0, "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": PROMPT_TOKENS, "total_tokens": 160, "completion_tokens": 100},
    }  # fmt: skip
    body = orjson.dumps(answer)
    return body if content else whole_answer("x" * (JSON_BYTES - len(body)))


def _chunked(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


_FIELDS = b"date: Mon, 30 Nov 2026 02:31:29 GMT\r\nserver: uvicorn\r\n"
"""What uvicorn begins every answer with."""


def _answer(content_type: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\n%bcontent-length: %d\r\ncontent-type: %b\r\n\r\n%b" % (
        _FIELDS, len(body), content_type, body,
    )  # fmt: skip


FIRST_EVENT = _event({"role": "assistant", "content": ""})
TOKEN_EVENT = _event({"content": " word"})
LAST_EVENT = _event({"content": "."}, "stop")
_FIRST, _TOKEN, _FINAL = _chunked(FIRST_EVENT), _chunked(TOKEN_EVENT), _chunked(LAST_EVENT)
_WHOLE = _answer(b"application/json", whole_answer())
_HEALTH = _answer(b"application/json", b"")
_MODELS = _answer(
    b"application/json",
    orjson.dumps({"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "vllm"}]}),
)
_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\n%bcontent-length: 0\r\n\r\n" % _FIELDS
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\n%bcontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
    % _FIELDS
)
_METRICS = (
    "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{{{labels}}} {running}\n"
    "# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{{{labels}}} 0\n"
    "# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{{{labels}}} 0.1\n"
    "# TYPE vllm:prompt_tokens counter\nvllm:prompt_tokens_total{{{labels}}} {prompt_tokens}\n"
    "# TYPE vllm:generation_tokens counter\nvllm:generation_tokens_total{{{labels}}} {generation_tokens}\n"
)


class Begun(Protocol):
    """An answer under way, as its connection sees it."""

    def step(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def stop(self) -> None: ...


class Server:
    """One pretended vLLM server: what its `/metrics` tells. Called, it makes the protocol of a connection."""

    def __init__(self) -> None:
        self.running = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0

    def __call__(self) -> Connection:
        return Connection(self)

    def answer(self, transport: asyncio.Transport, asked: Mapping[str, Any]) -> Begun | None:
        """Answer a chat request; what goes on after this call, if anything does."""
        self.prompt_tokens += PROMPT_TOKENS
        if asked.get("stream"):
            return Stream(self, transport, asked["max_tokens"], asked.get("events_per_s", 0.0))
        self.generation_tokens += 100
        transport.write(_WHOLE)
        return None

    def metrics(self) -> bytes:
        """The metrics page as a whole answer."""
        page = _METRICS.format(
            labels=f'engine="0",model_name="{MODEL}"', running=self.running,
            prompt_tokens=self.prompt_tokens, generation_tokens=self.generation_tokens,
        )  # fmt: skip
        return _answer(b"text/plain; version=0.0.4", page.encode())


class Connection(asyncio.Protocol):
    """One client of a Server: keep-alive, one request at a time."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._target = b""
        self._body = b""
        self._transport: asyncio.Transport | None = None
        self._stream: Begun | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._transport = None
        if self._stream is not None:
            self._stream.stop()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            if self._transport is not None:
                self._transport.abort()

    def pause_writing(self) -> None:
        if self._stream is not None:
            self._stream.pause()

    def resume_writing(self) -> None:
        if self._stream is not None:
            self._stream.resume()

    def on_message_begin(self) -> None:
        """httptools: a request begins."""
        self._target = self._body = b""

    def on_url(self, url: bytes) -> None:
        """httptools: a piece of the target."""
        self._target += url

    def on_body(self, body: bytes) -> None:
        """httptools: a piece of the body."""
        self._body += body

    def on_message_complete(self) -> None:
        """httptools: the request is whole; answer it."""
        transport, server = self._transport, self._server
        if transport is None:
            return
        if self._target == b"/v1/chat/completions":
            self._stream = server.answer(transport, orjson.loads(self._body))
            if self._stream is not None:
                self._stream.step()
        elif self._target == b"/metrics":
            transport.write(server.metrics())
        else:
            transport.write({b"/health": _HEALTH, b"/v1/models": _MODELS}.get(self._target, _NOT_FOUND))


class Stream:
    """One streamed answer. `events_per_s` 0: an event per turn of the event loop, as fast as the reader takes
    them; else one each 1/events_per_s seconds, by the clock and not by the last event."""

    def __init__(self, server: Server, transport: asyncio.Transport, events: int, events_per_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._server = server
        self._transport = transport
        self._events = events
        self._gap_s = 1 / events_per_s if events_per_s else 0.0
        self._started_s = self._loop.time()
        self._sent = 0
        self._is_paused = self._is_over = False
        self._is_due = False
        server.running += 1
        transport.write(_STREAM_HEAD)

    def step(self) -> None:
        """Write the next event, or the end after the last one."""
        self._is_due = False
        if self._is_over or self._is_paused:
            return
        if self._sent == self._events:
            self._transport.write(_LAST)
            self.stop()
            return
        self._transport.write(self.event())
        self._sent += 1
        self._server.generation_tokens += 1
        self._schedule()

    def event(self) -> bytes:
        """The next event, as a chunk."""
        is_last = self._sent == self._events - 1
        return _FIRST if self._sent == 0 else _FINAL if is_last else _TOKEN

    def _schedule(self) -> None:
        if self._is_due:
            return
        self._is_due = True
        if self._gap_s and self._sent < self._events:
            self._loop.call_at(self._started_s + self._sent * self._gap_s, self.step)
        else:
            self._loop.call_soon(self.step)

    def pause(self) -> None:
        """The reader is slow."""
        self._is_paused = True

    def resume(self) -> None:
        """The reader takes more."""
        self._is_paused = False
        self._schedule()

    def stop(self) -> None:
        """The stream is over, or its reader has left."""
        if not self._is_over:
            self._is_over = True
            self._server.running -= 1


async def serve(count: int) -> None:
    """Listen on `count` free ports of the loopback, tell them, and answer until standard input closes."""
    loop = asyncio.get_running_loop()
    listeners = [await loop.create_server(Server(), "127.0.0.1", 0, backlog=4096) for _ in range(count)]
    print(orjson.dumps([listener.sockets[0].getsockname()[1] for listener in listeners]).decode(), flush=True)
    async for _ in stdin_lines():
        pass


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
