"""SIGTERM with vLLM's defaults: running requests get no byte and no close any more. gslb's timers end them."""

from __future__ import annotations

import asyncio
import time

from openai import AsyncOpenAI

from tests.real.fleet import FRANKFURT, Figures, Fleet, until
from tests.real.load import Load, Outcome
from tests.real.processes import Gslb

STREAMS, WHOLES = 2, 2
STREAM_TOKENS, WHOLE_TOKENS = 4000, 1000


async def test_a_server_gone_silent_is_left_by_the_timers(fleet: Fleet, figures: Figures) -> None:
    load = Load()
    server = fleet.servers["eu"]
    async with fleet.async_client(FRANKFURT) as client, asyncio.TaskGroup() as group:
        await fill(group, client, load)
        await until(lambda: server.gauge("num_requests_running") == STREAMS + WHOLES, "all to run in eu")
        assert all(outcome.has_content for outcome in load.outcomes[:STREAMS])
        silent_s = time.monotonic()
        server.terminate()
    server.kill()
    streams, wholes = load.outcomes[:STREAMS], load.outcomes[STREAMS:]
    note_ends(figures, streams, wholes, silent_s)
    assert all(outcome.is_cut and outcome.region == "eu" for outcome in streams)
    assert [outcome.error for outcome in wholes] == [None] * WHOLES
    assert all(outcome.region == "us" and outcome.attempts == 2 for outcome in wholes)
    assert all(outcome.tokens == WHOLE_TOKENS for outcome in wholes)


async def fill(group: asyncio.TaskGroup, client: AsyncOpenAI, load: Load) -> None:
    """Streams that have begun, then requests that wait for their whole answer, all with home region eu."""
    for number in range(STREAMS):
        group.create_task(load.stream(client, f"Stream {number}:", STREAM_TOKENS))
    await until(lambda: [outcome.has_content for outcome in load.outcomes] == [True] * STREAMS, "content")
    for number in range(WHOLES):
        group.create_task(load.whole(client, f"Whole {number}:", WHOLE_TOKENS))


def note_ends(figures: Figures, streams: list[Outcome], wholes: list[Outcome], silent_s: float) -> None:
    """When the timers ended what was running."""
    cut = ", ".join(f"{outcome.ended_s - silent_s:.1f} s" for outcome in streams)
    done = ", ".join(f"{outcome.ended_s - silent_s:.1f} s" for outcome in wholes)
    figures.note("silent after SIGTERM", f"streams cut after {cut} (between_bytes {Gslb.BETWEEN_BYTES_S} s)")
    figures.note("", f"JSON answered elsewhere after {done} (answer {Gslb.ANSWER_S} s)")
    figures.note("  a cut stream's error", str(streams[0].error)[:120])
