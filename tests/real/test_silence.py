"""SIGTERM with vLLM's defaults: running requests get no byte and no close any more. gslb's timers end them."""

from __future__ import annotations

import asyncio
import time

from openai import AsyncOpenAI

from tests.real.fleet import FRANKFURT, Figures, Fleet, until
from tests.real.load import Load, Outcome
from tests.real.processes import Gslb, VllmServer

STREAM_TOKENS, LATE_TOKENS, WHOLE_TOKENS = 4000, 100, 800


async def test_a_server_gone_silent_is_left_by_the_timers(fleet: Fleet, figures: Figures) -> None:
    load = Load()
    server = fleet.servers["eu"]
    async with fleet.async_client(FRANKFURT) as client, asyncio.TaskGroup() as group:
        group.create_task(load.stream(client, "Hello", STREAM_TOKENS))
        await until(lambda: load.streaming_from("eu") == 1, "content")
        group.create_task(load.whole(client, "Hello", WHOLE_TOKENS))
        await until(lambda: server.gauge("num_requests_running") == 2, "both to run in eu")
        await stream_in_prefill(group, client, load, server)
        silent_s = time.monotonic()
        server.terminate()
        had_content = load.outcomes[-1].has_content
    server.kill()
    assert not had_content, "the prompt was read too fast: the test showed nothing"
    begun, whole, late = load.outcomes[0], load.outcomes[1], load.outcomes[-1]
    note_end(figures, "a stream with content cut", begun, silent_s, f"between_bytes {Gslb.BETWEEN_BYTES_S} s")
    figures.note("  its error", str(begun.error)[:120])
    note_end(figures, "a stream without served", late, silent_s, f"first_byte {Gslb.FIRST_BYTE_S} s")
    note_end(figures, "JSON served", whole, silent_s, f"answer {Gslb.ANSWER_S} s")
    assert begun.is_cut
    for outcome, tokens in ((late, LATE_TOKENS), (whole, WHOLE_TOKENS)):
        assert outcome.error is None
        assert (outcome.region, outcome.attempts, outcome.tokens) == ("us", 2, tokens)


async def stream_in_prefill(group: asyncio.TaskGroup, client: AsyncOpenAI, load: Load, server: VllmServer) -> None:
    """Start a stream; return while the engine already reads its prompt but has no token of it yet."""
    for number in range(5):
        # Long enough to take the engine a while, too short to be worth an ocean.
        task = group.create_task(load.stream(client, f"{number}" + " lazy dog" * 850, LATE_TOKENS))
        await until(lambda: server.gauge("num_requests_running") == 3, "the prompt to be read")
        if not load.outcomes[-1].has_content:
            return
        await task
        await until(lambda: server.gauge("num_requests_running") == 2, "its end")


def note_end(figures: Figures, what: str, outcome: Outcome, silent_s: float, timer: str) -> None:
    """When a request ended after the server went silent, beside the timer that ends the waiting."""
    figures.note("silent after SIGTERM", f"{what} after {outcome.ended_s - silent_s:.1f} s ({timer})")
