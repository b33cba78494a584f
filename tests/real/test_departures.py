"""A client that leaves frees its place in the engine: mid-stream, while the prompt is read, and in the queue."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from openai import AsyncOpenAI, AsyncStream
from openai.types import Completion

from tests.real.fleet import Figures, Fleet, until
from tests.real.processes import MODEL, SLOTS, VllmServer

LIMIT_S = 1.0
LONG = 4000
"""Tokens of an answer that takes half a minute here."""
TIMES = 3


async def open_stream(client: AsyncOpenAI, prompt: str = "Hello") -> AsyncStream[Completion]:
    """A long stream; returns once its headers are here."""
    return await client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=LONG, stream=True, extra_body={"ignore_eos": True}
    )


async def read(stream: AsyncStream[Completion], events: int) -> None:
    """Take this many events."""
    for _ in range(events):
        await anext(stream)


async def falls_to(server: VllmServer, gauge: str, value: int) -> float:
    """Seconds until the gauge of the server itself is down to `value`."""
    return await until(lambda: server.gauge(gauge) <= value, f"{gauge} to fall to {value}")


@asynccontextmanager
async def idle_server(fleet: Fleet, region: str = "eu") -> AsyncIterator[VllmServer]:
    """The region's server while it runs nothing, before and after."""
    server = fleet.servers[region]
    await until(lambda: server.gauge("num_requests_running") == 0, "an idle server")
    yield server
    await until(lambda: server.gauge("num_requests_running") == 0, "an idle server")


def note(figures: Figures, topic: str, took_s: list[float]) -> None:
    """Print the times and hold the slowest to the limit."""
    figures.note(f"left {topic}: gauge fell after", ", ".join(f"{took * 1000:.0f} ms" for took in took_s))
    assert max(took_s) <= LIMIT_S


async def test_leaving_mid_stream_frees_the_slot(fleet: Fleet, figures: Figures) -> None:
    took_s = []
    async with idle_server(fleet) as server, fleet.async_client(pinned="eu") as client:
        for _ in range(TIMES):
            stream = await open_stream(client)
            await read(stream, 5)
            await until(lambda: server.gauge("num_requests_running") == 1, "the stream to run")
            await stream.close()
            took_s.append(await falls_to(server, "num_requests_running", 0))
            record = await asyncio.to_thread(fleet.gslb.record, stream.response.headers["x-request-id"])
            assert record["outcome"] == "client_gone"
    note(figures, "mid-stream", took_s)


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "json"])
async def test_leaving_before_the_first_token_frees_the_slot(
    fleet: Fleet, figures: Figures, is_stream: bool
) -> None:
    took_s = []
    async with idle_server(fleet) as server, fleet.async_client(pinned="eu") as client:
        for turn in range(TIMES):
            # Another prompt each time, or the prefix cache would answer for the prefill.
            prompt = f"{turn} {is_stream} {time.time()}" + " lazy dog" * 1500
            asked = asyncio.create_task(open_stream(client, prompt) if is_stream else whole(client, prompt))
            await until(lambda: server.gauge("num_requests_running") == 1, "the prompt to be read")
            assert not asked.done(), "gslb holds the head until there is content"
            asked.cancel()
            took_s.append(await falls_to(server, "num_requests_running", 0))
    note(figures, "in prefill" if is_stream else "waiting for JSON", took_s)


async def whole(client: AsyncOpenAI, prompt: str) -> Completion:
    """A long answer in one piece."""
    return await client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=LONG, extra_body={"ignore_eos": True}
    )


async def test_leaving_the_queue_leaves_the_others_running(fleet: Fleet, figures: Figures) -> None:
    async with idle_server(fleet) as server, fleet.async_client(pinned="eu") as client:
        running = [await open_stream(client) for _ in range(SLOTS)]
        queued = [asyncio.create_task(open_stream(client)) for _ in range(2)]
        await until(lambda: server.gauge("num_requests_waiting") == 2, "two to queue")
        for task in queued:
            task.cancel()
        took_s = await falls_to(server, "num_requests_waiting", 0)
        assert server.gauge("num_requests_running") == SLOTS
        for stream in running:
            await read(stream, 5)
            await stream.close()
        freed_s = await falls_to(server, "num_requests_running", 0)
    note(figures, "the queue", [took_s])
    note(figures, f"mid-stream, {SLOTS} at once", [freed_s])
