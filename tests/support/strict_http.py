"""A second opinion on HTTP/1.1 framing: a slow, strict reading of RFC 9112 that shares no code with gslb.

`requests_in` and `answer_in` read bytes that are all there; what they say is what must have crossed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST_LINE = re.compile(rb"([A-Z-]+) +([^\x00-\x20\x7f]+) +(?:HTTP|RTSP|ICE)/([0-9]\.[0-9])")
_STATUS_LINE = re.compile(rb"(?:HTTP|RTSP|ICE)/([0-9]\.[0-9]) ([0-9]{3})(?: ([^\r\n]*))?")
_VALUE = rb"(?:[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?"
_FIELD = re.compile(rb"(%b):[ \t]*(%b)[ \t]*" % (_TOKEN, _VALUE))
_CHUNK = re.compile(rb"([0-9A-Fa-f]+)(;[^\r\n]*)?\r\n")

Fields = list[tuple[bytes, bytes]]


class _NoMessage(Exception):
    """`payload` is what there is of the body."""

    def __init__(self, payload: bytes = b"") -> None:
        super().__init__()
        self.payload = payload


class Malformed(_NoMessage):
    """The bytes are no message."""


class Unfinished(_NoMessage):
    """The bytes end before the message does."""


@dataclass
class Message:
    """One request (`line` = method, target, version) or answer (version, status, reason)."""

    line: tuple[bytes, ...]
    fields: Fields
    body: bytes
    ends_at_close: bool = False

    def all(self, name: bytes) -> list[bytes]:
        """Values of all lines of field `name`."""
        return [value for key, value in self.fields if key.lower() == name]


def requests_in(raw: bytes) -> tuple[list[Message], bool]:
    """(whole requests at the start of `raw`, whether nothing but blank lines follows them)."""
    found: list[Message] = []
    position = 0
    try:
        while True:
            while raw[position : position + 1] in (b"\r", b"\n"):
                position += 1
            if position == len(raw):
                return found, True
            line, fields, position = _head(raw, position, _REQUEST_LINE)
            body, position = _request_body(raw, position, fields, line[2])
            found.append(Message(line, fields, body))
    except (Malformed, Unfinished):
        return found, False


def answer_in(raw: bytes, *, is_closed: bool, is_head: bool = False) -> tuple[Message, bytes]:
    """(the final answer at the start of `raw`, the bytes behind it); interim answers are passed over.

    Raises Malformed, or Unfinished when it does not end in `raw`.
    """
    position = 0
    while True:
        while raw[position : position + 1] in (b"\r", b"\n"):
            position += 1
        line, fields, position = _head(raw, position, _STATUS_LINE)
        status = int(line[1])
        if status < 100 or line[0] not in (b"1.0", b"1.1") or status == 101:
            raise Malformed
        if status >= 200:
            break
    length, is_chunked = _framing(fields, line[0])
    if is_head or status in (204, 304):
        return Message(line, fields, b""), raw[position:]
    if is_chunked:
        body, position = _chunks(raw, position)
    elif length is not None:
        body = raw[position : position + length]
        if len(body) < length:
            raise Unfinished(body)
        position += length
    else:
        if not is_closed:
            raise Unfinished(raw[position:])
        return Message(line, fields, raw[position:], True), b""
    return Message(line, fields, body), raw[position:]


def _head(raw: bytes, position: int, pattern: re.Pattern[bytes]) -> tuple[tuple[bytes, ...], Fields, int]:
    end = raw.find(b"\r\n\r\n", position)
    if end < 0:
        raise Unfinished
    lines = raw[position:end].split(b"\r\n")
    first = pattern.fullmatch(lines[0])
    if first is None:
        raise Malformed
    fields = []
    for line in lines[1:]:
        field = _FIELD.fullmatch(line)
        if field is None:
            raise Malformed
        fields.append((field[1], field[2]))
    return first.groups(b""), fields, end + 4


def _framing(fields: Fields, version: bytes) -> tuple[int | None, bool]:
    lengths = [value for name, value in fields if name.lower() == b"content-length"]
    codings = [value for name, value in fields if name.lower() == b"transfer-encoding"]
    if codings:
        if lengths or version != b"1.1" or len(codings) > 1 or codings[0].lower() != b"chunked":
            raise Malformed
        return None, True
    if not lengths:
        return None, False
    if len(lengths) > 1 or re.fullmatch(rb"[0-9]+", lengths[0]) is None:
        raise Malformed
    return int(lengths[0]), False


def _request_body(raw: bytes, position: int, fields: Fields, version: bytes) -> tuple[bytes, int]:
    length, is_chunked = _framing(fields, version)
    if is_chunked:
        return _chunks(raw, position)
    end = position + (length or 0)
    if end > len(raw):
        raise Unfinished
    return raw[position:end], end


def _chunks(raw: bytes, position: int) -> tuple[bytes, int]:
    payload = b""
    while True:
        line = _CHUNK.match(raw, position)
        if line is None:
            raise (Malformed if b"\r\n" in raw[position:] else Unfinished)(payload)
        size = int(line[1], 16)
        position = line.end()
        if size == 0:
            break
        payload += raw[position : position + size]
        position += size
        end = raw[position : position + 2]
        if len(end) < 2:
            raise Unfinished(payload)
        if end != b"\r\n":
            raise Malformed(payload)
        position += 2
    while not raw.startswith(b"\r\n", position):
        end_of_line = raw.find(b"\r\n", position)
        if end_of_line < 0:
            raise Unfinished(payload)
        if _FIELD.fullmatch(raw, position, end_of_line) is None:
            raise Malformed(payload)
        position = end_of_line + 2
    return payload, position + 2
