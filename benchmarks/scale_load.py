"""Opens many slow streams and says how late their events come.

`python -m benchmarks.scale_load` takes commands from standard input, a JSON object a line:

    {"do": "open", "ports": [...], "count": N, "addresses": [...], "key": K, "events_per_s": R, "per_s": S}
          start to open N streams, S a second, from these addresses of the loopback in turn, to these ports in turn
    {"do": "look"}     {"asked", "begun", "open", "ended", "left", "errors", "first_error", "events"}
    {"do": "measure"}  forget the delays so far
    {"do": "delays"}   {"delay": {bucket: count}, "gap": {bucket: count}}: of the events since `measure`
    {"do": "leave", "count": K}   K of the open streams' clients leave at once

`delay` is from the stamp an upstream wrote to the moment it is read here; `gap` is how much the time between two
events of a stream differs from the time between their stamps.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, cast

import httptools
import orjson
import uvloop

from benchmarks.delays import Delays
from benchmarks.lines import stdin_lines
from benchmarks.load import CLIENT_ADDRESSES, request_bytes
from benchmarks.scale_upstream import stamp_of
from benchmarks.upstream import DONE, EVENT_BYTES

_AT_ONCE = 100


class Streams:
    """All streams of one `open`."""

    def __init__(self, command: Mapping[str, Any]) -> None:
        self._command = command
        self.clients: set[Client] = set()
        self.asked = self.begun = self.ended = self.left = self.errors = self.events = 0
        self.first_error = ""
        self.delay, self.gap = Delays(), Delays()
        self._opening = asyncio.create_task(self._open())

    async def _open(self) -> None:
        loop, command = asyncio.get_running_loop(), self._command
        ports, addresses = command["ports"], command["addresses"]
        started_s = loop.time()
        waiting = asyncio.Semaphore(_AT_ONCE)
        asking = {"stream": True, "max_tokens": 1 << 30, "events_per_s": command["events_per_s"]}

        async def open_one(number: int) -> None:
            port, address = ports[number % len(ports)], addresses[number % len(addresses)]
            told = CLIENT_ADDRESSES[number % len(CLIENT_ADDRESSES)]
            request = request_bytes(port, command["key"], told, asking)
            try:
                await loop.create_connection(
                    lambda: Client(self, request), "127.0.0.1", port, local_addr=(address, 0)
                )
            except OSError as error:
                self.went_wrong(f"no connection: {error}")
            finally:
                waiting.release()

        async with asyncio.TaskGroup() as group:
            for number in range(command["count"]):
                await asyncio.sleep(max(0.0, started_s + number / command["per_s"] - loop.time()))
                await waiting.acquire()
                group.create_task(open_one(number))

    def went_wrong(self, what: str) -> None:
        """One stream failed."""
        self.errors += 1
        self.first_error = self.first_error or what

    def look(self) -> dict[str, Any]:
        """How things stand."""
        return {
            "asked": self.asked, "begun": self.begun, "open": len(self.clients), "ended": self.ended,
            "left": self.left, "errors": self.errors, "first_error": self.first_error, "events": self.events,
        }  # fmt: skip

    def leave(self, count: int) -> None:
        """Some clients leave."""
        for client in list(self.clients)[:count]:
            client.leave()


class Client(asyncio.Protocol):
    """One connection with one stream."""

    def __init__(self, streams: Streams, request: bytes) -> None:
        self._streams = streams
        self._request = request
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._last_stamp_ns = self._last_seen_ns = 0
        self._has_begun = self._is_over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._streams.clients.add(self)
        self._streams.asked += 1
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, ValueError) as error:
            self._end(f"not what was sent: {error}")

    def on_body(self, body: bytes) -> None:
        """httptools: a piece of the stream."""
        seen_ns = time.monotonic_ns()
        self._rest += body
        while len(self._rest) >= EVENT_BYTES:
            event, self._rest = self._rest[:EVENT_BYTES], self._rest[EVENT_BYTES:]
            self._streams.events += 1
            if self._has_begun:
                self._note(stamp_of(event), seen_ns)
            else:
                self._has_begun = True  # the role; it has no stamp
                self._streams.begun += 1

    def _note(self, stamp_ns: int, seen_ns: int) -> None:
        self._streams.delay.add(seen_ns - stamp_ns)
        if self._last_seen_ns:
            late_ns = (seen_ns - self._last_seen_ns) - (stamp_ns - self._last_stamp_ns)
            self._streams.gap.add(abs(late_ns))
        self._last_stamp_ns, self._last_seen_ns = stamp_ns, seen_ns

    def on_message_complete(self) -> None:
        """httptools: the stream has ended by its own framing."""
        status = self._parser.get_status_code()
        if status != 200:
            self._end(f"status {status}")
        elif self._rest != DONE:
            self._end("a stream without its [DONE]")
        else:
            self._streams.ended += 1
            self._end()

    def leave(self) -> None:
        """The client has had enough."""
        self._streams.left += 1
        self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(f"the connection ended within the stream ({exc or 'closed'})")

    def _end(self, error: str = "") -> None:
        if self._is_over:
            return
        self._is_over = True
        self._streams.clients.discard(self)
        if error:
            self._streams.went_wrong(error)
        if self._transport is not None:
            self._transport.abort()


async def obey_lines() -> None:
    """Obey commands from standard input until it closes."""
    streams: Streams | None = None
    async for line in stdin_lines():
        command = orjson.loads(line)
        told: dict[str, Any] = {}
        match command["do"]:
            case "open":
                streams = Streams(command)
            case "look" if streams is not None:
                told = streams.look()
            case "measure" if streams is not None:
                streams.delay, streams.gap = Delays(), Delays()
            case "delays" if streams is not None:
                told = {"delay": streams.delay.counts, "gap": streams.gap.counts}
            case "leave" if streams is not None:
                streams.leave(command["count"])
        print(orjson.dumps(told, option=orjson.OPT_NON_STR_KEYS).decode(), flush=True)


if __name__ == "__main__":
    uvloop.run(obey_lines())
