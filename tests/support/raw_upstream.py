"""An upstream that plays scripts byte by byte and records every byte and connection it sees.

A script is a sequence of steps, one script per request: `bytes` are sent, a number is waited for (seconds), an
`asyncio.Event` is waited for, FIN and RST end the connection, HANG waits until the far end leaves, ECHO sends back
what comes behind a WebSocket's handshake until then.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.support.raw_client import FIN, RST, Tap, until

HANG, ECHO = "hang", "echo"
Step = bytes | float | int | str | asyncio.Event
Script = Sequence[Step]

SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


def chunk(payload: bytes) -> bytes:
    """One chunk of the chunked coding."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def event(text: str) -> bytes:
    """One chat chunk with content, as an SSE event."""
    document = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}
    return b"data: " + json.dumps(document).encode() + b"\n\n"


ROLE_EVENT = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
DONE = b"data: [DONE]\n\n"


def stream(*payloads: bytes) -> list[Step]:
    """A whole chunked event stream, one chunk per payload."""
    return [SSE_HEAD + b"".join(map(chunk, payloads)) + LAST]


def answer(status: int, body: bytes, *fields: tuple[str, str], reason: str = "Status") -> bytes:
    """A whole answer with Content-Length; JSON unless `fields` say otherwise."""
    lines = [f"HTTP/1.1 {status} {reason}"]
    if not any(name.lower() == "content-type" for name, _ in fields):
        lines.append("Content-Type: application/json")
    lines += [f"{name}: {value}" for name, value in fields]
    lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


GOOD = answer(200, b'{"object":"chat.completion","choices":[]}', reason="OK")


@dataclass
class Received:
    """One request as it came, and on which connection."""

    raw: bytes
    head: bytes
    body: bytes
    link: Link
    fields: list[tuple[bytes, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        lines = self.head.split(b"\r\n")
        self.line = lines[0]
        self.fields = [(name, value.strip()) for name, _, value in (line.partition(b":") for line in lines[1:])]

    def all(self, name: str) -> list[str]:
        """Values of all lines of field `name`."""
        return [value.decode("latin-1") for key, value in self.fields if key.lower() == name.lower().encode()]

    def one(self, name: str) -> str | None:
        """The value of field `name`, None when absent. Raises AssertionError when there are two lines."""
        values = self.all(name)
        assert len(values) <= 1, f"{name} came {len(values)} times"
        return values[0] if values else None


class Link(Tap):
    """One accepted connection."""

    def __init__(self, upstream: RawUpstream) -> None:
        super().__init__()
        self._upstream = upstream
        self._buffer = bytearray()
        self._todo: deque[Script] = deque()
        self._player: asyncio.Task[None] | None = None
        self.requests = 0
        self.tunnelled: bytearray | None = None
        """What came behind a WebSocket's handshake."""
        self._is_echoing = False
        self.ended_at_s = 0.0
        self.sent_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._upstream.links.append(self)
        if self._upstream.is_deaf and self.transport is not None:
            asyncio.get_running_loop().call_soon(self.transport.pause_reading)  # uvloop starts to read after this
        if self._upstream.on_connect is not None:
            self._play(self._upstream.on_connect)

    def on_data(self, data: bytes) -> None:
        if self.tunnelled is not None:
            self.tunnelled += data
            if self._is_echoing:
                self.write(data)
            return
        self._buffer += data
        while (request := self._take_request()) is not None:
            self.requests += 1
            if request.line.startswith(b"GET /v1/realtime"):
                self.tunnelled, self._buffer = self._buffer, bytearray()
                self._upstream.requests.append(request)
                self._play(self._upstream.next_script())
            elif request.line.startswith(b"GET "):
                self._play([self._upstream.page(request.line.split(b" ")[1])])
            else:
                self._upstream.requests.append(request)
                self._play(self._upstream.next_script())

    def _take_request(self) -> Received | None:
        head, blank, rest = bytes(self._buffer).partition(b"\r\n\r\n")
        if not blank:
            return None
        received = Received(b"", head, b"", self)
        length = int(received.one("content-length") or 0)
        if len(rest) < length and not self._upstream.answers_early:
            return None
        received.body = rest[:length]
        received.raw = head + blank + received.body
        self._buffer = bytearray(rest[length:])
        return received

    def on_end(self) -> None:
        self.ended_at_s = self.ended_at_s or asyncio.get_running_loop().time()
        if self.ended == FIN and not self._player and not self.is_closed:
            self.close()

    def _play(self, script: Script) -> None:
        self._todo.append(script)
        if self._player is None:
            self._player = asyncio.create_task(self._play_all())

    async def _play_all(self) -> None:
        while self._todo:
            for step in self._todo.popleft():
                await self._do(step)
                if self.is_closed:
                    return
        self._player = None
        if self.ended:
            self.close()

    async def _do(self, step: Step) -> None:
        match step:
            case bytes():
                self.write(step)
                self.sent_bytes += len(step)
                await self._drained()
            case asyncio.Event():
                await step.wait()
            case "fin":
                self.close()
                await until(lambda: self.is_closed)
            case "rst":
                self.reset()
                await until(lambda: self.is_closed)
            case "hang" | "echo":
                if step == ECHO:
                    self._is_echoing = True
                    self.write(bytes(self.tunnelled or b""))
                await until(lambda: self.is_closed or self.ended, "the far end to leave", 60)
            case float() | int():
                await asyncio.sleep(step)
            case _:
                raise AssertionError(f"no step: {step!r}")

    async def _drained(self) -> None:
        """Wait while the far end does not read."""
        transport = self.transport
        assert transport is not None
        await until(lambda: self.is_closed or transport.get_write_buffer_size() < 65536, "a reader", 60)

    def stop(self) -> None:
        """End whatever is going on."""
        if self._player is not None:
            self._player.cancel()
        if self.transport is not None:
            self.transport.abort()


class RawUpstream:
    """A listening upstream. `requests` are those of the data path; probes are answered on the side."""

    def __init__(self, *scripts: Script, default: Script = (GOOD,), models: Sequence[str] = ("m",)) -> None:
        self.scripts: deque[Script] = deque(scripts)
        self.default = default
        self.models = models
        self.on_connect: Script | None = None
        self.tls: ssl.SSLContext | None = None
        self.answers_early = False
        self.is_deaf = False
        self.health_status = 200
        self.metrics: str | None = None
        self.probes = 0
        self.links: list[Link] = []
        self.requests: list[Received] = []
        self.port = 0
        self._server: asyncio.Server | None = None

    async def start(self, host: str = "127.0.0.1") -> None:
        """Listen on the port used before, or a free one, over TLS if there is a `tls` context."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Link(self), host, self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        """Refuse from now on, drop every connection."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for link in self.links:
            link.stop()

    @property
    def url(self) -> str:
        """`http://127.0.0.1:port`, or https."""
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def asked(self) -> list[Link]:
        """The connections that carried requests of the data path, in order."""
        return list(dict.fromkeys(request.link for request in self.requests))

    def next_script(self) -> Script:
        """What to play for the request that is there."""
        return self.scripts.popleft() if self.scripts else self.default

    def page(self, path: bytes) -> bytes:
        """The answer to an observer's GET."""
        if path.endswith(b"/health"):
            self.probes += 1
            return answer(self.health_status, b"")
        if path.endswith(b"/v1/models"):
            entries = [{"id": model, "object": "model", "created": 1, "owned_by": "vllm"} for model in self.models]
            return answer(200, json.dumps({"object": "list", "data": entries}).encode())
        if path.endswith(b"/metrics") and self.metrics is not None:
            return answer(200, self.metrics.encode(), ("Content-Type", "text/plain"))
        return answer(404, b"{}")


__all__ = ["FIN", "HANG", "RST", "RawUpstream", "Received", "Script", "answer", "chunk", "event", "stream"]
