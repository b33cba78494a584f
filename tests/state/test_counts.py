"""Counters as messages: what is told and added up is what was counted."""

from __future__ import annotations

from typing import Any

import orjson

from gslb.counters import Counters
from gslb.state.counts import add, told_of


def busy(times: int) -> Counters:
    counters = Counters()
    for _ in range(times):
        counters.requests["eu", "m", "ok"] += 1
        counters.fenced["residency"] += 1
        counters.request_seconds.observe(0.3)
        counters.ttft_seconds["eu", "m"].observe(0.04)
        counters.prediction_error_seconds.observe(-0.01)
    counters.open_connections = counters.open_exchanges = times
    counters.config_generation = 7
    return counters


def over_the_wire(counters: Counters) -> dict[str, Any]:
    told: dict[str, Any] = orjson.loads(orjson.dumps(told_of(counters)))
    return told


def test_sums_are_what_one_process_would_have_counted() -> None:
    total = Counters()
    for part in (busy(2), busy(3), Counters()):
        add(total, over_the_wire(part))
    assert over_the_wire(total) == over_the_wire(busy(5))
    assert total.config_generation == 0, "the supervisor's own"


def test_of_one_that_is_gone_only_what_happened_stays() -> None:
    total = Counters()
    add(total, over_the_wire(busy(2)), gauges=False)
    assert total.requests == {("eu", "m", "ok"): 2}
    assert (total.open_connections, total.open_exchanges) == (0, 0)
