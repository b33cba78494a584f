"""The chunked coding (RFC 9112 7.1) as gslb writes it, and chunks that others wrote the same way."""

from __future__ import annotations

from typing import Final

LAST_CHUNK: Final = b"0\r\n\r\n"
_CR: Final = 0x0D
_LF: Final = 0x0A
_ZERO: Final = 0x30
_NINE: Final = 0x39
_A: Final = 0x61
_F: Final = 0x66
_MOST_DIGITS: Final = 5


def chunk(payload: bytes) -> bytes:
    """One chunk of the chunked coding (RFC 9112 7.1)."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def whole_chunk_bytes(data: bytes) -> int:
    """How many bytes of payload, when `data` is one chunk as `chunk` writes it and nothing else; 0 for all other
    bytes, the last chunk, extensions, capital digits and leading zeros among them."""
    length = len(data)
    if length < 6 or data[0] == _ZERO or data[length - 2] != _CR or data[length - 1] != _LF:
        return 0
    # Digit by digit: one pass for every token, and compiled the cheapest way by far.
    size = end = 0
    while end < _MOST_DIGITS:
        digit = data[end]
        if _ZERO <= digit <= _NINE:
            size = size * 16 + digit - _ZERO
        elif _A <= digit <= _F:
            size = size * 16 + digit - _A + 10
        else:
            break
        end += 1
    if not end or size != length - end - 4 or data[end] != _CR or data[end + 1] != _LF:
        return 0
    return size


def chunk_payload(framed: bytes) -> bytes:
    """What `chunk` was given to write `framed`."""
    at = framed.find(b"\r\n") + 2
    return framed[at:-2]
