"""Load signals from the `endpoint-load-metrics` response header (ORCA, as vLLM writes it).

Two spellings: `JSON {"named_metrics": {"num_requests_waiting": 3.0}}` and
`TEXT named_metrics.num_requests_waiting=3.0, named_metrics.kv_cache_usage_perc=0.1`; the leading word may be
missing. vLLM sends it only with answers that are not streamed, and only when the request asked for it. There is
no running count in it, so `running` stays None: absent, not zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, Final

import orjson

from gslb.types import LoadSample

_SECTION: Final = "named_metrics"


def parse_orca(value: bytes, at_s: float, own_running: int) -> LoadSample | None:
    """Read one header value received at `at_s` with `own_running` own requests in flight.

    None when it tells neither waiting requests nor KV use, whatever else it holds. Never raises: a header is the
    upstream's to write, and a strange one must not cost the answer it came with.
    """
    form, _, rest = value.strip().partition(b" ")
    match form.upper():
        case b"JSON":
            metrics = _read_json(rest)
        case b"TEXT":
            metrics = _read_text(rest)
        case _:
            metrics = _read_json(value) if form.startswith(b"{") else _read_text(value)
    waiting = _number(metrics.get("num_requests_waiting"))
    kv_usage = _number(metrics.get("kv_cache_usage_perc"))
    if waiting is None and kv_usage is None:
        return None
    return LoadSample(
        at_s=at_s,
        waiting=waiting,
        kv_usage=None if kv_usage is None else min(1.0, kv_usage),
        own_running_then=own_running,
    )


def _read_json(text: bytes) -> Mapping[str, Any]:
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    metrics = document.get(_SECTION) if isinstance(document, dict) else None
    return metrics if isinstance(metrics, dict) else {}


def _read_text(text: bytes) -> Mapping[str, Any]:
    metrics: dict[str, Any] = {}
    for pair in text.decode("latin-1").split(","):
        name, _, number = pair.partition("=")
        try:
            metrics[name.strip().removeprefix(_SECTION + ".")] = float(number)
        except ValueError:
            continue
    return metrics


def _number(value: object) -> float | None:
    """A finite number >= 0, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if isfinite(value) and value >= 0 else None
