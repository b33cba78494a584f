"""The load: asks a proxy over keep-alive connections and checks every answer to the last byte.

`python -m benchmarks.load` takes commands from standard input, a JSON object a line, and answers each with one:

    {"do": "json",    "port": P, "count": N, "connections": C}                  N whole answers, closed loop
    {"do": "streams", "port": P, "count": N, "connections": C, "events": E}     N streams as fast as they come
    {"do": "open",    "port": P, "count": N, "events": E, "events_per_s": R}    N paced streams; answers when all
                                                                                have begun, each has a connection
    {"do": "look"}                                                              events of the paced streams so far
    {"do": "finish"}                                                            wait for the paced streams' ends

An answer is `{"good", "events", "bytes", "reads", "errors", "first_error"}`; an error is a status other than
200, a wrong number of bytes, a stream without its `[DONE]`, or a connection that ends too soon. `limit_s`
(default 120) bounds a command. `key` is the API key to send.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import httptools
import orjson
import uvloop

from benchmarks.lines import stdin_lines
from benchmarks.upstream import DONE, EVENT_BYTES, JSON_BYTES, MODEL

CLIENT_ADDRESSES = (
    "8.8.8.8", "81.2.69.160", "193.0.6.139", "200.160.2.3", "210.130.1.1", "165.21.83.88", "1.1.1.1",
    "202.54.1.1", "212.27.48.10", "196.25.1.1",
)  # fmt: skip
"""Addresses of name servers and registries in US, GB, NL, BR, JP, SG, AU, IN, FR and ZA: one per connection, in
turn, told in X-Forwarded-For. Nothing is ever sent to them."""

_PROMPT = "Explain in a few plain words how an airship finds its way home in fog. " * 3
_OPEN_AT_ONCE = 50
_OPEN_PAUSE_S = 0.02


def request_bytes(port: int, key: str, address: str, extra: Mapping[str, Any]) -> bytes:
    """One chat request as a client library would send it, `extra` merged into its body."""
    body = orjson.dumps(
        {
            "model": MODEL,
            "messages": [
                {"role": "system", "content": "You are a helpful assistant."},
                {"role": "user", "content": _PROMPT},
            ],
            "temperature": 0.7,
            **extra,
        }
    )
    return (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAccept: application/json\r\n"
        f"Content-Type: application/json\r\nUser-Agent: gslb-bench\r\nAuthorization: Bearer {key}\r\n"
        f"X-Forwarded-For: {address}\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


class Work:
    """One command's share of requests: hands them out, collects what came of them."""

    def __init__(self, command: Mapping[str, Any]) -> None:
        self.port = int(command["port"])
        self.count = int(command["count"])
        self.connections = int(command.get("connections", self.count))
        self.is_stream = command["do"] != "json"
        self.key = str(command.get("key", "none"))
        events = int(command.get("events", 0))
        self.answer_bytes = events * EVENT_BYTES + len(DONE) if self.is_stream else JSON_BYTES
        self.asks: dict[str, Any] = {"max_tokens": events} if self.is_stream else {}
        if self.is_stream:
            self.asks |= {"stream": True, "events_per_s": float(command.get("events_per_s", 0.0))}
        self._left = self.count
        self.begun = 0
        self.good = 0
        self.errors = 0
        self.first_error = ""
        self.bytes = self.reads = 0
        self.all_begun = asyncio.Event()
        self.all_done = asyncio.Event()

    @property
    def has_left(self) -> bool:
        """Whether requests are still to be given out."""
        return self._left > 0

    def take(self) -> bool:
        """Claim one request; False when all are given out."""
        self._left -= 1
        return self._left >= 0

    def has_begun(self) -> None:
        """The first byte of an answer has come."""
        self.begun += 1
        if self.begun + self.errors >= self.count:
            self.all_begun.set()

    def is_good(self) -> None:
        """One answer was right."""
        self.good += 1
        self._check_done()

    def went_wrong(self, what: str) -> None:
        """One answer was wrong or missing."""
        self.errors += 1
        self.first_error = self.first_error or what
        if self.begun + self.errors >= self.count:
            self.all_begun.set()
        self._check_done()

    def _check_done(self) -> None:
        if self.good + self.errors >= self.count:
            self.all_done.set()

    def report(self) -> dict[str, Any]:
        """What to answer now."""
        return {
            "good": self.good, "events": self.bytes // EVENT_BYTES if self.is_stream else 0, "bytes": self.bytes,
            "reads": self.reads, "errors": self.errors, "first_error": self.first_error,
        }  # fmt: skip


class Client(asyncio.Protocol):
    """One connection of a Work: asks, checks the answer, asks again while there is work."""

    def __init__(self, work: Work, number: int) -> None:
        self._work = work
        address = CLIENT_ADDRESSES[number % len(CLIENT_ADDRESSES)]
        self._request = request_bytes(work.port, work.key, address, work.asks)
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._is_waiting = False
        self._bytes = 0
        self._tail = b""
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._ask()

    def _ask(self) -> None:
        assert self._transport is not None
        if not self._work.take():
            self._transport.close()
            return
        self._bytes = 0
        self._tail = b""
        self._is_waiting = True
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._work.reads += 1
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._wrong(f"not HTTP: {error}")

    def on_body(self, body: bytes) -> None:
        """httptools: a piece of an answer."""
        if not self._bytes:
            self._work.has_begun()
        self._bytes += len(body)
        self._work.bytes += len(body)
        self._tail = body[-len(DONE) :] if len(body) >= len(DONE) else (self._tail + body)[-len(DONE) :]

    def on_message_complete(self) -> None:
        """httptools: the answer is whole; check it and go on."""
        if not self._is_waiting:
            return
        status = self._parser.get_status_code()
        work = self._work
        if status != 200:
            self._wrong(f"status {status}")
        elif self._bytes != work.answer_bytes:
            self._wrong(f"{self._bytes} bytes instead of {work.answer_bytes}")
        elif work.is_stream and self._tail != DONE:
            self._wrong("a stream without its [DONE]")
        else:
            self._is_waiting = False
            work.is_good()
            if self._parser.should_keep_alive():
                self._ask()
            elif self._transport is not None:
                self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wrong(f"the connection ended within an answer ({exc or 'closed'})")
        if not self.lost.done():
            self.lost.set_result(None)

    def _wrong(self, what: str) -> None:
        if not self._is_waiting:
            return
        self._is_waiting = False
        self._work.went_wrong(what)
        if self._transport is not None:
            self._transport.abort()


async def _keep_asking(work: Work, number: int) -> None:
    """Hold one connection after another until the work is given out (a proxy may close one any time)."""
    loop = asyncio.get_running_loop()
    while work.has_left:
        try:
            _, client = await loop.create_connection(lambda: Client(work, number), "127.0.0.1", work.port)
        except OSError as error:
            if work.take():
                work.went_wrong(f"no connection: {error}")
            continue
        await client.lost


class Load:
    """Obeys commands. Paced streams live on between `open` and `finish`."""

    def __init__(self) -> None:
        self._paced: Work | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def obey(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Do one command. Raises TimeoutError past its `limit_s`, ValueError for what is no command now."""
        async with asyncio.timeout(float(command.get("limit_s", 120.0))):
            return await self._obey(command)

    async def _obey(self, command: Mapping[str, Any]) -> dict[str, Any]:
        match command["do"]:
            case "json" | "streams":
                work = Work(command)
                self._start(work, range(work.connections))
                await work.all_done.wait()
                return work.report()
            case "open":
                work = self._paced = Work(command)
                for first in range(0, work.count, _OPEN_AT_ONCE):
                    self._start(work, range(first, min(first + _OPEN_AT_ONCE, work.count)))
                    await asyncio.sleep(_OPEN_PAUSE_S)
                await work.all_begun.wait()
                return work.report()
            case "look" | "finish" if self._paced is not None:
                if command["do"] == "finish":
                    await self._paced.all_done.wait()
                return self._paced.report()
            case other:
                raise ValueError(f"no such command now: {other!r}")

    def _start(self, work: Work, numbers: range) -> None:
        for number in numbers:
            task = asyncio.create_task(_keep_asking(work, number))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


async def obey_lines() -> None:
    """Obey commands from standard input until it closes."""
    load = Load()
    async for line in stdin_lines():
        try:
            told = await load.obey(orjson.loads(line))
        except (TimeoutError, ValueError, KeyError) as error:
            told = {"errors": 1, "first_error": f"{line.decode().strip()}: {error or 'took too long'}"}
        print(orjson.dumps(told).decode(), flush=True)


if __name__ == "__main__":
    uvloop.run(obey_lines())
