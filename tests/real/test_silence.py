"""SIGTERM with vLLM's defaults: running requests get no byte and no close any more. gslb's timers end them."""

from __future__ import annotations

import asyncio
import time

from tests.real.fleet import FRANKFURT, Figures, Fleet, until
from tests.real.load import Load, Outcome
from tests.real.processes import SLOTS, Gslb

STREAM_TOKENS, LATE_TOKENS, WHOLE_TOKENS = 4000, 100, 800


async def test_a_server_gone_silent_is_left_by_the_timers(fleet: Fleet, figures: Figures) -> None:
    load = Load()
    server = fleet.servers["eu"]
    async with fleet.async_client(FRANKFURT) as client, asyncio.TaskGroup() as group:
        group.create_task(load.stream(client, "Hello", STREAM_TOKENS))
        await until(lambda: load.streaming_from("eu") == 1, "content")
        group.create_task(load.whole(client, "Hello", WHOLE_TOKENS))
        for number in range(2):  # prompts that take the engine a while, but are no reason to go elsewhere
            group.create_task(load.stream(client, f"{number}" + " lazy dog" * 450, LATE_TOKENS))
        await until(lambda: server.gauge("num_requests_running") == SLOTS, "all to run in eu")
        assert [outcome.has_content for outcome in load.outcomes] == [True, False, False, False]
        silent_s = time.monotonic()
        server.terminate()
    server.kill()
    first, whole, *late = load.outcomes
    note_end(
        figures, "a stream with content was cut", [first], silent_s, f"between_bytes {Gslb.BETWEEN_BYTES_S} s"
    )
    figures.note("  its error", str(first.error)[:120])
    note_end(figures, "streams without were served", late, silent_s, f"first_byte {Gslb.FIRST_BYTE_S} s")
    note_end(figures, "JSON was served", [whole], silent_s, f"answer {Gslb.ANSWER_S} s")
    assert first.is_cut
    for outcome, tokens in ((whole, WHOLE_TOKENS), *((each, LATE_TOKENS) for each in late)):
        assert outcome.error is None
        assert (outcome.region, outcome.attempts, outcome.tokens) == ("us", 2, tokens)


def note_end(figures: Figures, what: str, outcomes: list[Outcome], silent_s: float, timer: str) -> None:
    """When requests ended after the server went silent, beside the timer that ends the waiting."""
    ends = ", ".join(f"{outcome.ended_s - silent_s:.1f} s" for outcome in outcomes)
    figures.note("silent after SIGTERM", f"{what} after {ends} ({timer})")
