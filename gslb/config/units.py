"""Durations, sizes and points in time as people write them in YAML, as pydantic types."""

from __future__ import annotations

import math
import re
from datetime import datetime
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationInfo, WithJsonSchema

DURATION_PATTERN = r"^\d+(\.\d+)?\s*(ms|s|m|h)$"
SIZE_PATTERN = r"^\d+\s*(B|KB|MB|GB|KiB|MiB|GiB)?$"

_DURATION = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*(ms|s|m|h)")
_DURATION_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZE = re.compile(r"([0-9]{1,15})\s*(B|KB|MB|GB|KiB|MiB|GiB)?")
_SIZE_BYTES = {
    None: 1, "B": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3,
}  # fmt: skip
_LONGEST_S = 366 * 86_400.0
_LARGEST_BYTES = 1024**4


def parse_duration_s(value: Any) -> float:
    """Seconds from `300ms`, `5s`, `2m`, `1h`; a float already means seconds (in code; YAML may not).

    Raises ValueError when the unit is missing, the text is no duration, or it is longer than 366 days.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("expected a duration such as 300ms, 5s, 2m or 1h")
    if isinstance(value, float):
        return value
    if isinstance(value, int):
        raise ValueError(f"a duration needs a unit: write {value}s or {value}ms")
    match = _DURATION.fullmatch(value)
    if match is None:
        raise ValueError(f"{value[:40]!r} is no duration: write for example 300ms, 5s, 2m or 1h")
    duration_s = float(match[1]) * _DURATION_S[match[2]]
    if duration_s > _LONGEST_S:
        raise ValueError(f"{value!r} is longer than a year")
    return duration_s


def format_duration(duration_s: float) -> str:
    """The shortest text that `parse_duration_s` reads back as `duration_s`: 0.012 -> `12ms`, 2.0 -> `2s`."""
    if duration_s == 0 or duration_s >= 1:
        return f"{duration_s:.12g}s"
    milliseconds = f"{duration_s * 1000:.12f}".rstrip("0").rstrip(".")
    return f"{milliseconds}ms"


def parse_size_bytes(value: Any) -> int:
    """Bytes from `32KiB`, `1MiB`, `500KB` or a plain number of bytes.

    Raises ValueError for anything else and above 1 TiB.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("expected a size such as 32KiB or 1MiB, or a whole number of bytes")
    if isinstance(value, str):
        match = _SIZE.fullmatch(value)
        if match is None:
            raise ValueError(f"{value[:40]!r} is no size: write for example 32KiB or 1MiB")
        value = int(match[1]) * _SIZE_BYTES[match[2]]
    if value > _LARGEST_BYTES:
        raise ValueError("larger than 1 TiB")
    return int(value)


def parse_time_s(text: str) -> float:
    """Unix seconds from an ISO 8601 date-time with its offset, such as `2027-01-01T00:00:00Z`.

    Raises ValueError for any other text; without an offset the same text would mean another instant on
    another machine.
    """
    hint = "write date, time and offset, for example 2027-01-01T00:00:00Z"
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError(f"{text!r} names no time zone: {hint}")
        return moment.timestamp()
    except (ValueError, OverflowError) as error:
        if "time zone" in str(error):
            raise
        raise ValueError(f"{text[:40]!r} is no ISO date-time: {hint}") from None


def _duration(value: Any, info: ValidationInfo) -> float:
    """In a file (validation context `from_file`) a number lacks its unit; in code a float means seconds."""
    if info.context and info.context.get("from_file") and isinstance(value, float):
        shown = f"{value:g}" if math.isfinite(value) else "5"
        raise ValueError(f"a duration needs a unit: write {shown}s or {shown}ms")
    return parse_duration_s(value)


Duration = Annotated[
    float,
    BeforeValidator(_duration),
    Field(ge=0),
    WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN}),
]
"""Seconds as float, written with a unit."""

PositiveDuration = Annotated[
    float,
    BeforeValidator(_duration),
    Field(gt=0),
    WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN}),
]
"""As Duration, but nothing happens "every 0 s" or "after 0 s" without harm."""

Size = Annotated[
    int,
    BeforeValidator(parse_size_bytes),
    Field(ge=0),
    WithJsonSchema({"type": ["string", "integer"], "pattern": SIZE_PATTERN, "minimum": 0}),
]
"""Bytes as int, written with or without a unit."""
