"""Clients of the soak: streams and JSON over keep-alive connections, every byte checked, some leave.

`python -m benchmarks.soak_clients` takes commands from standard input, a JSON object a line:

    {"do": "start", "port": P, "connections": C, "key": K, "seed": S, "pause_s": P, "leave_share": L}
    {"do": "look"}    {"counts": {...}, "incidents": [...]}: counts so far, incidents since the last look
    {"do": "stop"}    the same, when every request under way has ended and every connection is closed
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from random import Random
from typing import Any, cast

import httptools
import orjson
import uvloop

from benchmarks.lines import stdin_lines
from benchmarks.load import CLIENT_ADDRESSES, request_bytes
from benchmarks.soak_faults import Incident
from benchmarks.soak_payload import Body, Checker

KINDS = ("failed", "cut", "wrong", "dropped", "hung")
"""failed: an error answer. cut: ended within a 200. wrong: bytes that were never sent, or an end that was none.
dropped: the connection closed without an answer. hung: no end within _HANGS_S."""

_HANGS_S = 90.0
_LEAVES_WITHIN_S = 1.5
_STREAM_SHARE = 0.4
_SHOWN_CHARACTERS = 200


class Connection(asyncio.Protocol):
    """One client connection: one request at a time."""

    def __init__(self) -> None:
        self.is_open = False
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._checker: Checker | None = None
        self._ended: asyncio.Future[bool] | None = None
        self.status = 0
        self.error_body = b""
        self.garbled = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def ask(self, request: bytes, checker: Checker) -> asyncio.Future[bool]:
        """Send one request; the future is True at the answer's own end, False when the connection ended first."""
        assert self._transport is not None
        self.status, self.error_body = 0, b""
        self._checker = checker
        self._ended = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._ended

    def leave(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()
        self.is_open = False

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.garbled = f"not HTTP: {error}"
            self.leave()

    def on_headers_complete(self) -> None:
        """httptools: the head is whole."""
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """httptools: a piece of the answer."""
        if self.status == 200 and self._checker is not None:
            self._checker.feed(body)
        else:
            self.error_body += body

    def on_message_complete(self) -> None:
        """httptools: the answer has ended by its own framing."""
        if not self._parser.should_keep_alive():
            self.leave()
        self._end(True)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.is_open = False
        self._end(False)

    def _end(self, is_whole: bool) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(is_whole)


class Crowd:
    """All connections and what became of their requests."""

    def __init__(self, command: Mapping[str, Any]) -> None:
        self._port = int(command["port"])
        self._key = str(command["key"])
        self._pause_s = float(command["pause_s"])
        self._leave_share = float(command["leave_share"])
        self._rng = Random(int(command["seed"]))
        self._last_seed = 0
        self._is_stopping = False
        self._incidents: list[Incident] = []
        self.counts: Counter[str] = Counter()
        self._tasks = [asyncio.create_task(self._keep_asking(n)) for n in range(int(command["connections"]))]

    def look(self) -> dict[str, Any]:
        """Counts so far, and the incidents since the last look."""
        incidents, self._incidents = self._incidents, []
        return {"counts": dict(self.counts), "incidents": [asdict(incident) for incident in incidents]}

    async def stop(self) -> None:
        """Let every request under way end. Raises what a client raised: that is a fault of this program."""
        self._is_stopping = True
        await asyncio.gather(*self._tasks)

    async def _keep_asking(self, number: int) -> None:
        address = CLIENT_ADDRESSES[number % len(CLIENT_ADDRESSES)]
        connection = Connection()
        while not self._is_stopping:
            await asyncio.sleep(self._rng.random() * self._pause_s)
            if not connection.is_open:
                try:
                    _, connection = await asyncio.get_running_loop().create_connection(
                        Connection, "127.0.0.1", self._port
                    )
                except OSError as error:
                    now_s = time.monotonic()
                    self._note("dropped", 0, now_s, f"no connection: {error}")
                    continue
                self.counts["connections"] += 1
            await self._ask(connection, address)
        connection.leave()

    async def _ask(self, connection: Connection, address: str) -> None:
        rng = self._rng
        self._last_seed += 1
        seed, is_stream = self._last_seed, rng.random() < _STREAM_SHARE
        leaves = rng.random() < self._leave_share
        extra = {"seed": seed, "stream": is_stream}
        checker = Checker(seed, is_stream)
        from_s = time.monotonic()
        self.counts["requests"] += 1
        ended = connection.ask(request_bytes(self._port, self._key, address, extra), checker)
        done, _ = await asyncio.wait([ended], timeout=rng.random() * _LEAVES_WITHIN_S if leaves else _HANGS_S)
        if not done:
            connection.leave()
            if checker.verdict(False) is Body.WRONG:
                self._note("wrong", seed, from_s, "wrong bytes before the client left")
            elif leaves:
                self.counts["left"] += 1
            else:
                self._note("hung", seed, from_s, f"no end within {_HANGS_S:g} s; status {connection.status}")
            return
        kind, what = _judge(connection, checker, ended.result())
        if kind == "good":
            self.counts["streams" if is_stream else "json"] += 1
        else:
            if kind != "failed":
                connection.leave()
            self._note(kind, seed, from_s, what)

    def _note(self, kind: str, seed: int, from_s: float, what: str) -> None:
        self.counts[kind] += 1
        self._incidents.append(Incident(kind, seed, from_s, time.monotonic(), what[:_SHOWN_CHARACTERS]))


def _judge(connection: Connection, checker: Checker, is_whole: bool) -> tuple[str, str]:
    """(good or one of KINDS, what was seen) of a request that the client waited for."""
    if connection.garbled:
        return "wrong", connection.garbled
    if connection.status == 0:
        return "dropped", "the connection closed without an answer"
    if connection.status != 200:
        return "failed", f"status {connection.status}: {connection.error_body.decode(errors='replace')}"
    match checker.verdict(is_whole):
        case Body.WHOLE:
            return "good", ""
        case Body.CUT:
            return "cut", "ended within the answer"
        case _:
            return "wrong", "bytes that were never sent" if not is_whole else "ended as if whole, and was not"


async def obey_lines() -> None:
    """Obey commands from standard input until it closes."""
    crowd: Crowd | None = None
    async for line in stdin_lines():
        command = orjson.loads(line)
        told: dict[str, Any] = {}
        if command["do"] == "start":
            crowd = Crowd(command)
        elif crowd is not None:
            if command["do"] == "stop":
                await crowd.stop()
            told = crowd.look()
        print(orjson.dumps(told).decode(), flush=True)


if __name__ == "__main__":
    uvloop.run(obey_lines())
