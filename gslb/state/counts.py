"""Counters as messages, and their sums: what one worker counted, told to the supervisor and added up there."""

from __future__ import annotations

from typing import Any

from gslb.counters import Counters, Histogram

GAUGES = ("open_connections", "open_exchanges", "buffered_body_bytes", "queue_depth")
"""What is of the moment: a worker that is gone has none of it."""
_LABELLED_GAUGES = frozenset(("tenant_running",))
"""The same with labels."""

_SUPERVISORS = frozenset(("config_generation", "config_reload_failures"))


def told_of(counters: Counters) -> dict[str, Any]:
    """All counts as JSON: numbers, histograms as [counts, sum], labelled ones as [labels, value] pairs."""
    # By dir() rather than vars(): a compiled class keeps its attributes elsewhere.
    names = (name for name in dir(counters) if not name.startswith("_") and name not in _SUPERVISORS)
    return {name: _told(getattr(counters, name)) for name in names}


def _told(value: Any) -> Any:
    if isinstance(value, Histogram):
        return [value.counts, value.sum]
    if isinstance(value, dict):
        return [[key, _told(one)] for key, one in value.items()]
    return value


def add(total: Counters, told: dict[str, Any], *, gauges: bool = True) -> None:
    """Add what `told_of` said elsewhere to `total`; without `gauges` for a worker that is gone."""
    for name, value in told.items():
        held = getattr(total, name)
        if isinstance(held, Histogram):
            _add_histogram(held, value)
        elif isinstance(held, dict):
            if name in _LABELLED_GAUGES and not gauges:
                continue
            for key, one in value:
                label = tuple(key) if isinstance(key, list) else key
                if isinstance(one, list):
                    _add_histogram(held[label], one)
                else:
                    held[label] = held.get(label, 0) + one
        elif gauges or name not in GAUGES:
            setattr(total, name, held + value)


def _add_histogram(held: Histogram, told: list[Any]) -> None:
    counts, total = told
    held.counts = [mine + other for mine, other in zip(held.counts, counts, strict=True)]
    held.sum += total
