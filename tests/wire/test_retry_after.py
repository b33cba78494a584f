"""Retry-After as upstreams write it (FC-37, the reading side)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gslb.wire.retry_after import parse_retry_after_s

NOW_S = 1_795_996_800.0
"""Mon, 30 Nov 2026 00:00:00 GMT."""


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (b"5", 5), (b"0", 0), (b"007", 7), (b" 5 ", 5), (b"999999999999", 86_400),
        (b"-3", None), (b"+3", None), (b"1e9", None), (b"abc", None), (b"0.5", None), (b"", None), (b"\xb2", None),
        (b"5, 6", None), (b"Mon", None), (b"Monday of next week", None), (b"M" * 70, None), (b"M\xe9rz", None),
        (b"Mon, 30 Nov 2026 00:00:05 GMT", 5),
        (b"Monday, 30-Nov-26 00:00:05 GMT", 5),
        (b"Mon Nov 30 00:00:05 2026", 5),
        (b"Sun, 29 Nov 2026 23:59:55 GMT", 0),
        (b"Thu, 31 Dec 2099 00:00:00 GMT", 86_400),
        (b"Mon, 99 Foo 2026 00:00:05 GMT", None),
    ],
)  # fmt: skip
def test_fc37_retry_after_is_read_with_care(text: bytes, seconds: int | None) -> None:
    """FC-37, read: seconds and all three forms of a date; a past date is 0, what is neither is ignored."""
    assert parse_retry_after_s(text, NOW_S) == seconds


def test_fc37_a_date_is_relative_to_now_and_rounded_up() -> None:
    """FC-37: half a second more to go is a second more."""
    assert parse_retry_after_s(b"Mon, 30 Nov 2026 00:00:05 GMT", NOW_S - 0.5) == 6
    assert parse_retry_after_s(b"Mon, 30 Nov 2026 00:00:05 GMT", NOW_S + 4.5) == 1


@given(
    st.binary(max_size=70) | st.text(alphabet="MTWFSonuedhrati, 0123456789:-GMNov+", max_size=60).map(str.encode)
)
def test_fc37_no_text_raises(text: bytes) -> None:
    """FC-37: whatever an upstream sends, it is seconds or nothing."""
    seconds = parse_retry_after_s(text, NOW_S)
    assert seconds is None or 0 <= seconds <= 86_400
