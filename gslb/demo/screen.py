"""The demo on a terminal of 100 x 30: regions, flows, first tokens, reasons. Draws scenes, decides nothing."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.layout import Layout
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gslb.demo.show import Scene
from gslb.demo.tally import Outcome
from gslb.demo.world import COUNTRIES, SITES

_RECENT_S = 5.0
_LOAD_CELLS = 24
_MOST_REASONS = 5
_STORY_LINES = 5


class Screen:
    """A live view in the terminal's alternate screen while it is entered; `on_frame` feeds it."""

    def __init__(self, console: Console) -> None:
        # No refresh thread: the event loop draws, four times a second, between two packets.
        self._live = Live(console=console, screen=True, auto_refresh=False)

    def __enter__(self) -> Screen:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def on_frame(self, scene: Scene) -> None:
        """Draw `scene`."""
        self._live.update(picture(scene), refresh=True)


def picture(scene: Scene) -> RenderableType:
    """The whole view of one scene."""
    layout = Layout()
    layout.split_column(
        Layout(_head(scene), size=5),
        Layout(_regions(scene), size=len(SITES) + 3),
        Layout(name="body"),
    )
    side = Layout()
    side.split_column(
        Layout(_first_tokens(scene), size=6), Layout(_reasons(scene)), Layout(_story(scene), size=_STORY_LINES + 2)
    )
    layout["body"].split_row(Layout(_flows(scene), size=52), side)
    return layout


def _head(scene: Scene) -> Panel:
    phases = Text()
    for phase in scene.phases:
        is_past = phase.ends_s <= scene.phase.starts_s
        style = "bold reverse" if phase is scene.phase else ("green" if is_past else "dim")
        phases.append(f" {phase.name} ", style)
        phases.append("  ")
    line = Table.grid(expand=True)
    line.add_column(ratio=1)
    line.add_column(width=14, justify="right")
    left_s = max(0.0, scene.duration_s - scene.elapsed_s)
    bar = ProgressBar(total=scene.duration_s, completed=min(scene.elapsed_s, scene.duration_s))
    line.add_row(bar, f"{left_s:.0f} s left")
    return Panel(
        Group(phases, Text(scene.phase.text, "bold"), line), title="gslb demo: three continents, one edge"
    )


def _regions(scene: Scene) -> Panel:
    table = Table(box=None, expand=True, padding=(0, 1))
    table.add_column("region", width=10)
    table.add_column("state", width=12)
    table.add_column("slots in use")
    for heading in ("served", "spilled in"):
        table.add_column(heading, justify="right", width=10)
    for site in SITES:
        running, slots, well = scene.loads[site.name]
        served, spilled_in = scene.tally.served_by(site.name)
        table.add_row(
            site.title, _state(well, site.endpoints), _load_bar(running, slots), str(served),
            Text(str(spilled_in), "yellow" if spilled_in else "dim"),
        )  # fmt: skip
    return Panel(table, title="regions")


def _state(well: int, endpoints: int) -> Text:
    if well == endpoints:
        return Text("● well", "green")
    return Text("✖ down", "bold red") if not well else Text(f"◐ {well} of {endpoints}", "yellow")


def _load_bar(running: int, slots: int) -> Text:
    share = running / slots if slots else 0.0
    full = round(min(1.0, share) * _LOAD_CELLS)
    style = "red" if share >= 0.95 else ("yellow" if share >= 0.75 else "green")
    bar = Text("█" * full, style)
    return bar.append("░" * (_LOAD_CELLS - full), "dim").append(f" {running:3} of {slots}", "default")


def _flows(scene: Scene) -> Panel:
    table = Table(box=None, expand=True, padding=(0, 1), pad_edge=False)
    table.add_column("from", no_wrap=True, width=14)
    for site in SITES:
        table.add_column(site.title, justify="right", width=9)
    for country in COUNTRIES:
        home = scene.tally.homes[country.code]
        cells = [_flow(scene.tally.flows[country.code, site.name], site.name == home) for site in SITES]
        table.add_row(country.name[:14], *cells)
    legend = Text.assemble(("home", "green"), " and ", ("spilled", "yellow"))
    return Panel(table, title="who is answered where", subtitle=legend)


def _flow(count: int, is_home: bool) -> Text:
    if not count:
        return Text("·", "dim")
    return Text(str(count), "green" if is_home else "yellow")


def _first_tokens(scene: Scene) -> Panel:
    tally = scene.tally
    since_s = scene.elapsed_s - _RECENT_S
    table = Table.grid(padding=(0, 2))
    for name, start_s in (("last 5 s", since_s), ("all", 0.0)):
        p50, p99 = tally.ttft_ms(0.5, start_s), tally.ttft_ms(0.99, start_s)
        table.add_row(name, f"half {_ms(p50)}", f"99 % {_ms(p99)}")
    outcomes = tally.outcomes
    failed = outcomes[Outcome.FAILED]
    counts = Text.assemble(
        f"{tally.requests} asked  {scene.open_requests} open  {outcomes[Outcome.CUT]} cut  ",
        (f"{failed} failed", "bold red" if failed else "green"),
    )
    rest = Text(f"{outcomes[Outcome.ABORTED]} hung up  {outcomes[Outcome.FENCED]} fenced by law")
    return Panel(Group(table, counts, rest), title="until the first token")


def _reasons(scene: Scene) -> Panel:
    table = Table.grid(padding=(0, 1))
    ordered = sorted(scene.spillover.items(), key=lambda item: -item[1])
    for (home, served, reason), count in ordered[:_MOST_REASONS]:
        table.add_row(f"{home} → {served}", Text(reason, "yellow"), Text(str(count), justify="right"))
    return Panel(table if ordered else Text("nobody yet", "dim"), title="why answered elsewhere")


def _story(scene: Scene) -> Panel:
    outage = scene.tally.outage
    lines = []
    for phase in scene.phases:
        if phase.starts_s <= scene.phase.starts_s:
            cut = f", {outage.cut_streams} answers with it" if phase.kills and outage.cut_streams else ""
            lines.append(f"{phase.starts_s:4.0f} s  {phase.title}{cut}")
    if outage.recovered_s is not None and outage.ended_s is not None:
        lines.append(f"{outage.ended_s + outage.recovered_s:4.0f} s  {outage.region.capitalize()} answers again")
    return Panel(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"), title="so far")


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f} ms"
