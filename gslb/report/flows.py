"""Who served whom, and why: home by serving region, and the decisions' reasons. Tables that draw as well."""

from __future__ import annotations

from gslb.report.chart import empty, figure
from gslb.report.figures import PolicyRuns, World, ratio
from gslb.report.markup import Markup, element
from gslb.report.wording import count, named, percent
from gslb.sim.result import Tally

_MOST_REASONS = 12


def matrix(world: World, runs: PolicyRuns) -> Markup:
    """A row per home region: what share of its clients' requests each region completed, and what nobody did."""
    title = "Who served whom"
    homes = [name for name in world.regions if name in runs.by_home or any(home == name for home, _ in runs.flows)]
    if not homes:
        return empty(title, "No request was counted.")
    head = element(
        "tr",
        element("th", "home ↓ served by →", scope="col"),
        *(element("th", element("span", named(name)), scope="col") for name in [*world.regions, "shed", "failed"]),
    )
    body = [_home_row(world, runs, home) for home in homes]
    table = element("table", element("thead", head), element("tbody", *body), class_="heat")
    note = "Percent of the requests of clients at home in the row’s region. Outlined: served at home."
    scroll = element("div", table, class_="scroll", tabindex="0", role="region", aria_label=title)
    return figure(title, note, scroll)


def reasons(runs: PolicyRuns) -> Markup:
    """The decisions' reasons as bars, the most frequent first."""
    title = "Reasons of decisions"
    total = runs.reasons.total()
    if not total:
        return empty(title, "No decision was recorded.")
    told = runs.reasons.most_common(_MOST_REASONS)
    others = total - sum(number for _, number in told)
    if others:
        told.append((f"{len(runs.reasons) - len(told)} others", others))
    most = max(number for _, number in told)
    rows = [
        element(
            "tr",
            element("th", named(reason).replace("_", " "), scope="row"),
            element("td", element("i", style=f"width:{100 * number / most:.1f}%"), class_="bar"),
            element("td", percent(number / total)),
            element("td", count(number / len(runs.runs))),
        )
        for reason, number in told
    ]
    heads = [element("th", name, scope="col") for name in ("reason", "", "share", "per run")]
    table = element("table", element("thead", element("tr", *heads)), element("tbody", *rows), class_="bars")
    note = "Why requests were served where they were, or refused."
    return figure(
        title, note, element("div", table, class_="scroll", tabindex="0", role="region", aria_label=title)
    )


def _home_row(world: World, runs: PolicyRuns, home: str) -> Markup:
    tally = runs.by_home.get(home, Tally())
    served = {name: runs.flows[home, name] for name in world.regions}
    all_of_it = sum(served.values()) + tally.shed + tally.failed
    cells = [_cell(number, all_of_it, home, name, name == home) for name, number in served.items()]
    cells += [_cell(tally.shed, all_of_it, home, "shed"), _cell(tally.failed, all_of_it, home, "failed")]
    return element("tr", element("th", named(home), scope="row"), *cells)


def _cell(number: int, of: int, home: str, what: str, is_home: bool = False) -> Markup:
    share = ratio(number, of) or 0.0
    classes = " ".join(
        word for word, holds in (("own", is_home), ("deep", share > 0.55), ("lost", what in _LOST)) if holds
    )
    text = "" if not number else "·" if share < 0.005 else f"{100 * share:.0f}"
    title = f"{named(home)} → {named(what)}: {count(number)} ({percent(share)})"
    return element("td", text, title=title, style=f"--v:{share:.3f}", class_=classes or None)


_LOST = frozenset({"shed", "failed"})
