"""What counts as explained: too generous, and the soak proves nothing; too strict, and it cries wolf."""

from __future__ import annotations

from random import Random

import pytest

from benchmarks.soak_faults import BREAKS, Fate, Incident, Window, draw_fate, is_explained, refusing
from benchmarks.soak_upstream import script


def _incident(kind: str) -> Incident:
    return Incident(kind, 5, 10.0, 11.0, "")


def test_a_failure_needs_a_fault_at_as_many_endpoints_as_attempts_are_allowed() -> None:
    failed = _incident("failed")
    two = {0: "before_head", 4: "status_503"}
    assert not is_explained(failed, two, set(), 3)
    assert not is_explained(failed, two, {4}, 3)
    assert is_explained(failed, two, {7}, 3)
    assert is_explained(failed, {**two, 5: "mid"}, set(), 3)
    assert not is_explained(failed, {}, set(), 3)


def test_a_cut_needs_an_endpoint_that_cut() -> None:
    cut = _incident("cut")
    assert is_explained(cut, {0: "status_503", 2: "mid"}, set(), 3)
    assert not is_explained(cut, {0: "before_head", 1: "in_head", 2: "before_content"}, {5}, 3)


@pytest.mark.parametrize("kind", ["wrong", "dropped", "hung"])
def test_nothing_explains_the_rest(kind: str) -> None:
    assert not is_explained(_incident(kind), dict.fromkeys(range(12), "mid"), set(range(12)), 3)


def test_refusals_count_while_the_request_lived() -> None:
    windows = [
        Window(1, 0.0, 9.9),
        Window(2, 9.0, 10.0),
        Window(3, 10.5, 10.6),
        Window(4, 11.0, 12.0),
        Window(5, 11.1, 12),
    ]
    assert refusing(windows, 10.0, 11.0) == {2, 3, 4}


def test_fates_come_in_their_shares() -> None:
    rng = Random(1)
    assert {draw_fate(rng, 0.0, None) for _ in range(100)} == {Fate.GOOD}
    assert {draw_fate(rng, 1.0, None) for _ in range(500)} == set(BREAKS)
    assert {draw_fate(rng, 0.0, Fate.STATUS_429) for _ in range(100)} == {Fate.GOOD, Fate.STATUS_429}


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_script_ends_where_its_fate_says(is_stream: bool) -> None:
    for number in range(40):
        whole = b"".join(script(7, is_stream, Fate.AFTER, Random(number)))
        assert whole.count(b"\r\n\r\n") >= 1
        assert script(7, is_stream, Fate.BEFORE_HEAD, Random(number)) == []
        (head,) = script(7, is_stream, Fate.IN_HEAD, Random(number))
        assert b"\r\n\r\n" not in head
        early = b"".join(script(7, is_stream, Fate.BEFORE_CONTENT, Random(number)))
        assert b"\r\n\r\n" in early
        assert b"chatcmpl-7-1" not in early
        assert not early.endswith(b"0\r\n\r\n")
        middle = b"".join(script(7, is_stream, Fate.MID, Random(number)))
        assert not middle.endswith(b"0\r\n\r\n")
        assert len(middle) > len(early) - 200
    assert script(7, is_stream, Fate.STATUS_503, Random(1))[0].startswith(b"HTTP/1.1 503")
