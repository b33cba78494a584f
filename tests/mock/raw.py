"""A client that sees every byte: for tests that care about framing and about how a connection ends."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

DEADLINE_S = 10.0

Header = tuple[str, str]


def request_bytes(
    method: str,
    path: str,
    body: bytes = b"",
    headers: tuple[Header, ...] = (),
    *,
    is_closing: bool = True,
    version: str = "1.1",
) -> bytes:
    """One request; a body gets its length and, unless given, the JSON content type."""
    lines = [f"{method} {path} HTTP/{version}", "host: mock"]
    if body:
        lines.append(f"content-length: {len(body)}")
        if not any(name == "content-type" for name, _ in headers):
            lines.append("content-type: application/json")
    if is_closing:
        lines.append("connection: close")
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@dataclass
class Response:
    """A response taken apart. `chunks` are the chunk payloads of a chunked one (None: not chunked)."""

    status_line: str
    headers: list[Header]
    body: bytes
    chunks: list[bytes] | None
    is_complete: bool

    @property
    def status(self) -> int:
        return int(self.status_line.split()[1])

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def header(self, name: str) -> str | None:
        return dict(self.headers).get(name)


def parse(raw: bytes, *, is_head: bool = False) -> Response:
    """Take one response apart; what is behind it is not looked at."""
    head, _, rest = raw.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines[1:])]
    if dict(headers).get("transfer-encoding") == "chunked":
        chunks, is_complete = dechunk(rest)
        return Response(lines[0], headers, b"".join(chunks), chunks, is_complete)
    length = 0 if is_head else int(dict(headers).get("content-length", "0"))
    return Response(lines[0], headers, rest[:length], None, len(rest) >= length)


def dechunk(raw: bytes) -> tuple[list[bytes], bool]:
    """Whole chunks at the front of `raw`, and whether the closing zero chunk came."""
    chunks: list[bytes] = []
    while True:
        size_text, found, rest = raw.partition(b"\r\n")
        try:
            size = int(size_text, 16)
        except ValueError:
            return chunks, False
        if not found or len(rest) < size + 2:
            return chunks, False
        assert size_text == b"%x" % size
        if size == 0:
            return chunks, rest == b"\r\n"
        chunks.append(rest[:size])
        raw = rest[size + 2 :]


class RawClient:
    """One connection. Reads give up with a clear error after DEADLINE_S."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int) -> RawClient:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def read_until(self, mark: bytes) -> bytes:
        async with asyncio.timeout(DEADLINE_S):
            return await self.reader.readuntil(mark)

    async def read_to_end(self) -> tuple[bytes, bool]:
        """Everything up to the end, and whether the end was a reset."""
        data = b""
        async with asyncio.timeout(DEADLINE_S):
            try:
                while piece := await self.reader.read(65536):
                    data += piece
            except ConnectionResetError:
                return data, True
        return data, False

    async def read_response(self) -> Response:
        """One response with a known length, the connection staying open."""
        raw = await self.read_until(b"\r\n\r\n")
        async with asyncio.timeout(DEADLINE_S):
            raw += await self.reader.readexactly(int(parse(raw).header("content-length") or 0))
        return parse(raw)

    async def is_silent_for(self, seconds: float) -> bool:
        """True if neither a byte nor the end comes within `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self.reader.read(1)
        except TimeoutError:
            return True
        return False

    def close(self) -> None:
        self.writer.close()


async def fetch(port: int, request: bytes) -> Response:
    """Send one request on a connection of its own and take the whole answer apart."""
    client = await RawClient.connect(port)
    try:
        await client.send(request)
        raw, _ = await client.read_to_end()
        return parse(raw, is_head=request.startswith(b"HEAD"))
    finally:
        client.close()


async def post(port: int, path: str, document: Any, *headers: Header) -> Response:
    """POST `document` as JSON."""
    return await fetch(port, request_bytes("POST", path, json.dumps(document).encode(), headers))


async def get(port: int, path: str, *headers: Header) -> Response:
    """GET `path`."""
    return await fetch(port, request_bytes("GET", path, headers=headers))
