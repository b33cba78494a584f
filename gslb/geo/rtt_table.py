"""Round trips between regions as somebody measured them, from a CSV table."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping

COLUMNS = ("from_region", "to_region", "p50_rtt_ms")

RttTable = Mapping[tuple[str, str], float]
"""(from, to) -> round trip in ms."""


def read_rtt_table(lines: Iterable[str], filename: str) -> RttTable:
    """The table in a CSV file with (at least) the columns from_region, to_region and p50_rtt_ms.

    Raises ValueError as `FILE:LINE: COLUMN: MESSAGE` for a missing column, a value that is no round trip, and a
    table without rows.
    """
    rows = csv.DictReader(lines)
    missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
    if missing:
        raise ValueError(f"{filename}:1: a table of round trips needs the columns {', '.join(COLUMNS)}")
    table: dict[tuple[str, str], float] = {}
    for row in rows:
        text = row["p50_rtt_ms"]
        try:
            rtt_ms = float(text)
        except (TypeError, ValueError):
            rtt_ms = math.nan
        if not 0 <= rtt_ms < 60_000:
            raise ValueError(f"{filename}:{rows.line_num}: p50_rtt_ms: {text!r} is no round trip in ms")
        table[row["from_region"], row["to_region"]] = rtt_ms
    if not table:
        raise ValueError(f"{filename}: the table has no rows")
    return table


def region_in_table(location: str) -> str:
    """The name by which a table knows the region at `location`: `aws:eu-central-1` is eu-central-1 there."""
    return location.strip().rpartition(":")[2].strip()


def round_trip_ms(table: RttTable, a: str, b: str) -> float | None:
    """What the table says of two regions, if need be of the other direction."""
    return table.get((a, b), table.get((b, a)))
