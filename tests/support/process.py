"""`gslb serve` as real processes, for what only several of them show."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

import gslb
from tests.support.edge import ADMIN_TOKEN
from tests.support.raw_client import Answer, RawClient, request, until

ROOT = Path(gslb.__file__).resolve().parents[1]
"""Where this process has its gslb from: the same is tested in others, compiled or not."""
START_S = 60.0
"""Interpreters start slowly on a busy machine."""


def free_port() -> int:
    """A loopback port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_alive(pid: int) -> bool:
    """True while the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children_of(pid: int) -> list[int]:
    """The pids of a process's children; none when it has ended."""
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return []


def open_files_of(pid: int) -> Iterator[str]:
    """What a process's descriptors stand for."""
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            yield os.readlink(descriptor)


class GslbProcess:
    """One `gslb serve`. `config` has the ports; the access log goes to `log_path` unless it says otherwise."""

    def __init__(
        self, config: Mapping[str, Any], directory: Path, name: str = "gslb", arguments: Sequence[str] = ()
    ) -> None:
        self._arguments = arguments
        self.config_path = directory / f"{name}.yaml"
        self.log_path = directory / "access.log"
        self.output_path = directory / f"{name}.out"
        self.port = int(config["listen"].rpartition(":")[2])
        self.admin_port = int(config["admin"]["listen"].rpartition(":")[2])
        self.process: asyncio.subprocess.Process | None = None
        self.write_config(config)

    def write_config(self, config: Mapping[str, Any] | str) -> None:
        """Put a configuration in the file, without telling anybody."""
        if not isinstance(config, str):
            config = yaml.safe_dump({"observability": {"access_log": str(self.log_path)}, **config})
        self.config_path.write_text(config)

    async def spawn(self, **streams: Any) -> None:
        """Start it."""
        with self.output_path.open("ab") as output:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", "from gslb.cli import main; main()", "serve", "-c", str(self.config_path),
                *self._arguments,
                stdin=asyncio.subprocess.DEVNULL, stderr=output, cwd=self.config_path.parent,
                env={**os.environ, "PYTHONPATH": str(ROOT), "ADMIN_TOKEN": ADMIN_TOKEN},
                **{"stdout": output, **streams},
            )  # fmt: skip

    async def start(self) -> None:
        """Start it and wait until it is ready."""
        await self.spawn()
        await self.until_said("listening on")

    async def until_said(self, text: str, times: int = 1) -> None:
        """Wait until its own log has `text`."""
        assert self.process is not None

        def has_said() -> bool:
            assert self.process is not None
            assert self.process.returncode is None, self.said()
            return self.said().count(text) >= times

        await until(has_said, f"{text!r} in {self.said()}", START_S)

    def said(self) -> str:
        """Its own log so far."""
        return self.output_path.read_text(errors="replace")

    @property
    def pid(self) -> int:
        """Of the process started: the supervisor, where there is one."""
        assert self.process is not None
        return self.process.pid

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it, and to none of its workers."""
        assert self.process is not None
        self.process.send_signal(number)

    async def ended(self, deadline_s: float = START_S) -> int:
        """Its exit code, once it has ended."""
        assert self.process is not None
        return await asyncio.wait_for(self.process.wait(), deadline_s)

    async def admin(self, path: str, body: bytes | None = None) -> Answer:
        """A GET, or with a body a POST with the token."""
        client = await RawClient.connect(self.admin_port)
        try:
            if body is None:
                return await client.ask(request(method="GET", path=path))
            fields = (("Authorization", f"Bearer {ADMIN_TOKEN}"),)
            return await client.ask(request(body, path=path, fields=fields))
        finally:
            client.close()

    async def status(self) -> Any:
        """The status document."""
        return (await self.admin("/api/v1/status")).json

    async def workers(self) -> list[int]:
        """Pids of the workers that live and listen."""
        told = (await self.status())["edge"]["workers"]
        return [worker["pid"] for worker in told if worker["is_listening"] and is_alive(worker["pid"])]

    async def in_flight(self) -> int:
        """Requests under way at all endpoints together."""
        status = await self.status()
        return sum(endpoint["in_flight"] for region in status["regions"] for endpoint in region["endpoints"])

    async def metric(self, name: str) -> float:
        """The sum over all series of a metric."""
        page = bytes((await self.admin("/metrics")).body).decode()
        lines = [line for line in page.splitlines() if line.split("{")[0].split(" ")[0] == name]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def records(self) -> list[dict[str, Any]]:
        """The access log's lines so far; each must be whole."""
        if not self.log_path.exists():
            return []
        return [json.loads(line) for line in self.log_path.read_text().splitlines()]

    async def stop(self) -> None:
        """End it and all its workers, however they are."""
        if self.process is None:
            return
        for pid in (self.pid, *children_of(self.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await self.process.wait()


async def worker_of(client: RawClient, pids: list[int]) -> int:
    """The worker that has accepted a connection, by the inode of its socket in /proc."""
    assert client.transport is not None
    (_, port) = client.transport.get_extra_info("sockname")
    inodes: set[str] = set()

    def is_accepted() -> bool:
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if int(fields[2].rpartition(":")[2], 16) == port and fields[9] != "0":
                inodes.add(f"socket:[{fields[9]}]")
        return bool(inodes)

    await until(is_accepted, "an accepted connection")
    return next(pid for pid in pids if inodes & set(open_files_of(pid)))
