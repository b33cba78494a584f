"""How a mock stops, dies, comes back and takes SIGTERM."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from gslb.mock.settings import MockSettings
from gslb.mock.vllm import MockVllm
from tests.mock.mocks import HOUR_MS, STREAM, Mocks, ask_bytes, is_refused
from tests.mock.raw import RawClient, get, post, request_bytes


async def test_stop_lets_the_running_finish_if_given_time(mocks: Mocks) -> None:
    mock = await mocks(itl_ms=5.0)
    task = asyncio.create_task(post(mock.port, "/v1/completions", {**STREAM, "max_tokens": 10}))
    await mock.wait_until(lambda: mock.driver.running == 1)
    await mock.stop(drain_s=10)
    assert (await task).is_complete
    assert await is_refused(mock.port)


async def test_stop_without_time_cuts_with_a_fin(mocks: Mocks) -> None:
    mock = await mocks(itl_ms=HOUR_MS)
    client = await RawClient.connect(mock.port)
    await client.send(ask_bytes(STREAM))
    await client.read_until(b"\r\n\r\n")
    await mock.stop()
    raw, is_reset = await client.read_to_end()
    assert not is_reset
    assert b"0\r\n\r\n" not in raw
    assert (mock.aborted, mock.driver.running) == (0, 0)


async def test_kill_resets_everything_and_restart_takes_the_same_port(mocks: Mocks) -> None:
    mock = await mocks(itl_ms=HOUR_MS)
    port = mock.port
    client = await RawClient.connect(port)
    await client.send(ask_bytes(STREAM))
    await client.read_until(b"\r\n\r\n")
    mock.kill()
    assert (await client.read_to_end())[1], "a reset, not an orderly end"
    assert not mock.is_listening
    assert await is_refused(port)
    await mock.restart()
    assert mock.port == port
    assert (await get(port, "/health")).status == 200
    assert mock.driver.running == 0
    assert b'generation_tokens_total{engine="0",model_name="m"} 0.0' in mock.metrics_text()


async def test_running_mock_is_not_started_twice(mocks: Mocks) -> None:
    mock = await mocks()
    with pytest.raises(RuntimeError, match="running already"):
        await mock.start()


async def test_sigterm_by_default_refuses_at_once_and_falls_silent(mocks: Mocks) -> None:
    mock = await mocks(itl_ms=5.0)
    busy, idle = await RawClient.connect(mock.port), await RawClient.connect(mock.port)
    await idle.send(request_bytes("GET", "/version", is_closing=False))
    await idle.read_response()
    await busy.send(ask_bytes({**STREAM, "max_tokens": 20}))
    await busy.read_until(b"data: ")
    ending = asyncio.create_task(mock.terminate())
    await mock.wait_until(lambda: not mock.is_listening)
    assert await is_refused(mock.port)
    assert await idle.read_to_end() == (b"", False)
    # The engine runs to its end, but not a byte of it is seen, nor a close.
    await mock.wait_until(lambda: mock.driver.running == 0)
    busy.reader._buffer.clear()  # type: ignore[attr-defined]
    assert await busy.is_silent_for(0.1)
    assert not ending.done()
    busy.close()
    await asyncio.wait_for(ending, 5)


async def test_sigterm_with_a_timeout_lets_the_running_finish(mocks: Mocks) -> None:
    mock = await mocks(itl_ms=5.0, shutdown_timeout_s=30.0)
    task = asyncio.create_task(post(mock.port, "/v1/completions", {**STREAM, "max_tokens": 20}))
    await mock.wait_until(lambda: mock.driver.running == 1)
    await asyncio.wait_for(mock.terminate(), 10)
    assert (await task).is_complete
    assert not mock.is_listening


async def test_sigterm_with_a_timeout_does_not_wait_longer(mocks: Mocks) -> None:
    mock = await mocks(itl_ms=HOUR_MS, shutdown_timeout_s=0.05)
    client = await RawClient.connect(mock.port)
    await client.send(ask_bytes(STREAM))
    await client.read_until(b"\r\n\r\n")
    await asyncio.wait_for(mock.terminate(), 10)
    assert not (await client.read_to_end())[0].endswith(b"0\r\n\r\n")


async def test_uvloop_resets_and_restarts_as_well() -> None:
    async def scene() -> None:
        mock = MockVllm(MockSettings(models=["m"], itl_ms=HOUR_MS))
        await mock.start()
        client = await RawClient.connect(mock.port)
        await client.send(ask_bytes(STREAM))
        await client.read_until(b"\r\n\r\n")
        mock.kill()
        assert (await client.read_to_end())[1]
        await mock.restart()
        assert (await get(mock.port, "/health")).status == 200
        await mock.stop()

    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(scene())

    await asyncio.to_thread(run)
