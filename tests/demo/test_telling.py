"""What is shown and told: the picture fits its terminal, the words say what the figures say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import pytest
from rich.console import Console

from gslb.demo.screen import picture
from gslb.demo.show import Result, Scene
from gslb.demo.story import tell
from gslb.demo.summary import as_document, in_words
from gslb.demo.tally import Answer, Outage, Tally
from gslb.demo.world import COUNTRIES, SITES, nearest

HOMES = {country.code: nearest(country.code).name for country in COUNTRIES}
SPILLOVER = {
    ("singapore", "frankfurt", "full"): 12,
    ("singapore", "virginia", "full"): 34,
    ("virginia", "frankfurt", "unhealthy"): 56,
    ("virginia", "frankfurt", "failover"): 1,
}


def a_tally(is_busy: bool = True) -> Tally:
    outage = Outage("virginia", 13.5, 22.5, 0, 7, 0.8) if is_busy else Outage("virginia")
    tally = Tally(HOMES, outage)
    for number, country in enumerate(COUNTRIES if is_busy else ()):
        for region in (HOMES[country.code], SITES[number % 3].name):
            tally.record(country.code, Answer(1.0, 1.1, 2.0, 200, region, is_whole=True))
    return tally


def a_document(
    tally: Tally, spillover: Mapping[tuple[str, str, str], int] = SPILLOVER, was_stopped: bool = False
) -> Any:
    return orjson.loads(orjson.dumps(as_document(Result(31.0, tally, spillover, was_stopped))))


@pytest.mark.parametrize("is_busy", [False, True])
@pytest.mark.parametrize("phase", range(4))
def test_the_picture_fits_a_terminal_of_100_by_30(phase: int, is_busy: bool) -> None:
    phases = tell(30.0)
    scene = Scene(
        phases[phase].starts_s, 30.0, phases, phases[phase], a_tally(is_busy), 5,
        {"frankfurt": (80, 80, 2), "virginia": (0, 80, 0), "singapore": (9, 16, 1)}, SPILLOVER if is_busy else {},
    )  # fmt: skip
    console = Console(width=100, height=30, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(picture(scene))
    lines = capture.get().splitlines()
    assert len(lines) == 30
    assert max(map(len, lines)) == 100
    for country in COUNTRIES:
        assert any(country.name in line for line in lines)
    assert "…" not in capture.get()


def test_the_document_adds_up() -> None:
    told = a_document(a_tally())
    assert told["requests"] == told["completed"] == 28
    assert sum(entry["served"] for entry in told["by_region"].values()) == 28
    assert sum(entry["home"] for entry in told["by_region"].values()) == 28
    assert sum(entry["spilled"] for entry in told["by_country"].values()) == told["spilled"] > 0
    assert all(entry["is_nearest"] for entry in told["by_country"].values())
    assert told["outage"]["recovered_s"] == 0.8
    assert told["ttft_p50_ms"] == 100.0


def test_the_words_tell_spillover_outage_and_return() -> None:
    text = " ".join(in_words(a_document(a_tally())))
    assert "28 requests" in text
    assert "46 requests of its countries" in text
    assert "Virginia (34) and Frankfurt (12)" in text
    assert "7 answers that had begun there broke off" in text
    assert "57 requests went to Frankfurt (57)" in text
    assert "0.8 s after it came back" in text
    assert "FAILED" not in text


def test_the_words_do_not_hide_failures() -> None:
    tally = a_tally()
    tally.record("US", Answer(14.0, None, 14.5, 503, problem="saturated"))
    tally.homes = {**HOMES, "JP": "frankfurt"}
    tally.outage.failed_before_first_byte = 1
    told = a_document(tally)
    assert told["problems"] == {"saturated": 1}
    text = " ".join(in_words(told))
    assert text.count("1 request FAILED") == 2
    assert "NOT every country's home is its nearest region: JP" in text


def test_an_interrupted_demo_tells_what_there_was() -> None:
    nothing = a_document(a_tally(is_busy=False), {}, was_stopped=True)
    assert nothing["outage"]["started_s"] is None
    assert nothing["ttft_p50_ms"] is None
    assert in_words(nothing) == ["Nothing was asked yet."]
    early = Tally(HOMES, Outage("virginia"))
    early.record("DE", Answer(1.0, 1.1, 2.0, 200, "frankfurt", is_whole=True))
    assert "1 request to" in " ".join(in_words(a_document(early, {})))
