"""An edge to ask."""

from __future__ import annotations

import pytest

from tests.admin.edge import Edge


@pytest.fixture
def edge() -> Edge:
    """One that knows its endpoints' models."""
    edge = Edge()
    edge.learn()
    return edge
