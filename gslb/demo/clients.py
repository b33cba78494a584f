"""The demo's own HTTP client: keep-alive connections to the edge, streams read as they come.

It shares no code with the data path that it watches: it finds content, ends and errors by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import httptools
import orjson

from gslb.demo.tally import Answer

ANSWER_LIMIT_S = 10.0
"""No answer of the demo takes a fifth of this; a client gives up then, and it counts as failed or cut."""

_PATH = "/v1/chat/completions"
_EVENT_END = b"\n\n"
_STREAM_END = b"data: [DONE]\n\n"
_MOST_UNREAD_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Question:
    """One chat request: whose, what, how long an answer, and the client's whims.

    `leaves_after` content events the client hangs up (None: it stays). `region` pins the request.
    """

    country: str
    address: str
    model: str
    prompt: str
    max_tokens: int
    leaves_after: int | None = None
    region: str | None = None

    def request(self) -> bytes:
        """The request as it goes to the edge."""
        body = orjson.dumps(
            {
                "model": self.model,
                "messages": [{"role": "user", "content": self.prompt}],
                "max_tokens": self.max_tokens,
                "stream": True,
            }
        )
        pin = f"X-Gslb-Region: {self.region}\r\n" if self.region else ""
        head = (
            f"POST {_PATH} HTTP/1.1\r\nHost: edge\r\nContent-Type: application/json\r\n"
            f"X-Forwarded-For: {self.address}\r\n{pin}Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


class AnswerReader:
    """Reads one answer's body into an `Answer`: the first content, the proper end, errors. Pure."""

    __slots__ = ("_answer", "_events", "_leaves_after", "_tail", "_unread")

    def __init__(self, answer: Answer, leaves_after: int | None) -> None:
        self._answer = answer
        self._leaves_after = leaves_after
        self._events = 0
        self._unread = b""
        self._tail = b""

    def feed(self, payload: bytes, now_s: float) -> bool:
        """Take in body bytes; True when the client has had enough and leaves."""
        answer = self._answer
        self._tail = (self._tail + payload)[-64:]
        if answer.status != 200 or answer.first_content_s is None:
            self._unread = (self._unread + payload)[:_MOST_UNREAD_BYTES]
            if answer.status == 200:
                self._look_for_content(now_s)
        if b'data: {"error"' in payload:
            answer.problem = answer.problem or "error event"
        if answer.first_content_s is not None and self._leaves_after is not None:
            self._events += payload.count(_EVENT_END)
            answer.has_left = self._events >= self._leaves_after and not self._tail.endswith(_STREAM_END)
        return answer.has_left

    def end(self) -> None:
        """The body is complete by its framing."""
        answer = self._answer
        if answer.status == 200:
            answer.is_whole = self._tail.endswith(_STREAM_END) and not answer.problem
            if not answer.is_whole:
                answer.problem = answer.problem or "no end of the stream"
            elif answer.first_content_s is None:
                answer.problem = "no content"
        else:
            answer.problem = _error_code(self._unread) or f"status {answer.status}"

    def _look_for_content(self, now_s: float) -> None:
        *events, self._unread = self._unread.split(_EVENT_END)
        if any(_has_content(event) for event in events):
            self._answer.first_content_s = now_s
            self._unread = b""


def _has_content(event: bytes) -> bool:
    if not event.startswith(b"data: {"):
        return False
    try:
        return bool(orjson.loads(event[6:])["choices"][0]["delta"].get("content"))
    except (orjson.JSONDecodeError, LookupError, AttributeError, TypeError):
        return False


def _error_code(body: bytes) -> str:
    try:
        return str(orjson.loads(body)["error"]["code"])
    except (orjson.JSONDecodeError, LookupError, TypeError):
        return ""


class _Connection(asyncio.Protocol):
    """One connection; one question at a time."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self.is_open = True
        self._clock_s = clock_s
        self._transport: asyncio.Transport | None = None
        self._answer: Answer | None = None
        self._reader: AnswerReader | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._ended: asyncio.Future[None] | None = None

    async def ask(self, question: Question, answer: Answer) -> None:
        """Send, and return when `answer` is what it will be. Cancelling it hangs up."""
        assert self._transport is not None
        self._answer = answer
        self._reader = AnswerReader(answer, question.leaves_after)
        self._parser = httptools.HttpResponseParser(self)
        self._ended = asyncio.get_running_loop().create_future()
        self._transport.write(question.request())
        try:
            await self._ended
        except asyncio.CancelledError:
            self.hang_up()
            raise

    def hang_up(self) -> None:
        """Close at once."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    # The transport's calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not checked by isinstance: other loops' transports are not asyncio's subclasses.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            self.hang_up()  # bytes that no question asked for
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._end("no HTTP")
            self.hang_up()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._end("closed" if exc is None else "reset")

    # The parser's calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._answer is not None and name.lower() == b"x-gslb-region":
            self._answer.region = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._answer is not None and self._parser is not None:
            self._answer.status = self._parser.get_status_code()
            self.is_open = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        if self._reader is not None and self._reader.feed(body, self._clock_s()):
            self._end("left")
            self.hang_up()

    def on_message_complete(self) -> None:
        if self._reader is not None:
            self._reader.end()
            self._end("")

    def _end(self, problem: str) -> None:
        answer, ended = self._answer, self._ended
        self._answer = self._reader = self._parser = self._ended = None
        if answer is None or ended is None:
            return
        answer.ended_s = self._clock_s()
        answer.problem = answer.problem or problem
        if not ended.done():
            ended.set_result(None)


class Client:
    """Asks questions over as many connections as are needed at once, the warm ones first.

    `clock_s` tells seconds since the demo began, in which answers are dated.
    """

    def __init__(self, host: str, port: int, clock_s: Callable[[], float]) -> None:
        self._host = host
        self._port = port
        self._clock_s = clock_s
        self._idle: list[_Connection] = []
        self._all: set[_Connection] = set()

    async def ask(self, question: Question) -> Answer:
        """One question's answer. Whatever goes wrong is told in the answer, never raised."""
        answer = Answer(sent_s=self._clock_s())
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                connection = await self._connection()
                await connection.ask(question, answer)
        except TimeoutError:
            answer.problem = f"no end within {ANSWER_LIMIT_S:g} s"
        except OSError as error:
            answer.problem = f"no connection: {error.strerror or error}"
        finally:
            if connection is not None:
                self._give_back(connection)
        answer.ended_s = answer.ended_s or self._clock_s()
        return answer

    def close(self) -> None:
        """Hang up everywhere."""
        for connection in self._all:
            connection.hang_up()
        self._all.clear()
        self._idle.clear()

    async def _connection(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
            self._all.discard(connection)
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: _Connection(self._clock_s), self._host, self._port)
        self._all.add(connection)
        return connection

    def _give_back(self, connection: _Connection) -> None:
        if connection.is_open:
            self._idle.append(connection)
        else:
            self._all.discard(connection)
