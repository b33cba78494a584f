"""Every test runs on the loop that gslb runs on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loops that pytest-asyncio runs each test on: uvloop only."""
    return {"uvloop": uvloop.new_event_loop}
