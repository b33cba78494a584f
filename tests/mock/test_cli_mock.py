"""`mock-vllm` as a process: its one line, its options, its end."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator

import pytest
from click.testing import CliRunner

from gslb.cli_mock import mock_vllm
from tests.mock.mocks import STREAM, ask_bytes
from tests.mock.raw import RawClient, get, post


class Processes:
    """Starts `mock-vllm` processes; none outlives its test, whatever comes of that."""

    def __init__(self) -> None:
        self.started: list[Process] = []

    async def spawn(self, *options: str) -> Process:
        """`mock-vllm` with `options`."""
        code = "from gslb.cli_mock import mock_vllm; mock_vllm()"
        command = (sys.executable, "-c", code, "--model", "m", *options)
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
        self.started.append(process)
        return process

    async def start(self, *options: str) -> tuple[Process, int]:
        """A running `mock-vllm` and its port."""
        process = await self.spawn(*options)
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), 20)).decode()
        assert line.startswith("mock-vllm ready on http://127.0.0.1:"), line
        return process, int(line.rsplit(":", 1)[1])


@pytest.fixture
async def processes() -> AsyncIterator[Processes]:
    made = Processes()
    yield made
    for process in made.started:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def code_of(process: Process) -> int:
    return await asyncio.wait_for(process.wait(), 10)


async def test_process_serves_and_ends_cleanly_on_sigterm(processes: Processes) -> None:
    process, port = await processes.start(
        "--identity", "eu-1", "--lora", "ad-1", "--fault", '{"status":503,"count":1}'
    )
    document = {**STREAM, "stream": False}
    assert (await post(port, "/v1/completions", document)).status == 503
    answer = await post(port, "/v1/completions", document)
    assert answer.json["choices"][0]["text"].startswith("eu-1 ")
    ids = [card["id"] for card in (await get(port, "/v1/models")).json["data"]]
    assert ids == ["m", "ad-1"]
    process.send_signal(signal.SIGTERM)
    assert await code_of(process) == 0


async def test_sigterm_with_defaults_waits_for_silent_clients_to_leave(processes: Processes) -> None:
    process, port = await processes.start("--itl-ms", "3600000")
    client = await RawClient.connect(port)
    await client.send(ask_bytes(STREAM))
    await client.read_until(b"data: ")
    process.send_signal(signal.SIGTERM)
    client.reader._buffer.clear()  # type: ignore[attr-defined]
    assert await client.is_silent_for(0.3)
    assert process.returncode is None
    client.close()
    assert await code_of(process) == 0


async def test_sigterm_with_a_shutdown_timeout_lets_a_stream_finish(processes: Processes) -> None:
    process, port = await processes.start("--itl-ms", "10", "--shutdown-timeout", "20")
    client = await RawClient.connect(port)
    await client.send(ask_bytes({**STREAM, "max_tokens": 30}))
    await client.read_until(b"data: ")
    process.send_signal(signal.SIGTERM)
    raw, _ = await client.read_to_end()
    assert raw.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert await code_of(process) == 0


async def test_sigint_ends_at_once(processes: Processes) -> None:
    process, port = await processes.start("--itl-ms", "3600000")
    client = await RawClient.connect(port)
    await client.send(ask_bytes(STREAM))
    await client.read_until(b"data: ")
    process.send_signal(signal.SIGINT)
    assert await code_of(process) == 0


async def test_port_in_use_is_said_plainly(processes: Processes) -> None:
    process, port = await processes.start()
    second = await processes.spawn("--port", str(port))
    assert await code_of(second) == 1
    assert second.stderr is not None
    assert f"Error: cannot listen on 127.0.0.1:{port}: " in (await second.stderr.read()).decode()
    process.send_signal(signal.SIGTERM)
    assert await code_of(process) == 0


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--wan", "10.0.0.0/8"], "is not CIDR=MS"),
        (["--wan", "10.0.0.0/99=5"], "is not an address range"),
        (["--wan-default-ms", "-3"], "wan_default_ms"),
        (["--slots", "0"], "slots: must be at least 1"),
        (["--slots", "many"], "--slots"),
        (["--port", "70000"], "--port"),
        (["--fault", "{"], "--fault"),
        (["--fault", json.dumps({"hagn": True})], "did you mean 'hang'"),
        (["--metrics-dialect", "x"], "--metrics-dialect"),
    ],
)
def test_wrong_option_is_told(options: list[str], complaint: str) -> None:
    result = CliRunner().invoke(mock_vllm, options)
    assert result.exit_code == 2
    assert complaint in result.output
