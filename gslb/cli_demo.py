"""`gslb demo`: three continents on one machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import sys
from collections.abc import Callable
from random import Random

import click
import uvloop
from rich.console import Console

from gslb.app import Edge
from gslb.demo.screen import Screen
from gslb.demo.show import Audience, Result, Show
from gslb.demo.story import SHORTEST_S, Phase
from gslb.demo.summary import as_document, in_words

_LONGEST_S = 3600.0


def _playable(_context: click.Context, _option: click.Parameter, value: float) -> float:
    # Not by FloatRange, which lets NaN pass.
    if not SHORTEST_S <= value <= _LONGEST_S:
        raise click.BadParameter(f"{value:g} is not from {SHORTEST_S:g} to {_LONGEST_S:g} seconds")
    return value


@click.command()
@click.option(
    "--duration", default=30.0, show_default=True, metavar="S", callback=_playable, help="Seconds; 8 or more."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end, nothing else on stdout.")
@click.option("--seed", default=1, show_default=True, help="Of the dice: who asks when, and what.")
def demo(duration: float, as_json: bool, seed: int) -> None:
    """Watch requests from 14 countries being steered over three regions, one of which fails.

    Everything runs in this process, on the loopback interface: mock vLLM servers that play Frankfurt, Virginia
    and Singapore at their distances, the real proxy, and the clients. Ctrl-C ends it early.
    """
    # What the edge has to say of endpoints that die is the show itself; it must not run through the picture.
    logging.getLogger("gslb").addHandler(logging.NullHandler())
    console = Console(stderr=as_json)
    stop = _Stop()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            result = runner.run(_play(duration, seed, console, stop, is_live=console.is_terminal and not as_json))
    except OSError as error:
        raise click.ClickException(
            f"the demo needs a few free loopback ports: {error.strerror or error}"
        ) from None
    told = as_document(result)
    if as_json:
        click.echo(json.dumps(told))
    else:
        for paragraph in in_words(told):
            console.print(f"\n{paragraph}", highlight=False)
    sys.exit(128 + stop.signal if stop.signal else 0)


class _Stop:
    """The signal that ended the demo early; 0 for none."""

    def __init__(self) -> None:
        self.signal = 0


async def _play(duration_s: float, seed: int, console: Console, stop: _Stop, is_live: bool) -> Result:
    stopping = asyncio.Event()

    def on_signal(number: int) -> None:
        stop.signal = number
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    with Screen(console) if is_live else contextlib.nullcontext() as screen:
        audience = Audience(on_frame=screen.on_frame) if screen else Audience(_tell_phase(console))
        show = Show(lambda settings: Edge(settings, {}, Random(seed)), duration_s, seed, audience)
        return await show.play(stopping)


def _tell_phase(console: Console) -> Callable[[Phase], None]:
    def tell(phase: Phase) -> None:
        console.print(f"{phase.starts_s:5.1f} s  {phase.name}: {phase.text}", highlight=False, soft_wrap=True)

    return tell
