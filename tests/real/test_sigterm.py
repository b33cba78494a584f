"""SIGTERM with vLLM's defaults has two outcomes, by chance: what runs gets no byte and no close any more, and
gslb's timers must end it; or the engine aborts all that runs, with answers that look whole.
"""

from __future__ import annotations

import asyncio
import time

import pytest
from openai import AsyncOpenAI

from tests.real.fleet import FRANKFURT, Figures, Fleet, until
from tests.real.load import Load
from tests.real.processes import Gslb, VllmServer

STREAM_TOKENS, LATE_TOKENS, WHOLE_TOKENS = 4000, 100, 800


@pytest.mark.parametrize("target", ["server", "engine"])
async def test_a_server_told_to_end_costs_only_begun_streams(fleet: Fleet, figures: Figures, target: str) -> None:
    load = Load()
    server = fleet.servers["eu"]
    async with fleet.async_client(FRANKFURT) as client, asyncio.TaskGroup() as group:
        group.create_task(load.stream(client, "Hello", STREAM_TOKENS))
        await until(lambda: load.streaming_from("eu") == 1, "content")
        group.create_task(load.whole(client, "Hello", WHOLE_TOKENS))
        await until(lambda: server.gauge("num_requests_running") == 2, "both to run in eu")
        await stream_in_prefill(group, client, load, server)
        ended_s = time.monotonic()
        server.terminate() if target == "server" else server.terminate_engine()
        had_content = load.outcomes[-1].has_content
    server.kill()
    assert not had_content, "the prompt was read too fast: the test showed nothing"
    begun, whole, late = load.outcomes[0], load.outcomes[1], load.outcomes[-1]
    topic = f"SIGTERM to the {target}"
    figures.note(topic, f"begun stream ended after {begun.ended_s - ended_s:.1f} s: {begun.error}")
    figures.note(topic, f"stream without content served after {late.ended_s - ended_s:.1f} s, JSON after "
                 f"{whole.ended_s - ended_s:.1f} s (timers {Gslb.FIRST_BYTE_S} s, {Gslb.ANSWER_S} s)")  # fmt: skip
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
