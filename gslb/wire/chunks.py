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


def whole_chunks_bytes(data: bytes) -> int:
    """How many bytes of payload, when `data` is one or more chunks as `chunk` writes them and nothing else; 0 for
    all other bytes, the last chunk, extensions, capital digits and leading zeros among them."""
    length = len(data)
    at = total = 0
    while at < length:
        # Digit by digit: one pass for every token, and compiled the cheapest way by far.
        start = at
        most = at + _MOST_DIGITS if at + _MOST_DIGITS < length else length
        size = 0
        while at < most:
            digit = data[at]
            if _ZERO <= digit <= _NINE:
                size = size * 16 + digit - _ZERO
            elif _A <= digit <= _F:
                size = size * 16 + digit - _A + 10
            else:
                break
            at += 1
        end = at + size + 2
        if at == start or data[start] == _ZERO or end + 2 > length:
            return 0
        if data[at] != _CR or data[at + 1] != _LF or data[end] != _CR or data[end + 1] != _LF:
            return 0
        total += size
        at = end + 2
    return total


def chunks_payload(framed: bytes) -> bytes:
    """What is in `framed`, which is chunks as `chunk` writes them and nothing else."""
    pieces = []
    at = 0
    while at < len(framed):
        start = framed.index(b"\r\n", at) + 2
        end = start + int(framed[at : start - 2], 16)
        pieces.append(framed[start:end])
        at = end + 2
    return b"".join(pieces)
