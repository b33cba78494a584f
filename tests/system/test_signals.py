"""`gslb serve` as a process: signals and exit codes. FC-29 f (SIGHUP), FC-30 (first start), FC-39 (the end)."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.edge import config_of
from tests.support.raw_client import Answer, RawClient, chat, request, until
from tests.support.raw_upstream import DONE, LAST, SSE_HEAD, RawUpstream, chunk, event
from tests.system.conftest import MakeUpstream

STREAM = request(chat(stream=True))
START_S = 60.0
SIGNALS = [signal.SIGTERM, signal.SIGINT]


def free_port() -> int:
    """A port of loopback that nobody has."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Served:
    """One `gslb serve` process and what it leaves behind."""

    def __init__(self, directory: Path) -> None:
        self.config_path = directory / "gslb.yaml"
        self.log_path = directory / "access.log"
        self.port, self.admin_port = free_port(), free_port()
        self.process: Process | None = None
        self.clients: list[RawClient] = []

    def write(self, fleet: dict[str, Any], **sections: Any) -> None:
        """The configuration, with this process's ports."""
        config = {
            **config_of(fleet, **sections),
            "listen": f"127.0.0.1:{self.port}",
            "admin": f"127.0.0.1:{self.admin_port}",
            "observability": {"access_log": str(self.log_path)},
        }
        self.config_path.write_text(yaml.safe_dump(config))

    async def spawn(self) -> Process:
        """Start the process, without waiting for anything."""
        command = (sys.executable, "-m", "gslb.cli", "serve", "-c", str(self.config_path))
        self.process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
        return self.process

    async def start(self) -> Process:
        """Start it and wait until it listens."""
        process = await self.spawn()
        await self.listens(self.port)
        return process

    async def listens(self, port: int) -> None:
        """Wait until somebody listens on `port`."""
        assert self.process is not None
        async with asyncio.timeout(START_S):
            while True:
                try:
                    (await RawClient.connect(port)).close()
                except OSError:
                    assert self.process.returncode is None, await self.end()
                    await asyncio.sleep(0.02)
                else:
                    return

    async def send(self, raw: bytes) -> tuple[RawClient, Answer]:
        client = await RawClient.connect(self.port)
        self.clients.append(client)
        return client, client.send(raw)

    async def status(self) -> dict[str, Any]:
        client = await RawClient.connect(self.admin_port)
        found = await client.ask(request(method="GET", path="/api/v1/status"))
        client.close()
        status: dict[str, Any] = found.json
        return status

    async def end(self) -> tuple[int, str]:
        """Wait for the end; the exit code and what it said."""
        assert self.process is not None
        _, errors = await asyncio.wait_for(self.process.communicate(), START_S)
        assert self.process.returncode is not None
        return self.process.returncode, errors.decode()

    def outcomes(self) -> list[str]:
        return [json.loads(line)["outcome"] for line in self.log_path.read_text().splitlines()]


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    """A process that does not outlive its test."""
    one = Served(tmp_path)
    yield one
    for client in one.clients:
        client.close()
    if one.process is not None and one.process.returncode is None:
        one.process.kill()
        await one.process.wait()


async def streaming(served: Served, one: RawUpstream, *rest: Any) -> tuple[RawClient, Answer]:
    """A stream that has shown its first event."""
    one.scripts.append([SSE_HEAD + chunk(event("A")), *rest])
    client, found = await served.send(STREAM)
    await until(lambda: found.body)
    return client, found


@pytest.mark.parametrize("number", SIGNALS)
async def test_fc39_what_runs_ends_whole_and_the_process_with_0(
    number: signal.Signals, served: Served, upstream: MakeUpstream
) -> None:
    """FC-39: a stream that ends within the grace is whole, idle connections close, one record each, code 0."""
    one, gate = await upstream(), asyncio.Event()
    served.write({"eu": [one]}, timeouts={"grace": "10s"})
    process = await served.start()
    idle, listed = await served.send(request(method="GET", path="/v1/models"))
    await idle.whole(listed)
    client, found = await streaming(served, one, gate, chunk(DONE) + LAST)
    process.send_signal(number)
    assert await idle.end() == "fin"
    gate.set()
    assert (await client.whole(found)).body == event("A") + DONE
    code, errors = await served.end()
    assert (code, served.outcomes()) == (0, ["ok", "ok"])
    assert "Traceback" not in errors


async def test_fc39_an_endless_stream_ends_with_the_grace(served: Served, upstream: MakeUpstream) -> None:
    """FC-39: at the end of the grace it is cut so that it does not look complete; the code is 0 all the same."""
    one = await upstream()
    served.write({"eu": [one]}, timeouts={"grace": "500ms"})
    process = await served.start()
    client, found = await streaming(served, one, "hang")
    process.send_signal(signal.SIGTERM)
    await client.end()
    assert not found.is_complete
    assert b"[DONE]" not in found.body
    assert found.body.count(b'"error"') == 1
    code, _ = await served.end()
    assert (code, served.outcomes()) == (0, ["upstream_truncated"])
    await until(lambda: one.asked[0].ended or one.asked[0].is_closed, "the upstream to be let go")


@pytest.mark.parametrize("number", SIGNALS)
async def test_fc39_a_second_signal_ends_at_once_with_1(
    number: signal.Signals, served: Served, upstream: MakeUpstream
) -> None:
    """FC-39 (choice): whoever asks twice does not wait for the grace; two within 10 ms may count as one."""
    one = await upstream()
    served.write({"eu": [one]}, timeouts={"grace": "1h"})
    process = await served.start()
    await streaming(served, one, "hang")
    while process.returncode is None:
        process.send_signal(number)
        await asyncio.sleep(0.05)
    assert (await served.end())[0] == 1


async def test_fc39_a_signal_during_the_start_ends_the_start(served: Served, upstream: MakeUpstream) -> None:
    """FC-39: asked to stop before it listens to clients, it stops cleanly."""
    one = await upstream()
    one.page = lambda _path: b""  # type: ignore[method-assign] # no probe is answered: the first round takes long
    served.write({"eu": [one]}, health={"interval": "1h", "timeout": "1h"})
    process = await served.spawn()
    await served.listens(served.admin_port)
    process.send_signal(signal.SIGTERM)
    code, errors = await served.end()
    assert code == 0
    assert "Traceback" not in errors


async def test_fc29_f_sighup_reads_the_file_again(served: Served, upstream: MakeUpstream) -> None:
    """FC-29 f: without any watcher; FC-30: a wrong file changes nothing and is told."""
    eu, us = await upstream(), await upstream()
    served.write({"eu": [eu]})
    process = await served.start()
    assert (await served.status())["generation"] == 1
    good = served.config_path.read_text()
    served.config_path.write_text(good.replace("listen:", "lisen:", 1))
    process.send_signal(signal.SIGHUP)
    while (await served.status())["reload_failures"] == 0:  # noqa: ASYNC110 - asked of the process
        await asyncio.sleep(0.02)
    status = await served.status()
    assert (status["generation"], [region["name"] for region in status["regions"]]) == (1, ["eu"])
    client, found = await served.send(request(chat()))
    assert (await client.whole(found)).one("x-gslb-region") == "eu"
    served.write({"us": [us]})
    process.send_signal(signal.SIGHUP)
    while (await served.status())["generation"] == 1:  # noqa: ASYNC110 - asked of the process
        await asyncio.sleep(0.02)
    assert [region["name"] for region in (await served.status())["regions"]] == ["us"]
    process.send_signal(signal.SIGTERM)
    code, errors = await served.end()
    assert code == 0
    assert "reload refused" in errors
    assert "did you mean" in errors


@pytest.mark.parametrize("text", ["", "regions: [", "regions: {}\n", "listen: 127.0.0.1:0\nlisten: 127.0.0.1:0\n"])
async def test_fc30_a_wrong_file_at_the_first_start_is_an_exit_code(text: str, served: Served) -> None:
    """FC-30: a non-zero code, and only then; what is wrong is told with its place."""
    served.config_path.write_text(text)
    await served.spawn()
    code, errors = await served.end()
    assert code == 1
    assert f"{served.config_path}:" in errors
    assert "Traceback" not in errors


async def test_fc30_an_unreadable_file_too(served: Served) -> None:
    """FC-30: no file at all."""
    await served.spawn()
    code, errors = await served.end()
    assert code == 1
    assert "cannot be read" in errors
