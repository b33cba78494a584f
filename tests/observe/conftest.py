"""Upstreams and observers that end with their test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from gslb.clock import Clock
from gslb.counters import Counters
from gslb.observe.observer import Observer
from gslb.routing.view import FleetView
from tests.observe.upstream import Settings, Upstream

MakeUpstream = Callable[[], Awaitable[Upstream]]
Observe = Callable[..., Observer]


@pytest.fixture
async def make_upstream() -> AsyncIterator[MakeUpstream]:
    async with AsyncExitStack() as stack:

        async def make() -> Upstream:
            upstream = Upstream()
            await upstream.start()
            stack.push_async_callback(upstream.stop)
            return upstream

        yield make


@pytest.fixture
def counters() -> Counters:
    return Counters()


@pytest.fixture
async def observe(counters: Counters) -> AsyncIterator[Observe]:
    async with AsyncExitStack() as stack:

        def start(fleet: FleetView, settings: Settings, clock: Clock | None = None) -> Observer:
            observer = Observer(fleet, settings, counters, clock)
            observer.start()
            stack.push_async_callback(observer.stop)
            return observer

        yield start
