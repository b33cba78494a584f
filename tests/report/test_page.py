"""The page as a whole: readable by any parser, complete without a network, true to its figures."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from importlib import resources
from math import inf, nan
from xml.etree import ElementTree

import pytest

from gslb.report.page import render
from gslb.sim.result import RunResult
from gslb.sim.setting import Fault, Setting
from gslb.types import Place, Region
from tests.report.built import BUDGET_MS, comparison, run, setting

NASTY = """<script>alert("1")</script>&'\x00\ud800 long region name"""
FAULTS = [Fault("region_loss", "eu-central", 100, 160), Fault("spot_reclaim", "us-west/0", 150, inf, notice_s=30)]
_CHILDLESS = {"meta", "input"}


class Reader(HTMLParser):
    """Reads as a browser does, and notes what is left open, what is asked from outside, and all text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.ids: Counter[str] = Counter()
        self.links: list[str] = []
        self.labelled: list[str] = []
        self.text: list[str] = []
        self.counted: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in _CHILDLESS:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counted[tag] += 1
        for name, value in attrs:
            if name == "id":
                self.ids[value or ""] += 1
            elif name in ("href", "src", "xlink:href", "action", "srcset"):
                self.links.append(value or "")
            elif name == "aria-labelledby":
                self.labelled += (value or "").split()

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def no_requests() -> list[RunResult]:
    return [run(requests=0), run("nearest", requests=0)]


def without_timeline() -> list[RunResult]:
    result = run()
    result.timeline = []
    return [result]


def flawless() -> list[RunResult]:
    results = [
        run(policy, seed, load=load) for policy in ("ttft", "gorgo") for seed in (1, 2) for load in (0.5, 0.7)
    ]
    for result in results:
        result.total.good = result.total.completed = result.total.offered
        result.total.shed = result.total.failed = 0
    return results


def strange_figures() -> list[RunResult]:
    result = run()
    result.cost, result.busy_share["us-east"], result.decision_s, result.wall_s = nan, inf, nan, 0.0
    result.total.ttft.sum_ms = nan
    result.timeline[3].held_now = 10**9
    return [result]


CASES: dict[str, tuple[list[RunResult], list[Setting]]] = {
    "all policies": (comparison(seeds=2, requests=200), [setting(faults=FAULTS, is_synthetic=True)]),
    "nothing": ([], []),
    "one run": ([run()], [setting()]),
    "one policy": ([run(seed=1), run(seed=2)], [setting()]),
    "no setting": ([run(), run("nearest")], []),
    "no requests": (no_requests(), [setting()]),
    "twenty regions": ([run(world=setting(regions=20), requests=2000)], [setting(regions=20)]),
    "one region": ([run(world=setting(regions=1))], [setting(regions=1)]),
    "loads": ([run(p, s, load=x) for p in ("ttft", "gorgo") for s in (1, 2) for x in (0.5, 0.9)], [setting()]),
    "one load": ([run(load=0.5)], [setting()]),
    "only a bound": ([run("oracle")], [setting()]),
    "unknown policies": ([run(f"p{index}", requests=50) for index in range(25)], [setting()]),
    "partial": ([run(seed=1, is_partial=True), run("nearest"), run("nearest", 2, is_partial=True)], [setting()]),
    "none was served": ([run(skill=-200.0)], [setting()]),
    "no timeline": (without_timeline(), [setting()]),
    "nothing went wrong": (flawless(), [setting()]),
    "strange figures": (strange_figures(), [setting()]),
}


@cache
def page_of(case: str) -> str:
    return render(*CASES[case], [BUDGET_MS])


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    return reader


@pytest.mark.parametrize("case", CASES)
def test_it_is_well_formed_and_whole(case: str) -> None:
    page = page_of(case)
    reader = read(page)
    assert reader.wrong == []
    assert reader.open == []
    ElementTree.fromstring(page)
    assert [ident for ident, times in reader.ids.items() if times > 1] == []
    assert set(reader.labelled) <= set(reader.ids)
    assert reader.counted["script"] == reader.counted["style"] == 1
    page.encode("utf-8")


@pytest.mark.parametrize("case", CASES)
def test_it_asks_for_nothing_outside_itself(case: str) -> None:
    page = page_of(case)
    assert {link[:1] for link in read(page).links} <= {"#"}
    assert "://" not in page
    assert "@import" not in page
    assert "url(" not in page


@pytest.mark.parametrize("case", CASES)
def test_no_drawing_holds_what_is_no_number(case: str) -> None:
    page = page_of(case)
    drawn = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert drawn
    for drawing in drawn:
        assert not re.search(r"\b(nan|inf|None)\b", drawing, re.IGNORECASE)
    assert " nan" not in page
    assert "None" not in page


def test_names_from_users_are_text() -> None:
    world = setting(NASTY, regions=2, faults=[Fault("region_loss", NASTY, 10, 20)])
    nasty = Region(NASTY, Place(lat=10.0, lon=20.0))
    world = replace(world, regions=(nasty, *world.regions))
    result = run(NASTY, world=world)
    result.reasons[NASTY] = 5
    result.notes.append(NASTY)
    reader = read(render([result], [world], [BUDGET_MS]))
    assert reader.wrong == []
    assert reader.counted["script"] == 1
    assert '<script>alert("1")</script>&\'' in "".join(reader.text)


def test_every_drawing_says_what_it_shows() -> None:
    page = page_of("all policies")
    root = ElementTree.fromstring(page)
    pictures = [svg for svg in root.iter("svg") if svg.get("role") == "img"]
    assert len(pictures) > 20
    for svg in pictures:
        assert svg.findtext("title")
        assert svg.findtext("desc")
    for svg in root.iter("svg"):
        assert svg.get("role") == "img" or svg.get("aria-hidden") == "true"


def test_tables_tell_the_figures_of_the_results() -> None:
    results = [run("ttft"), run("nearest", skill=0.7)]
    text = "".join(read(render(results, [setting()], [BUDGET_MS])).text)
    for result in results:
        assert f"{100 * result.total.goodput:.2f}" in text
        assert f"{result.total.ttft.quantile(0.99):,.0f}" in text
    for words in ("budget 1 s", "prefix", "cross-region", "CPU µs", "us-east", "One seed cannot tell"):
        assert words in text


def test_each_policy_has_a_panel_that_the_switch_names() -> None:
    root = ElementTree.fromstring(page_of("all policies"))
    panels = {part.get("data-panel") for part in root.iter() if part.get("data-of") == "w0-switch"}
    buttons = {part.get("value") for part in root.iter("input")}
    assert len(panels) == 11
    assert panels == buttons
    (chosen,) = [part.get("value") for part in root.iter("input") if part.get("checked") is not None]
    assert chosen in panels


def test_loads_are_compared_in_one_drawing_and_seen_one_at_a_time() -> None:
    page = page_of("loads")
    assert "Goodput by load: region-loss" in page
    assert {"w0", "w1"} == set(re.findall(r'name="worlds" value="(w\d)"', page))


def test_faults_are_named_and_partial_runs_marked() -> None:
    page = page_of("all policies")
    assert "region loss: eu-central" in page
    assert "spot reclaim: us-west/0" in page
    assert "partial</small>" in page_of("partial")
    assert "partial</small>" not in page


def test_equal_results_make_an_equal_page() -> None:
    assert render([run(seed=1), run(seed=2)], [setting()]) == render([run(seed=1), run(seed=2)], [setting()])


@pytest.mark.parametrize("name", ["page.css", "page.js"])
def test_style_and_script_hold_nothing_that_would_need_escaping(name: str) -> None:
    text = resources.files("gslb.report").joinpath(name).read_text("utf-8")
    assert not set("<&") & set(text)
