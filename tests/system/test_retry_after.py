"""Retry-After in both directions, and redirects of what stands in an engine's place: FC-37, FC-17."""

from __future__ import annotations

import time
from email.utils import formatdate

import pytest

from gslb.errors import retry_after_text
from tests.support.raw_client import chat, request
from tests.support.raw_upstream import GOOD, Step, answer
from tests.system.conftest import MakeEdge, MakeUpstream

ASK = request(chat())


def busy(status: int, retry_after: str) -> list[Step]:
    """An error answer that says when to come back."""
    return [answer(status, b'{"error":"busy"}', ("Retry-After", retry_after))]


@pytest.mark.parametrize(
    ("text", "least_s", "most_s"),
    [
        ("5", 5, 5), ("0", 1, 1), ("-3", 9, 9), ("1e9", 9, 9), ("abc", 9, 9), ("0.5", 9, 9), ("", 9, 9),
        ("999999999", 9, 9), ("date in 6", 1, 6), ("date past", 1, 1), ("Mon, 99 Foo 2026 00:00:05 GMT", 9, 9),
    ],
)  # fmt: skip
async def test_fc37_the_smallest_wait_that_can_be_read_is_handed_on(
    text: str, least_s: int, most_s: int, edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-37, read: seconds and dates are understood, the past is 0, anything else is as good as absent (the other
    endpoint's 9 remains). FC-37, send: a whole number of at least 1."""
    dates = {"date in 6": formatdate(time.time() + 6, usegmt=True), "date past": "Mon, 01 Jan 2001 00:00:00 GMT"}
    eu, us = await upstream(busy(503, dates.get(text, text))), await upstream(busy(429, "9"))
    running = await edge({"eu": [eu], "us": [us]})
    found = await running.ask(ASK)
    assert (found.status, found.error["code"]) == (503, "no_healthy_region")
    assert least_s <= int(found.one("retry-after") or 0) <= most_s


@pytest.mark.parametrize("text", ["5", "0", "Mon, 30 Nov 2026 00:00:05 GMT", "abc", "0.5", "-3"])
@pytest.mark.parametrize("status", [429, 503])
async def test_fc37_the_only_endpoints_own_text_is_the_clients(
    status: int, text: str, edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-37 and FC-17: an answer that is handed on keeps the engine's own Retry-After."""
    running = await edge({"eu": [await upstream(busy(status, text))]})
    found = await running.ask(ASK)
    assert (found.status, found.all("retry-after")) == (status, [text])


def test_fc37_waits_are_sent_rounded_up() -> None:
    """FC-37, send: whoever waits so long is not refused for a fraction (2.4 s are 3)."""
    assert [retry_after_text(wait_s) for wait_s in (0.0, 0.1, 1.0, 2.4, 3.0)] == [b"1", b"1", b"1", b"3", b"3"]


# --- redirects --------------------------------------------------------------------------------------------


def redirect(status: int) -> bytes:
    return answer(status, b"moved", ("Location", "http://vllm-7.internal:8000/v1/"), ("X-Inside", "1"))


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_no_engines_answer(status: int, edge: MakeEdge, upstream: MakeUpstream) -> None:
    eu, us = await upstream(default=[redirect(status)]), await upstream([GOOD])
    running = await edge({"eu": [eu], "us": [us]})
    found = await running.ask(ASK)
    assert (found.status, found.one("x-gslb-region")) == (200, "us")
    us.stop()
    for _ in range(2):
        await running.ask(ASK)
    assert running.state(eu) == "ejected", "it serves nobody"
    alone = await edge({"eu": [eu]})
    found = await alone.ask(ASK)
    assert (found.status, found.error["code"]) == (502, "upstream_error")
    assert found.all("location") == found.all("x-inside") == []
    assert b"internal" not in found.body
    assert alone.attempts() == {("eu", "protocol_error"): 1}


async def test_304_is_an_answer(edge: MakeEdge, upstream: MakeUpstream) -> None:
    running = await edge({"eu": [await upstream([b"HTTP/1.1 304 Not Modified\r\n\r\n"])]})
    assert (await running.ask(ASK)).status == 304
