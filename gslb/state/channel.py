"""Messages between the supervisor and a worker: one JSON object a line, in order, over a socket pair."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, cast

import orjson

Message = dict[str, Any]
"""One message; `say` names what it is."""

_MOST_UNREAD_BYTES = 64 * 1024 * 1024


def line_of(what: str, **members: Any) -> bytes:
    """A message as it is sent."""
    members["say"] = what
    return orjson.dumps(members, option=orjson.OPT_APPEND_NEWLINE)


class Channel(asyncio.Protocol):
    """One end. `on_message` gets every message, `on_lost` the end of the other side, once."""

    def __init__(self, on_message: Callable[[Message], None], on_lost: Callable[[], None]) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._pieces: list[bytes] = []
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(
        cls, sock: socket.socket, on_message: Callable[[Message], None], on_lost: Callable[[], None]
    ) -> Channel:
        """Talk over `sock`, which belongs to the channel from now on."""
        loop = asyncio.get_running_loop()
        _, channel = await loop.create_connection(lambda: cls(on_message, on_lost), sock=sock)
        return channel

    def say(self, what: str, **members: Any) -> bool:
        """Send one message. False when the other side is gone or has read nothing for too long to be well."""
        return self.send(line_of(what, **members))

    def send(self, line: bytes) -> bool:
        """The same for a message made before by `line_of`, for several others."""
        transport = self._transport
        if transport is None or transport.get_write_buffer_size() > _MOST_UNREAD_BYTES:
            return False
        transport.write(line)
        return True

    def close(self) -> None:
        """End this side once what was said is out."""
        if self._transport is not None:
            self._transport.close()

    # --- asyncio.Protocol ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join((*self._pieces, lines[0]))
            self._pieces.clear()
        if rest:
            self._pieces.append(rest)
        for line in lines:
            self._on_message(orjson.loads(line))

    def connection_lost(self, _exc: Exception | None) -> None:
        self._transport = None
        self._on_lost()
