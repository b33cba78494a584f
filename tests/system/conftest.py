"""Upstreams and edges that end with their test."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from gslb.mock.settings import MockSettings
from gslb.mock.vllm import MockVllm
from tests.support.authority import Authority
from tests.support.edge import RunningEdge, config_of, running_edge
from tests.support.raw_upstream import RawUpstream, Script
from tests.system.tls import LOCALHOST, section

MakeUpstream = Callable[..., Awaitable[RawUpstream]]
MakeMock = Callable[..., Awaitable[MockVllm]]
MakeEdge = Callable[..., Awaitable[RunningEdge]]


@pytest.fixture
async def upstream() -> AsyncIterator[MakeUpstream]:
    """Call it with scripts for a listening scripted upstream."""
    made: list[RawUpstream] = []

    async def make(*scripts: Script, tls: ssl.SSLContext | None = None, **more: Any) -> RawUpstream:
        one = RawUpstream(*scripts, **more)
        one.tls = tls
        await one.start()
        made.append(one)
        return one

    yield make
    for one in made:
        one.stop()


@pytest.fixture
async def mock() -> AsyncIterator[MakeMock]:
    """Call it with settings for a running mock vLLM."""
    made: list[MockVllm] = []

    async def make(**settings: Any) -> MockVllm:
        plain: dict[str, Any] = {"models": ["m"], "itl_ms": 1.0, "prefill_ms_per_token": 0.0}
        one = MockVllm(MockSettings(**{**plain, **settings}))
        await one.start()
        made.append(one)
        return one

    yield make
    for one in made:
        one.kill()


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Who signs the certificates of these tests."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def localhost(authority: Authority) -> tuple[Path, Path]:
    """A certificate for this machine and its key."""
    return authority.issue(*LOCALHOST)


@pytest.fixture
async def secure_edge(edge: MakeEdge, authority: Authority, localhost: tuple[Path, Path]) -> MakeEdge:
    """As `edge`, over TLS: its clients trust the authority alone."""

    async def start(fleet: Mapping[str, Any], *args: Any, **sections: Any) -> RunningEdge:
        running = await edge(fleet, *args, **{"tls": section(localhost), **sections})
        running.tls = authority.trusting()
        return running

    return start


@pytest.fixture
async def edge(tmp_path: Path, upstream: MakeUpstream, mock: MakeMock) -> AsyncIterator[MakeEdge]:
    """Call it with a fleet (region -> upstreams) and config sections for a running edge."""
    async with AsyncExitStack() as stack:

        async def start(
            fleet: Mapping[str, Any], environ: Mapping[str, str] | None = None, **sections: Any
        ) -> RunningEdge:
            directory = Path(mkdtemp(dir=tmp_path, prefix="edge-"))
            return await stack.enter_async_context(running_edge(config_of(fleet, **sections), directory, environ))

        yield start
