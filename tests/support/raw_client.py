"""A client that sees every byte: what came, in what framing, and how the connection ended."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import Callable
from typing import Any, cast

DEADLINE_S = 8.0
_RESET = struct.pack("ii", 1, 0)

FIN, RST, CUT = "fin", "rst", "cut"
"""How a far end ended a connection: in order (over TLS with close_notify), by a reset, over TLS without a word."""


async def until(condition: Callable[[], object], what: str = "", deadline_s: float = DEADLINE_S) -> None:
    """Return once `condition()` is true. Raises TimeoutError naming `what` when it does not come true in time."""
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + deadline_s
    while not condition():
        if loop.time() > ends_s:
            raise TimeoutError(f"not within {deadline_s} s: {what or condition}")
        await asyncio.sleep(0.003)


async def connected_socket(port: int, receive_bytes: int = 0) -> socket.socket:
    """A socket connected to 127.0.0.1:port that takes about `receive_bytes` unread ones; 0: the usual many."""
    sock = socket.socket()
    sock.setblocking(False)
    if receive_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    return sock


class Tap(asyncio.Protocol):
    """One end of a connection: `received` has every byte, `ended` how the far end ended it (FIN, RST, CUT, "")."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.ended = ""
        self.is_closed = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.on_data(data)

    def on_data(self, data: bytes) -> None:
        """More bytes are here."""

    def eof_received(self) -> bool:
        self.ended = self.ended or FIN
        self.on_end()
        # Stay half open: a reset may still follow, and this end may go on. TLS transports cannot.
        return self.transport is not None and self.transport.can_write_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        if exc is not None:
            self.ended = RST
        elif self.transport is not None and not self.transport.can_write_eof():
            self.ended = self.ended or CUT
        self.on_end()

    def on_end(self) -> None:
        """The far end has ended the connection."""

    def write(self, data: bytes) -> None:
        """Send bytes (dropped when the connection is gone)."""
        if self.transport is not None and not self.is_closed:
            self.transport.write(data)

    def close(self) -> None:
        """FIN after what was written."""
        if self.transport is not None and not self.is_closed:
            self.transport.close()

    def half_close(self) -> None:
        """FIN, and go on reading."""
        if self.transport is not None and not self.is_closed:
            self.transport.write_eof()

    def reset(self) -> None:
        """RST at once."""
        if self.transport is not None and not self.is_closed:
            set_linger_zero(self.transport)
            self.transport.abort()


def set_linger_zero(transport: asyncio.Transport) -> None:
    """Make the coming close a reset."""
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


class Answer:
    """One response, filled as it comes. `is_complete` only when its framing says so."""

    def __init__(self, *, is_head: bool = False) -> None:
        self._is_head = is_head
        self._buffer = bytearray()
        self._left: int | None = None
        self.interim: list[int] = []
        self.status = 0
        self.status_line = b""
        self.fields: list[tuple[bytes, bytes]] = []
        self.body = bytearray()
        self.chunks: list[bytes] = []
        self.has_head = self.is_chunked = self.ends_at_close = self.is_complete = False

    def __repr__(self) -> str:
        return f"<{self.status} {self.fields} {bytes(self.body[:300])!r} complete={self.is_complete}>"

    def all(self, name: str) -> list[str]:
        """Values of all lines of field `name`."""
        wanted = name.lower().encode()
        return [value.decode("latin-1") for key, value in self.fields if key.lower() == wanted]

    def one(self, name: str) -> str | None:
        """The value of field `name`, None when absent. Raises AssertionError when there are two lines."""
        values = self.all(name)
        assert len(values) <= 1, f"{name} came {len(values)} times: {self.fields}"
        return values[0] if values else None

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(bytes(self.body))

    @property
    def error(self) -> dict[str, Any]:
        """The `error` member of the body; checks shape, type and length (FC-34)."""
        error = self.json["error"]
        assert self.one("content-type") == "application/json", self.fields
        assert self.one("content-length") == str(len(self.body))
        assert self.one("x-request-id")
        assert set(error) == {"message", "type", "param", "code"}, error
        assert error["message"]
        return cast(dict[str, Any], error)

    def feed(self, data: bytes) -> bytes:
        """Take bytes in; returns those behind the end of this response."""
        self._buffer += data
        while not self.has_head:
            if not self._read_head():
                return b""
        if self.is_chunked:
            self._read_chunks()
        elif self.ends_at_close:
            self.body += self._buffer
            self._buffer.clear()
        else:
            self._read_length()
        if not self.is_complete:
            return b""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest

    def end(self, how: str) -> None:
        """The connection has ended."""
        if self.ends_at_close and how == FIN:
            self.is_complete = True

    def _read_head(self) -> bool:
        head, blank, rest = bytes(self._buffer).partition(b"\r\n\r\n")
        if not blank:
            return False
        lines = head.split(b"\r\n")
        self.status_line = lines[0]
        self.status = int(lines[0].split(b" ")[1])
        self._buffer = bytearray(rest)
        if 100 <= self.status < 200 and self.status != 101:
            self.interim.append(self.status)
            return True
        self.fields = [(name, value.strip()) for name, _, value in (line.partition(b":") for line in lines[1:])]
        self.has_head = True
        assert not (self.all("transfer-encoding") and self.all("content-length")), self.fields
        self.is_chunked = self.one("transfer-encoding") == "chunked"
        length = self.one("content-length")
        if self._is_head or self.status in (204, 304):
            self._left = 0
            self.is_chunked = False
        elif length is not None:
            self._left = int(length)
        self.ends_at_close = not self.is_chunked and self._left is None
        return True

    def _read_length(self) -> None:
        assert self._left is not None
        piece = self._buffer[: self._left]
        del self._buffer[: len(piece)]
        self.body += piece
        self._left -= len(piece)
        self.is_complete = self._left == 0

    def _read_chunks(self) -> None:
        while not self.is_complete:
            line_end = self._buffer.find(b"\r\n")
            if line_end < 0:
                return
            size = int(bytes(self._buffer[:line_end]), 16)
            whole = line_end + 2 + size + 2
            if len(self._buffer) < whole:
                return
            piece = bytes(self._buffer[line_end + 2 : whole - 2])
            assert self._buffer[whole - 2 : whole] == b"\r\n"
            del self._buffer[:whole]
            self.body += piece
            if size:
                self.chunks.append(piece)
            self.is_complete = size == 0


class RawClient(Tap):
    """One connection to an edge. Close it, or let the edge's fixture do so."""

    def __init__(self) -> None:
        super().__init__()
        self._rest = b""
        self._answer: Answer | None = None

    @classmethod
    async def connect(
        cls, port: int, receive_bytes: int = 0, tls: ssl.SSLContext | None = None, name: str = "localhost"
    ) -> RawClient:
        """Connect to 127.0.0.1:port by a `connected_socket`. With `tls` the server is asked for, and must be,
        `name`."""
        sock = await connected_socket(port, receive_bytes)
        server_name = name if tls is not None else None
        _, client = await asyncio.get_running_loop().create_connection(
            cls, sock=sock, ssl=tls, server_hostname=server_name
        )
        return client

    def on_data(self, data: bytes) -> None:
        if self._answer is None:
            self._rest += data
            return
        self._rest = self._answer.feed(data)
        if self._answer.is_complete:
            self._answer = None

    def on_end(self) -> None:
        if self._answer is not None:
            self._answer.end(self.ended)

    @property
    def unread(self) -> bytes:
        """Bytes that belong to no expected answer."""
        return self._rest

    def expect(self, *, is_head: bool = False) -> Answer:
        """The next response, which fills as it comes."""
        answer = self._answer = Answer(is_head=is_head)
        rest, self._rest = self._rest, b""
        if rest:
            self.on_data(rest)
        if self.ended:
            self.on_end()
        return answer

    def send(self, request: bytes, *, is_head: bool = False) -> Answer:
        """Write a request; returns its answer, which fills as it comes."""
        self.write(request)
        return self.expect(is_head=is_head)

    async def ask(self, request: bytes, *, is_head: bool = False) -> Answer:
        """Write a request and wait for its whole answer. Raises AssertionError when the answer was cut."""
        answer = self.send(request, is_head=is_head)
        return await self.whole(answer)

    async def whole(self, answer: Answer) -> Answer:
        """Wait for the end of `answer`. Raises AssertionError when the connection ended first."""
        await until(lambda: answer.is_complete or self.ended, f"an answer after {bytes(self.received[-300:])!r}")
        assert answer.is_complete, f"cut: {answer}"
        return answer

    async def end(self) -> str:
        """Wait until the edge ends the connection; returns FIN or RST."""
        await until(lambda: self.ended, "the end of the connection")
        return self.ended


def request(
    body: bytes | str | dict[str, Any] = b"",
    *,
    method: str = "POST",
    path: str = "/v1/chat/completions",
    fields: tuple[tuple[str, str], ...] = (),
    version: str = "1.1",
    chunks: int = 0,
) -> bytes:
    """One request's bytes: a dict becomes JSON; with `chunks` the body goes in chunks of that many bytes."""
    payload = (
        json.dumps(body).encode() if isinstance(body, dict) else body.encode() if isinstance(body, str) else body
    )
    lines = [f"{method} {path} HTTP/{version}"]
    if not any(name.lower() == "host" for name, _ in fields):
        lines.append("Host: api.example")
    if payload and not any(name.lower() == "content-type" for name, _ in fields):
        lines.append("Content-Type: application/json")
    lines += [f"{name}: {value}" for name, value in fields]
    if chunks:
        lines.append("Transfer-Encoding: chunked")
        payload = chunked(payload, chunks)
    elif payload or method == "POST":
        lines.append(f"Content-Length: {len(payload)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + payload


def chunked(payload: bytes, size: int) -> bytes:
    """`payload` in the chunked coding, chunks of `size` bytes."""
    pieces = [payload[i : i + size] for i in range(0, len(payload), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def chat(model: str = "m", *, stream: bool = False, prompt: str = "hi", **more: Any) -> dict[str, Any]:
    """A chat completion body."""
    document: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": prompt}], **more}
    if stream:
        document["stream"] = True
    return document
