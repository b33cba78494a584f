"""An answer's head that was met before: engines say the same but for the date and the length.

What the parser and `finish_response_head` found of such a head still holds when the next one differs in those
two values only; recognising it is a fraction of the work of parsing it.
"""

from __future__ import annotations

import re
from typing import Final

from gslb.wire.http1 import ResponseHead, passed_lines

_DATE = re.compile(rb"[A-Za-z]{3}, [0-9]{2} [A-Za-z]{3} [0-9]{4} [0-9:]{8} GMT")
"""IMF-fixdate (RFC 9110 5.6.7): always 29 bytes, so that the length field behind it stands at one place."""
_DATE_BYTES: Final = 29
_LENGTH = re.compile(rb"\r\ncontent-length: ?([0-9]{1,18})\r\n", re.IGNORECASE)


_MAX_LESSONS: Final = 8
"""An endpoint whose heads never repeat is not looked at again for repetition."""


class KnownAnswer:
    """What one endpoint's answers look like: `learn` from a parsed one, `match` the next."""

    __slots__ = (
        "_after", "_before", "_head", "_lessons", "_lines_after", "_lines_before", "_middle",
        "_passed_lines", "_until_length",
    )  # fmt: skip

    def __init__(self, learns: bool = True) -> None:
        self._lessons = 0 if learns else _MAX_LESSONS
        self._head: ResponseHead | None = None
        # the raw head around the date and the length, and what passes of it around the date
        self._before = self._middle = self._after = b""
        self._lines_before = self._lines_after = b""
        # made of them with the date of the last answer
        self._until_length = self._passed_lines = b""

    def learn(self, data: bytes, head: ResponseHead) -> None:
        """Take in `data`, one whole answer with that (finished) head. Nothing is learnt of a head without exactly
        one date before one Content-Length as long as the body, nor of one that reports load: it is to be read."""
        self._lessons += 1
        if self._lessons > _MAX_LESSONS or not data.startswith(b"HTTP/1.1 200 ") or head.load_metrics is not None:
            return
        end = data.find(b"\r\n\r\n") + 4
        dates = list(_DATE.finditer(data, 0, end))
        length = _LENGTH.search(data, 0, end)
        if len(dates) != 1 or length is None or dates[0].end() > length.start():
            return
        date = dates[0]
        lines = passed_lines(head)
        if head.content_length != len(data) - end or lines.count(date[0]) != 1:
            return
        self._head = head
        self._before, self._middle = data[: date.start()], data[date.end() : length.start(1)]
        self._after = data[length.end(1) : end]
        self._lines_before, _, self._lines_after = lines.partition(date[0])
        self._set_date(date[0])

    def match(self, data: bytes) -> tuple[ResponseHead, bytes] | None:
        """(head, body) when `data` is one whole answer as learnt, else None."""
        known = self._head
        if known is None or not (data.startswith(self._until_length) or self._differs_in_date(data)):
            return None
        digits_at = len(self._until_length)
        end = data.find(b"\r", digits_at, digits_at + 19)
        if end < 0 or not data.startswith(self._after, end):
            return None
        digits = data[digits_at:end]
        if not digits.isdigit():
            return None
        length = int(digits)
        body_at = end + len(self._after)
        if length != len(data) - body_at:
            return None
        self._lessons = 0
        return known.again(length, self._passed_lines), data[body_at:]

    def _differs_in_date(self, data: bytes) -> bool:
        """True when `data` goes on as learnt behind another date, which is taken over."""
        date = data[len(self._before) : len(self._before) + _DATE_BYTES]
        if not data.startswith(self._before) or not _DATE.fullmatch(date):
            return False
        if not data.startswith(self._middle, len(self._before) + _DATE_BYTES):
            return False
        self._set_date(date)
        return True

    def _set_date(self, date: bytes) -> None:
        self._until_length = b"%b%b%b" % (self._before, date, self._middle)
        self._passed_lines = b"%b%b%b" % (self._lines_before, date, self._lines_after)
