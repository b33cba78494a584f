"""Pretended vLLM servers with checkable answers that break off, refuse and fall ill at random.

`python -m benchmarks.soak_upstream N SEED SHARE` prints its N ports as a JSON list, breaks SHARE of all attempts
(0..1), and answers commands on standard input, a JSON object a line, until that closes:

    {"do": "faults", "seeds": [...]}   {seed: {endpoint: fault}}: the last fault each request met at each endpoint
    {"do": "windows"}                  [[endpoint, from_s, until_s], ...]: when which refused connections
    {"do": "tell"}                     {"under_way", "injected": {fault: count}, "refusals", "sick_spells"}
    {"do": "calm"}                     be well from now on, and listen again
"""

from __future__ import annotations

import asyncio
import math
import socket
import struct
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from random import Random
from typing import Any

import orjson
import uvloop

from benchmarks.lines import stdin_lines
from benchmarks.soak_faults import Fate, draw_fate
from benchmarks.soak_payload import pieces, stream_events, whole_answer
from benchmarks.upstream import Connection, Server

_LONGEST_GAP_S = 0.15
_SPELL_S = (3.0, 8.0)
_BETWEEN_SPELLS_S = (2.0, 8.0)
_MOST_SPELLS = 3
_RESET = struct.pack("ii", 1, 0)
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_JSON_HEAD = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: application/json\r\n%b\r\n\r\n"
_SICK = {
    Fate.STATUS_503: b"HTTP/1.1 503 Service Unavailable\r\nserver: uvicorn\r\ncontent-length: 0\r\n\r\n",
    Fate.STATUS_429: b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n",
}


def _chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def _stream_writes(seed: int, fate: Fate, rng: Random) -> list[bytes]:
    events = stream_events(seed)
    if fate is Fate.BEFORE_CONTENT:
        events = events[: rng.randrange(2)]
    elif fate is Fate.MID:
        events = events[: rng.randrange(2, len(events))]
        if rng.random() < 0.5:
            events[-1] = events[-1][: rng.randrange(1, len(events[-1]))]
    writes = [_STREAM_HEAD]
    for event in events:
        writes += [_chunk(piece) for piece in pieces(event, rng)]
    if fate in (Fate.GOOD, Fate.AFTER):
        writes[-1] += b"0\r\n\r\n"
    return writes


def _json_writes(seed: int, fate: Fate, rng: Random) -> list[bytes]:
    body = whole_answer(seed)
    is_chunked = rng.random() < 0.5
    head = _JSON_HEAD % (b"transfer-encoding: chunked" if is_chunked else b"content-length: %d" % len(body))
    if fate is Fate.BEFORE_CONTENT:
        return [head]
    if fate is Fate.MID:
        body = body[: rng.randrange(1, len(body))]
    writes = [_chunk(piece) if is_chunked else piece for piece in pieces(body, rng)]
    if is_chunked and fate is not Fate.MID:
        writes[-1] += b"0\r\n\r\n"
    return [head, *writes]


def script(seed: int, is_stream: bool, fate: Fate, rng: Random) -> list[bytes]:
    """What to write, one after the other, before the connection breaks or goes on."""
    if fate in _SICK:
        return [_SICK[fate]]
    writes = _stream_writes(seed, fate, rng) if is_stream else _json_writes(seed, fate, rng)
    if fate is Fate.BEFORE_HEAD:
        return []
    if fate is Fate.IN_HEAD:
        return [writes[0][: rng.randrange(1, len(writes[0]) - 1)]]
    return writes


class Answer:
    """One answer under way (an `upstream.Begun`): its writes with pauses between, then its fate."""

    def __init__(
        self, endpoint: Endpoint, transport: asyncio.Transport, seed: int, is_stream: bool, fate: Fate
    ) -> None:
        self._endpoint = endpoint
        self._transport = transport
        self._rng = endpoint.crew.rng
        self._writes = script(seed, is_stream, fate, self._rng)[::-1]
        self._is_breaking = fate is not Fate.GOOD and fate not in _SICK
        self._longest_gap_s = _LONGEST_GAP_S if is_stream else _LONGEST_GAP_S / 3
        self._timer: asyncio.TimerHandle | None = None
        self._is_paused = self.is_over = False
        endpoint.running += 1

    def step(self) -> None:
        """Write the next piece, or end."""
        self._timer = None
        if self.is_over or self._is_paused:
            return
        if self._writes:
            self._transport.write(self._writes.pop())
        if not self._writes:
            self._end()  # at once: no other request may come between the last byte and a break
            return
        gap_s = self._rng.random() ** 4 * self._longest_gap_s
        self._timer = asyncio.get_running_loop().call_later(gap_s, self.step)

    def _end(self) -> None:
        self.stop()
        if not self._is_breaking:
            return
        if self._rng.random() < 0.5:
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._transport.abort()
        else:
            self._transport.close()

    def pause(self) -> None:
        """The reader is slow."""
        self._is_paused = True

    def resume(self) -> None:
        """The reader takes more."""
        self._is_paused = False
        if self._timer is None:
            self.step()

    def stop(self) -> None:
        """The answer is over, or its reader has left."""
        if not self.is_over:
            self.is_over = True
            self._endpoint.running -= 1


class Endpoint(Server):
    """One server of the crew: listens, refuses for a while, listens again on the same port."""

    def __init__(self, crew: Crew, number: int) -> None:
        super().__init__()
        self.crew = crew
        self.sick: Fate | None = None
        self._number = number
        self._listener: asyncio.Server | None = None
        self._connections: set[EndpointConnection] = set()
        # Bound and never listening: keeps the port from other sockets while this endpoint refuses.
        self._holder = socket.socket()
        self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._holder.bind(("127.0.0.1", 0))
        self.port = int(self._holder.getsockname()[1])

    def __call__(self) -> Connection:
        return EndpointConnection(self, self._connections)

    def answer(self, transport: asyncio.Transport, asked: Mapping[str, Any]) -> Answer:
        """Deal a fate and begin."""
        self.prompt_tokens += 60
        self.generation_tokens += 100
        seed = int(asked.get("seed", 0))
        return Answer(self, transport, seed, bool(asked.get("stream")), self.crew.deal(seed, self._number))

    @property
    def is_listening(self) -> bool:
        """Whether connections are accepted."""
        return self._listener is not None

    async def listen(self) -> None:
        """Accept connections."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self, "127.0.0.1", self.port, backlog=1024, reuse_port=True)

    def refuse(self) -> None:
        """Accept none, and close those that wait for a request. Answers under way go on."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for connection in tuple(self._connections):
            connection.close_if_idle()

    def close(self) -> None:
        """Refuse, and give the port back."""
        self.refuse()
        self._holder.close()


class EndpointConnection(Connection):
    """A connection that its endpoint can find."""

    def __init__(self, endpoint: Endpoint, beside: set[EndpointConnection]) -> None:
        super().__init__(endpoint)
        self._endpoint = endpoint
        self._beside = beside

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._beside.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._beside.discard(self)

    def close_if_idle(self) -> None:
        """Close unless an answer is under way."""
        begun = self._stream
        if self._transport is not None and not (isinstance(begun, Answer) and not begun.is_over):
            self._transport.abort()


class Crew:
    """All endpoints, and the dice that rule them."""

    def __init__(self, count: int, seed: int, break_share: float) -> None:
        self.rng = Random(seed)
        self._break_share = break_share
        self.endpoints = [Endpoint(self, number) for number in range(count)]
        self._faults: dict[int, dict[int, str]] = {}
        self._windows: list[list[float]] = []
        self._injected: Counter[str] = Counter()
        self._spells: set[asyncio.Task[None]] = set()
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._is_calm = False

    def deal(self, seed: int, endpoint: int) -> Fate:
        """The fate of one attempt, remembered when it is a fault. Seed 0 is never harmed."""
        if self._is_calm or seed == 0:
            return Fate.GOOD
        fate = draw_fate(self.rng, self._break_share, self.endpoints[endpoint].sick)
        met = self._faults.setdefault(seed, {})
        if fate is Fate.GOOD:
            met.pop(endpoint, None)
        else:
            met[endpoint] = fate.value
            self._injected[fate.value] += 1
        if not met:
            del self._faults[seed]
        return fate

    async def live(self) -> None:
        """Let endpoints refuse and fall ill, a few at a time."""
        while True:
            await asyncio.sleep(self.rng.uniform(*_BETWEEN_SPELLS_S))
            well = [one for one in self.endpoints if one.is_listening and one.sick is None]
            if len(self.endpoints) - len(well) < _MOST_SPELLS and not self._is_calm:
                spell = asyncio.create_task(self._spell(self.rng.choice(well)))
                self._spells.add(spell)
                spell.add_done_callback(self._spells.discard)

    async def _spell(self, endpoint: Endpoint) -> None:
        lasts_s = self.rng.uniform(*_SPELL_S)
        if self.rng.random() < 0.5:
            self._counts["sick_spells"] += 1
            endpoint.sick = self.rng.choice((Fate.STATUS_503, Fate.STATUS_429))
            await asyncio.sleep(lasts_s)
            endpoint.sick = None
            return
        self._counts["refusals"] += 1
        window = [self.endpoints.index(endpoint), time.monotonic(), math.inf]
        self._windows.append(window)
        endpoint.refuse()
        await asyncio.sleep(lasts_s)
        await endpoint.listen()
        window[2] = time.monotonic()

    async def obey(self, command: Mapping[str, Any]) -> Any:
        """One command. Raises ValueError for what is none."""
        match command["do"]:
            case "faults":
                return {
                    str(seed): {str(endpoint): fault for endpoint, fault in self._faults.get(seed, {}).items()}
                    for seed in command["seeds"]
                }
            case "windows":
                now_s = time.monotonic()
                return [[endpoint, start, min(end, now_s)] for endpoint, start, end in self._windows]
            case "tell":
                under_way = sum(endpoint.running for endpoint in self.endpoints)
                return {"under_way": under_way, "injected": dict(self._injected), **self._counts}
            case "calm":
                self._is_calm = True
                await asyncio.gather(*self._spells)
                return {}
            case other:
                raise ValueError(f"no such command: {other!r}")


async def serve(count: int, seed: int, break_share: float) -> None:
    """Listen, tell the ports, obey until standard input closes."""
    crew = Crew(count, seed, break_share)
    for endpoint in crew.endpoints:
        await endpoint.listen()
    print(orjson.dumps([endpoint.port for endpoint in crew.endpoints]).decode(), flush=True)
    life = asyncio.create_task(crew.live())
    async for line in stdin_lines():
        print(orjson.dumps(await crew.obey(orjson.loads(line))).decode(), flush=True)
    life.cancel()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
