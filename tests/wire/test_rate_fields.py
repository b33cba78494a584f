"""Fields about limits, as OpenAI's clients read them."""

from __future__ import annotations

import pytest

from gslb.wire.rate_fields import duration_text, rate_fields, wait_field, without_rate_fields


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, b"0ms"), (0.12, b"120ms"), (0.0001, b"1ms"), (0.9991, b"1s"), (1.0, b"1s"), (2.4, b"2.4s"),
        (59.9999, b"1m0s"), (60.0, b"1m0s"), (61.25, b"1m1.25s"), (3723.5, b"62m3.5s"), (59.999, b"59.999s"),
    ],
)  # fmt: skip
def test_durations(seconds: float, text: bytes) -> None:
    assert duration_text(seconds) == text


def test_fields() -> None:
    assert rate_fields("tokens", 1000, 3, 6.0) == [
        (b"x-ratelimit-limit-tokens", b"1000"), (b"x-ratelimit-remaining-tokens", b"3"),
        (b"x-ratelimit-reset-tokens", b"6s"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("wait_s", "milliseconds"), [(2.4, b"2400"), (0.001, b"1"), (0.0004, b"1"), (1.0011, b"1002")]
)
def test_fc37_waits_in_milliseconds_are_rounded_up(wait_s: float, milliseconds: bytes) -> None:
    """FC-37: `retry-after-ms` beside Retry-After."""
    assert wait_field(wait_s) == (b"retry-after-ms", milliseconds)


def test_an_endpoints_own_lines_are_left_out() -> None:
    lines = (
        b"HTTP/1.1 200 OK\r\nX-RateLimit-Limit-Requests: 5\r\nA: x-ratelimit-b: 1\r\nx-ratelimit-reset-a: 1s\r\n"
    )
    assert without_rate_fields(lines) == b"HTTP/1.1 200 OK\r\nA: x-ratelimit-b: 1\r\n"
    other = b"HTTP/1.1 200 OK\r\nA: b\r\n"
    assert without_rate_fields(other) is other
