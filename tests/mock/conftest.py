"""Mocks that are gone when the test is."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.mock.mocks import Mocks


@pytest.fixture
async def mocks() -> AsyncIterator[Mocks]:
    """Call it with settings for a running mock; all of them die with the test."""
    made = Mocks()
    yield made
    for mock in made.running:
        mock.kill()
