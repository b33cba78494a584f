"""The report as one HTML page: it asks for nothing outside itself and reads without its script."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources
from itertools import groupby

from gslb.report import flows, lines, rows, table, timeline
from gslb.report.chart import Look, looks
from gslb.report.figures import PolicyRuns, World, worlds
from gslb.report.headline import OURS, headline
from gslb.report.markup import Markup, element
from gslb.report.wording import listed, plural, span
from gslb.report.world_map import MANY_REGIONS, land, world_map
from gslb.sim.result import RunResult
from gslb.sim.setting import Setting

_LAND = "land"
_WORLDS = "worlds"


def render(
    results: Sequence[RunResult], settings: Sequence[Setting] = (), budgets_ms: Sequence[float] = ()
) -> str:
    """A whole HTML document of `results`, which may be of several scenarios, loads, policies and seeds.

    `settings` are the worlds that they ran in, matched by name: without one there is no map, and no fault is
    shaded. `budgets_ms` are the first-token budgets that requests came with, for marking.
    """
    found = worlds(results, settings)
    look = looks(run.policy for run in results)
    scenarios = list(dict.fromkeys(world.scenario for world in found))
    title = f"Routing policies compared: {listed(scenarios)}" if found else "Routing policies compared"
    several = [_overview(found, look), _world_switch(found)] if len(found) > 1 else []
    sections = [
        _section(world, look, budgets_ms, f"w{index}", len(found) > 1) for index, world in enumerate(found)
    ]
    nothing = [element("p", "There are no runs to show.", class_="nothing")] if not found else []
    body = element(
        "body", land(_LAND), element("h1", title), element("p", _made_of(found), class_="sub"), *nothing, *several,
        *sections, _footer(budgets_ms), element("script", Markup(_packaged("page.js"))), class_="still",
    )  # fmt: skip
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", Markup(_packaged("page.css"))),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _overview(found: Sequence[World], look: dict[str, Look]) -> Markup:
    """All worlds at a glance: one verdict each, and goodput by load where a scenario ran at several."""
    items = [element("li", element("b", _short(world, found)), ": ", headline(world)[0]) for world in found]
    drawings: list[Markup] = []
    for _, same in groupby(found, key=lambda world: world.scenario):
        loads = [world for world in same if world.load is not None]
        if len(loads) > 1:
            drawings.append(lines.by_load(loads, look, f"load{len(drawings)}"))
    return element("section", element("ul", *items), element("div", *drawings, class_="pair"))


def _section(
    world: World, look: dict[str, Look], budgets_ms: Sequence[float], ident: str, is_one_of_several: bool
) -> Markup:
    verdict, *more = headline(world)
    subject = _subject(world)
    left = [rows.goodput(world, look, f"{ident}-goodput"), timeline.over_time(world, look, f"{ident}-time")]
    right = [
        lines.first_tokens(world, look, budgets_ms, f"{ident}-ttft"),
        rows.prediction_error(world, look, f"{ident}-error"),
    ]
    return element(
        "section",
        *([element("h2", world.title)] if is_one_of_several else []),
        element("p", verdict, class_="verdict"),
        *(element("p", sentence) for sentence in more),
        element("h3", "By policy"),
        table.policies(world, subject),
        _pair(left, right),
        element("h3", "One policy in detail"),
        _policy_switch(world, subject, ident),
        *(_panel(world, runs, f"{ident}-p{index}", ident) for index, runs in enumerate(world.policies)),
        _runs(world),
        data_of=_WORLDS,
        data_panel=ident,
    )


def _world_switch(found: Sequence[World]) -> Markup:
    entries = [(_short(world, found), f"w{index}") for index, world in enumerate(found)]
    return _switch("In detail", _WORLDS, entries, "w0", "switch worlds")


def _short(world: World, found: Sequence[World]) -> str:
    """A world's title without what all titles share."""
    is_one_scenario = all(other.scenario == world.scenario for other in found)
    return f"load {world.load:g}" if is_one_scenario and world.load is not None else world.title


def _policy_switch(world: World, subject: str, ident: str) -> Markup:
    entries = [(runs.policy, f"{ident}-p{index}") for index, runs in enumerate(world.policies)]
    chosen = next(panel for policy, panel in entries if policy == subject)
    return _switch("Policy", f"{ident}-switch", entries, chosen, "switch")


def _switch(name: str, ident: str, entries: Sequence[tuple[str, str]], chosen: str, kind: str) -> Markup:
    """Buttons of which one is down, (text, panel) each: the script shows that panel alone."""
    labels = [
        element("label", element("input", type_="radio", name_=ident, value=panel, checked=panel == chosen), text)
        for text, panel in entries
    ]
    return element("fieldset", element("legend", name), *labels, class_=kind, id=ident)


def _panel(world: World, runs: PolicyRuns, ident: str, section: str) -> Markup:
    """Everything that is told of one policy alone; shown when the switch says so."""
    matrix, sketch = flows.matrix(world, runs), world_map(world, runs, f"{ident}-map", _LAND)
    outcomes = timeline.outcomes(world, runs, f"{ident}-outcomes")
    running = timeline.running(world, runs, f"{ident}-running")
    if len(world.regions) <= MANY_REGIONS:
        drawings = [_pair([matrix, outcomes], [sketch, running, flows.reasons(runs)])]
    else:
        drawings = [matrix, sketch, _pair([outcomes, flows.reasons(runs)], [running])]
    title = element("h3", f"{runs.policy}: clients by home region")
    body = [title, table.regions(world, runs), *drawings]
    return element("div", *body, data_of=f"{section}-switch", data_panel=ident)


def _pair(left: Sequence[Markup], right: Sequence[Markup]) -> Markup:
    """Two columns, one below the other on a narrow screen."""
    return element("div", element("div", *left), element("div", *right), class_="pair")


def _runs(world: World) -> Markup:
    notes = dict.fromkeys(
        f"{runs.policy}, seed {run.seed}: {note}"
        for runs in world.policies
        for run in runs.runs
        for note in run.notes
    )
    listing = [element("ul", *(element("li", note) for note in notes))] if notes else []
    return element("div", element("h3", "The runs"), table.making(world), *listing)


def _subject(world: World) -> str:
    """The policy that the details open with: our own if it ran, else the best."""
    names = [runs.policy for runs in world.policies]
    return OURS if OURS in names else world.contenders[0].policy if world.contenders else names[0]


def _made_of(found: Sequence[World]) -> str:
    runs = [run for world in found for policy in world.policies for run in policy.runs]
    if not runs:
        return ""
    seeds = plural(len({run.seed for run in runs}), "seed")
    offered = plural(sum(run.total.offered for run in runs), "request")
    return f"Simulated by gslb: {plural(len(runs), 'run')}, {seeds}, {offered} in all."


def _footer(budgets_ms: Sequence[float]) -> Markup:
    budget = f" of {listed([span(ms) for ms in budgets_ms])}" if budgets_ms else ""
    words = [
        f"Goodput: completed with the first token inside its budget{budget}, as seen by the client, of all "
        "offered requests that came to an end. Shed: refused by an edge. Failed: any other end without a whole "
        "answer.",
        "Home: the region nearest to the client. Spilled: completed elsewhere than at home. Cross-region: "
        "completed in another region than the client’s nearest edge stands in. Held: waited at an edge for room.",
        "Prefix hits: prompt tokens that an engine had cached. GPU busy: what engines computed, as a share of "
        "what full batches would have computed in that time. Cost: prices of the whole fleet times simulated "
        "hours. Every policy met the same requests for the same seed.",
    ]
    return element("footer", *(element("p", sentence) for sentence in words))


@cache
def _packaged(name: str) -> str:
    """The page's style or script. Neither holds `<` or `&`, so that the page can be read by any XML parser."""
    return resources.files("gslb.report").joinpath(name).read_text("utf-8")
