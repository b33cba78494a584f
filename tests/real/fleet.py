"""The fleet under test: two regions, and the figures a run prints."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI, OpenAI

from tests.real.processes import STARTUP_S, Gslb, VllmServer

LOCATIONS = {"eu": "aws:eu-central-1", "us": "aws:us-east-1"}
FRANKFURT, NEW_YORK = "192.0.2.7", "198.51.100.7"
"""Client addresses that gslb's configuration places there: home region eu, home region us."""


async def until(condition: Callable[[], object], what: str, deadline_s: float = 30.0) -> float:
    """Wait for `condition()` and return how long it took, in seconds. Raises TimeoutError naming `what`."""
    begun_s = time.monotonic()
    while not await asyncio.to_thread(condition):
        if time.monotonic() - begun_s > deadline_s:
            raise TimeoutError(f"not within {deadline_s:g} s: {what}")
        await asyncio.sleep(0.01)
    return time.monotonic() - begun_s


@dataclass
class Figures:
    """What a run measured, printed at its end."""

    lines: list[str] = field(default_factory=list)

    def note(self, topic: str, text: str) -> None:
        """Add one line."""
        self.lines.append(f"{topic:<34} {text}")


class Fleet:
    """gslb in front of one real vLLM per region."""

    def __init__(self, root: Path, command: str, logs: Path) -> None:
        self.servers = {region: VllmServer(region, root, logs) for region in LOCATIONS}
        endpoints = {region: server.url for region, server in self.servers.items()}
        self.gslb = Gslb(command, endpoints, LOCATIONS, logs)

    def start(self) -> float:
        """Start all, the servers after gslb so that it has to notice them; returns the seconds until ready."""
        self.gslb.start()
        return self.make_whole()

    def make_whole(self) -> float:
        """Start servers that have ended; returns the seconds until gslb uses all. Raises TimeoutError."""
        begun_s = time.monotonic()
        for server in self.servers.values():
            if not server.is_alive:
                server.kill()
                server.start()
        while set(self.gslb.states().values()) != {"admitting"}:
            self.gslb.check()
            for server in self.servers.values():
                server.check()
            if time.monotonic() - begun_s > STARTUP_S:
                raise TimeoutError(f"not ready after {STARTUP_S:g} s: {self.gslb.states()}")
            time.sleep(0.25)
        return time.monotonic() - begun_s

    def stop(self) -> int:
        """End all; returns gslb's exit code after a polite SIGTERM."""
        for server in self.servers.values():
            server.kill()
        if not self.gslb.is_alive:
            return -1
        self.gslb.terminate()
        try:
            return self.gslb.wait(15)
        finally:
            self.gslb.kill()

    def client(self, address: str = FRANKFURT, pinned: str = "") -> OpenAI:
        """The official client at `address`, without retries of its own; `pinned` to a region if named."""
        return OpenAI(**self._client_options(address, pinned))

    def async_client(self, address: str = FRANKFURT, pinned: str = "") -> AsyncOpenAI:
        """The same, for asyncio."""
        return AsyncOpenAI(**self._client_options(address, pinned))

    def _client_options(self, address: str, pinned: str) -> dict[str, Any]:
        return {
            "base_url": f"{self.gslb.url}/v1",
            "api_key": "unused",
            "max_retries": 0,
            "timeout": 120,
            "default_headers": headers_of(address, pinned),
        }


def headers_of(address: str, pinned: str = "") -> dict[str, str]:
    """Headers of a client at `address`, through the trusted proxy that this machine is."""
    return {"X-Forwarded-For": address, **({"x-gslb-region": pinned} if pinned else {})}
