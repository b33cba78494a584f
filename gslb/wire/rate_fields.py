"""What is left of a limit per time, as response fields that OpenAI's clients know. Pure.

`x-ratelimit-{limit,remaining,reset}-{requests,tokens}` as in OpenAI's API reference, the reset as a duration such
as `6m0s`; `retry-after-ms` is what OpenAI's own clients read before `Retry-After`.
"""

from __future__ import annotations

import math
import re
from typing import Final

from gslb.wire.http1 import Field

_PREFIX: Final = b"x-ratelimit-"
_LINES = re.compile(rb"^x-ratelimit-[^\r\n]*\r\n", re.IGNORECASE | re.MULTILINE)


def rate_fields(counts: str, limit: int, remaining: int, reset_s: float) -> list[Field]:
    """The three fields of one limit; `counts` is `requests` or `tokens`."""
    name = counts.encode("ascii")
    return [
        (_PREFIX + b"limit-" + name, b"%d" % limit),
        (_PREFIX + b"remaining-" + name, b"%d" % remaining),
        (_PREFIX + b"reset-" + name, duration_text(reset_s)),
    ]


def wait_field(wait_s: float) -> Field:
    """`retry-after-ms`, rounded up."""
    return b"retry-after-ms", b"%d" % max(1, math.ceil(wait_s * 1000 - 1e-6))


def duration_text(duration_s: float) -> bytes:
    """Seconds rounded up to milliseconds: 0.12 -> `120ms`, 2.4 -> `2.4s`, 360 -> `6m0s`.

    >>> duration_text(3723.5)
    b'62m3.5s'
    """
    milliseconds = math.ceil(duration_s * 1000 - 1e-6)
    if milliseconds < 1000:
        return b"%dms" % milliseconds
    minutes, rest_ms = divmod(milliseconds, 60_000)
    seconds = b"%b" % f"{rest_ms / 1000:g}s".encode()
    return b"%dm%b" % (minutes, seconds) if minutes else seconds


def without_rate_fields(lines: bytes) -> bytes:
    """Field lines without those that tell of a limit: an endpoint's are about gslb's account there."""
    return _LINES.sub(b"", lines) if _PREFIX in lines.lower() else lines
