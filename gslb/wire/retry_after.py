"""`Retry-After` as upstreams send it: seconds or a date (RFC 9110 10.2.3)."""

from __future__ import annotations

import math
from email.utils import mktime_tz, parsedate_tz
from typing import Final

_LONGEST_S: Final = 86_400
"""Longer waits are no answer to a client; clocks that are years apart make such dates."""
_LONGEST_TEXT: Final = 64


def parse_retry_after_s(value: bytes, wall_s: float) -> int | None:
    """Whole seconds to wait from `wall_s` (unix seconds) on: at least 0, at most a day, rounded up.

    Takes delay-seconds and the three forms of an HTTP-date; a date that is past is 0. None for anything else
    (a sign, a fraction, words): such a field is as good as absent.
    """
    text = value.strip()
    if text.isdigit():
        return min(int(text[:9]), _LONGEST_S)
    if not text[:1].isalpha() or len(text) > _LONGEST_TEXT:
        return None  # all three forms start with the day's name
    try:
        parts = parsedate_tz(text.decode("ascii"))
        due_s = None if parts is None else mktime_tz((*parts[:9], parts[9] or 0))
    except (ValueError, OverflowError, IndexError, TypeError):
        return None
    return None if due_s is None else min(max(0, math.ceil(due_s - wall_s)), _LONGEST_S)
