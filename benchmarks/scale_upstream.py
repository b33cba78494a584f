"""Pretended vLLM servers whose events say when they were sent.

`python -m benchmarks.scale_upstream N` prints its N ports as a JSON list. Each stream runs until its reader
leaves or `{"do": "finish"}` comes, which ends all of them; `{"do": "tell"}` is answered with `{"under_way"}`,
finish likewise.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from typing import Any

import orjson
import uvloop

from benchmarks.lines import stdin_lines
from benchmarks.upstream import EVENT_BYTES, TOKEN_EVENT, Begun, Server, Stream

_ENDLESS = sys.maxsize
_STAMP_DIGITS = 20
_WORD = b"word"
_BEFORE_STAMP, _AFTER_STAMP = TOKEN_EVENT.split(_WORD)
_FILLER = b"chatcmpl-" + b"0" * (_STAMP_DIGITS - len(_WORD))
assert _FILLER in _BEFORE_STAMP
_HEAD = b"%x\r\n" % EVENT_BYTES + _BEFORE_STAMP.replace(_FILLER, b"chatcmpl-", 1)
_TAIL = _AFTER_STAMP + b"\r\n"


def stamped_event(at_ns: int) -> bytes:
    """A content event of EVENT_BYTES, as a chunk, with this time for its word."""
    return b"%b%020d%b" % (_HEAD, at_ns, _TAIL)


def stamp_of(event: bytes) -> int:
    """The time in an event of `stamped_event`, its chunk framing taken off. Raises ValueError for any other."""
    end = len(event) - len(_AFTER_STAMP)
    return int(event[end - _STAMP_DIGITS : end])


class StampedStream(Stream):
    """An endless stream: a role first, then a stamped event each gap."""

    def event(self) -> bytes:
        """The next event, as a chunk."""
        return super().event() if self._sent == 0 else stamped_event(time.monotonic_ns())

    def finish(self) -> None:
        """End the stream as a model that has said everything."""
        self._events = self._sent
        self.step()


class StampedServer(Server):
    """One server; `streams` holds those under way, and over ones until it is looked through."""

    def __init__(self) -> None:
        super().__init__()
        self.streams: list[StampedStream] = []

    def answer(self, transport: asyncio.Transport, asked: Mapping[str, Any]) -> Begun | None:
        """Begin a stream; whole answers are the base's."""
        if not asked.get("stream"):
            return super().answer(transport, asked)
        stream = StampedStream(self, transport, _ENDLESS, asked["events_per_s"])
        self.streams.append(stream)
        return stream


async def serve(count: int) -> None:
    """Listen, tell the ports, obey until standard input closes."""
    loop = asyncio.get_running_loop()
    servers = [StampedServer() for _ in range(count)]
    listeners = [await loop.create_server(server, "127.0.0.1", 0, backlog=4096) for server in servers]
    print(orjson.dumps([listener.sockets[0].getsockname()[1] for listener in listeners]).decode(), flush=True)
    async for line in stdin_lines():
        if orjson.loads(line)["do"] == "finish":
            for server in servers:
                streams, server.streams = server.streams, []
                for stream in streams:
                    stream.finish()
        print(orjson.dumps({"under_way": sum(server.running for server in servers)}).decode(), flush=True)


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
