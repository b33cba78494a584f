"""One server is killed under load: nobody who had nothing yet notices, and the server is used again afterwards."""

from __future__ import annotations

import asyncio
import time

from tests.real.fleet import FRANKFURT, NEW_YORK, Figures, Fleet, until
from tests.real.load import Load
from tests.real.processes import MODEL, STARTUP_S

STREAMS, WHOLES = 8, 4
TOKENS = 150


async def test_a_killed_server_costs_only_streams_past_their_first_content(fleet: Fleet, figures: Figures) -> None:
    load = Load()
    stopping = asyncio.Event()
    async with fleet.async_client(FRANKFURT) as german, fleet.async_client(NEW_YORK) as american:
        clients = (german, american)
        async with asyncio.TaskGroup() as group:
            for number in range(STREAMS + WHOLES):
                is_stream = number < STREAMS
                client = clients[number % 2]
                group.create_task(load.keep_asking(client, stopping, is_stream=is_stream, tokens=TOKENS))
            await until(lambda: served(load, "eu") >= 6 and served(load, "us") >= 6, "a load on both regions", 60)
            server = fleet.servers["eu"]
            await until(lambda: has_both_kinds(fleet, load, "eu"), "requests with and without content in eu", 60)
            killed_s = time.monotonic()
            server.kill()
            await until(lambda: served_since(load, killed_s) >= 24, "answers after the loss", 90)
            stopping.set()
    note_loss(load, killed_s, figures)
    assert load.failed_without_content == []
    assert any(outcome.attempts > 1 for outcome in load.outcomes), "nobody failed over: the test showed nothing"
    assert [outcome for outcome in load.outcomes if outcome.error and not outcome.is_stream] == []
    assert [outcome for outcome in load.begun_after(killed_s) if outcome.error] == []
    assert {outcome.region for outcome in load.begun_after(killed_s)} == {"us"}
    assert [
        outcome.error for outcome in load.outcomes if outcome.error and "looked complete" in outcome.error
    ] == []


async def test_the_restarted_server_is_used_again(started_fleet: Fleet, figures: Figures) -> None:
    fleet = started_fleet
    server = fleet.servers["eu"]
    if server.is_alive:  # this test alone: make the loss first
        fleet.make_whole()
        server.kill()
        await until(lambda: fleet.gslb.states()["eu"] != "admitting", "the loss to be noticed")
    server.start()
    started_s = await until(server.is_healthy, "its start", STARTUP_S)
    client = fleet.client(FRANKFURT)

    def is_home_again() -> bool:
        raw = client.completions.with_raw_response.create(model=MODEL, prompt="Hello", max_tokens=2)
        return raw.headers["x-gslb-region"] == "eu"

    used_s = await until(is_home_again, "the restarted server to be used")
    figures.note("restarted server", f"healthy after {started_s:.0f} s, used {used_s:.1f} s later")


def has_both_kinds(fleet: Fleet, load: Load, region: str) -> bool:
    """True when a loss of the region would cut a stream and hit at least three requests without content."""
    streaming = load.streaming_from(region)
    return streaming >= 1 and fleet.gslb.in_flight(region) - streaming >= 3


def served(load: Load, region: str) -> int:
    """Requests answered whole by a region."""
    return sum(outcome.region == region and outcome.ended_s > 0 and not outcome.error for outcome in load.outcomes)


def served_since(load: Load, moment_s: float) -> int:
    """Requests begun after a moment and answered whole."""
    return sum(outcome.ended_s > 0 and not outcome.error for outcome in load.begun_after(moment_s))


def note_loss(load: Load, killed_s: float, figures: Figures) -> None:
    """The figures of the loss."""
    cut = [outcome for outcome in load.outcomes if outcome.is_cut]
    at_loss = [outcome for outcome in load.outcomes if outcome.begun_s < killed_s < outcome.ended_s]
    moved = [outcome for outcome in at_loss if outcome.attempts > 1]
    figures.note(
        "killed under load",
        f"{len(load.outcomes)} requests, {len(at_loss)} open at the kill, {len(cut)} cut mid-stream",
    )
    figures.note(
        "  failed over before content", f"{len(moved)}, failed without content {len(load.failed_without_content)}"
    )
    figures.note("  begun after the kill", f"{len(load.begun_after(killed_s))}, of them failed "
                 f"{sum(outcome.error is not None for outcome in load.begun_after(killed_s))}")  # fmt: skip
    for outcome in cut:
        figures.note("  a cut stream's error", str(outcome.error)[:120])
