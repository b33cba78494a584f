"""The mock's `/v1/realtime`: a WebSocket that says back what it is told (RFC 6455 section 5), so that a path to it
can be tried. A vLLM speaks JSON events there; this says nothing of their meaning.
"""

from __future__ import annotations

from gslb.mock.refusals import Headers
from gslb.wire.websocket import accept_of

PATH = "/v1/realtime"

_CLOSE, _PONG = 0x8, 0xA
_FIN = 0x80
_MOST_BYTES = 16 * 1024 * 1024


def switch_headers(key: str) -> Headers:
    """What a 101 says behind its status line, for a client's Sec-WebSocket-Key."""
    accept = accept_of(key.encode("latin-1"))
    return ((b"upgrade", b"websocket"), (b"connection", b"Upgrade"), (b"sec-websocket-accept", accept))


class Echo:
    """Frames of a client in, frames for it out. `is_closed` once the last one is out."""

    def __init__(self) -> None:
        self._waiting = bytearray()
        self.is_closed = False

    def feed(self, data: bytes) -> bytes:
        """The answers to what is whole by now. A frame against the rules is answered by a close."""
        self._waiting += data
        answers = b""
        while not self.is_closed and (answer := self._answer_one()) is not None:
            answers += answer
        return answers

    def _answer_one(self) -> bytes | None:
        waiting = self._waiting
        if len(waiting) < 2:
            return None
        start, length = 2, waiting[1] & 0x7F
        if length >= 126:
            width = 2 if length == 126 else 8
            start += width
            if len(waiting) < start:
                return None
            length = int.from_bytes(waiting[2:start])
        if not waiting[1] & 0x80:
            return self._close(1002)  # a client masks every frame (5.1)
        if length > _MOST_BYTES:
            return self._close(1009)
        end = start + 4 + length
        if len(waiting) < end:
            return None
        payload = _masked(bytes(waiting[start + 4 : end]), bytes(waiting[start : start + 4]))
        first = waiting[0]
        del waiting[:end]
        match first & 0x0F:
            case 0x8:
                self.is_closed = True
                return _frame(first, payload[:2])
            case 0x9:
                return _frame(_FIN | _PONG, payload)
            case 0xA:
                return b""
            case _:
                return _frame(first, payload)

    def _close(self, code: int) -> bytes:
        self.is_closed = True
        return _frame(_FIN | _CLOSE, code.to_bytes(2))


def _masked(payload: bytes, mask: bytes) -> bytes:
    """5.3, as one exclusive or of two long numbers."""
    size = len(payload)
    key = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload) ^ int.from_bytes(key)).to_bytes(size)


def _frame(first: int, payload: bytes) -> bytes:
    size = len(payload)
    if size < 126:
        return bytes((first, size)) + payload
    if size < 0x10000:
        return bytes((first, 126)) + size.to_bytes(2) + payload
    return bytes((first, 127)) + size.to_bytes(8) + payload
