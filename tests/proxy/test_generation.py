"""What the configuration's `health` section comes to in the machine and the router."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gslb.config.load import check_text
from gslb.proxy.generation import health_marks, routing_rules
from gslb.routing.health import HealthMarks

CONFIG = "regions: {{eu: {{location: Frankfurt, endpoints: [{{url: 'http://127.0.0.1:1'}}]}}}}\nhealth: {{{}}}\n"


def settings(health: str = "") -> Any:
    return check_text(CONFIG.format(health), "gslb.yaml", {}, Path("."))


def test_the_defaults_are_the_same_in_both() -> None:
    assert health_marks(settings()) == HealthMarks()
    assert routing_rules(settings()).panic_below == 0.0


def test_every_key_arrives() -> None:
    text = (
        "min_success: 0.7, ratio_samples: 9, ratio_window: 1m, stall_after: 20s, kept_capacity: 0.3,"
        "slow_start: 5s, panic: 0.4, fall: 4, interval: 3s"
    )
    assert health_marks(settings(text)) == HealthMarks(
        fall=4, window_s=12.0, min_success=0.7, ratio_samples=9, ratio_window_s=60.0, stall_s=20.0,
        kept_capacity=0.3, slow_start_s=5.0,
    )  # fmt: skip
    assert routing_rules(settings(text)).panic_below == 0.4


@pytest.mark.parametrize(
    ("health", "stall_s"),
    [("scrape_interval: 15s", 30.0), ("stall_after: 1s", 2.0), ("stall_after: 0s, scrape_interval: 15s", 0.0)],
)
def test_what_stands_still_is_seen_in_two_scrapes_at_least(health: str, stall_s: float) -> None:
    assert health_marks(settings(health)).stall_s == stall_s
