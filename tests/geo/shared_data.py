"""The data set beside the checkout, for the tests that want it. The rest of the suite does not need it."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"

needs_network_tables = pytest.mark.skipif(not (SHARED / "network").is_dir(), reason="no ../shared/data/network")
needs_test_databases = pytest.mark.skipif(not (SHARED / "geoip").is_dir(), reason="no ../shared/data/geoip")


def rows(name: str) -> list[dict[str, str]]:
    """The rows of a CSV file of the data set."""
    with (SHARED / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
