"""The pure parts of the proofs: slopes, delays, claims, reports, and what is read from gslb."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from random import Random

import pytest
import yaml

from benchmarks.claims import Claim, at_most, exit_code, none_of, write_json
from benchmarks.delays import Delays, merged
from benchmarks.edge import edge_config
from benchmarks.processes import BenchmarkError
from benchmarks.scale import Plan, files_needed
from benchmarks.scale_upstream import stamp_of, stamped_event
from benchmarks.slow_clients import Availability, availability
from benchmarks.soak import log_counts, reloaded, soak_config
from benchmarks.steady import Asked, p50_p99_ms
from benchmarks.trend import last_part, open_files, slope
from benchmarks.upstream import EVENT_BYTES
from gslb.config.load import load_config


def test_slope_of_a_line_with_noise() -> None:
    rng = Random(3)
    line = [(float(x), 5.0 + 0.25 * x) for x in range(200)]
    assert slope(line) == pytest.approx(0.25)
    assert slope([(x, y + rng.gauss(0, 1)) for x, y in line]) == pytest.approx(0.25, abs=0.01)
    assert slope([(x, 7.0) for x, _ in line]) == 0.0


@pytest.mark.parametrize("samples", [[], [(1.0, 5.0)], [(1.0, 5.0), (1.0, 9.0)]])
def test_no_slope_without_two_moments(samples: list[tuple[float, float]]) -> None:
    assert slope(samples) == 0.0


def test_the_first_third_is_warming_up() -> None:
    samples = [(float(x), 0.0) for x in range(10, 41)]
    assert last_part(samples)[0][0] == 20.0
    assert last_part(samples)[-1] == samples[-1]
    assert last_part([]) == []


def test_open_files_are_counted(tmp_path: Path) -> None:
    before = open_files(os.getpid())
    with (tmp_path / "file").open("w"):
        assert open_files(os.getpid()) == before + 1


def test_quantiles_of_delays_are_right_within_two_percent() -> None:
    delays = Delays()
    for value in range(1, 100_001):
        delays.add(value * 1000)
    assert delays.total == 100_000
    for share, ms in ((0.5, 50.0), (0.99, 99.0), (1.0, 100.0)):
        assert ms <= delays.quantile_ms(share) <= ms * 1.021


def test_delays_of_several_processes_add_up() -> None:
    one, other = Delays(), Delays()
    for _ in range(3):
        one.add(1_000_000)
    other.add(-5)
    both = merged(json.loads(json.dumps(part.counts)) for part in (one, other))
    assert both.total == 4
    assert both.quantile_ms(0.25) == pytest.approx(0.001)
    assert both.quantile_ms(1.0) == pytest.approx(1.0, rel=0.021)
    assert math.isnan(Delays().quantile_ms(0.5))


def test_a_stamped_event_has_its_size_and_says_its_time() -> None:
    chunk = stamped_event(123_456_789)
    size, _, rest = chunk.partition(b"\r\n")
    event = rest.removesuffix(b"\r\n")
    assert int(size, 16) == len(event) == EVENT_BYTES
    assert stamp_of(event) == 123_456_789
    with pytest.raises(ValueError, match="invalid literal"):
        stamp_of(event[1:] + b"\n")


def test_a_failed_claim_fails_the_run_and_an_unjudged_one_does_not(tmp_path: Path) -> None:
    held, unjudged, failed = none_of("a", 0), Claim("b", "1", "2", None), none_of("c", 1)
    assert exit_code([held, unjudged]) == 0
    assert exit_code([held, failed]) == 1
    assert at_most("d", 2.0, 2.0, "MB").held
    assert not at_most("d", 2.1, 2.0, "MB").held
    assert not at_most("d", math.nan, 2.0, "MB").held
    path = tmp_path / "told.json"
    write_json(str(path), {"figure": 1}, [unjudged])
    told = json.loads(path.read_text())
    assert told == {"figure": 1, "claims": [{"name": "b", "value": "1", "limit": "2", "held": None}]}


def test_files_of_the_fullest_process() -> None:
    def needed(streams: int, workers: int, helpers: int) -> int:
        return files_needed(Plan(streams, workers, 1.0, 1.0, 1.0, helpers))

    assert needed(10_000, 1, 2) == 20_200
    assert needed(10_000, 2, 2) == 13_200
    assert needed(10_000, 8, 1) == 10_200


def test_the_report_of_slowhttptest() -> None:
    report = (
        "Seconds,Closed,Pending,Connected,Service Available\n0,0,1,0,0\n1,0,1,97,100\n2,3,0,90,0\n3,3,0,95,100\n"
    )
    assert availability(report) == Availability(seconds=3, without_service=1, most_connected=97)
    assert Availability(3, 1, 97) + Availability(2, 0, 99) == Availability(5, 1, 99)


@pytest.mark.parametrize(
    "report", ["", "Seconds,Other\n0,1\n1,1\n", "Seconds,Connected,Service Available\n0,x,0\n"]
)
def test_no_report_is_no_availability(report: str) -> None:
    with pytest.raises(BenchmarkError, match="report"):
        availability(report)


def test_quantiles_of_a_legitimate_client_are_of_the_good_ones() -> None:
    asked = [Asked(0.0, float(number), "") for number in range(101)] + [Asked(0.0, 1e6, "reset")]
    assert p50_p99_ms(asked) == (50.0, 99.0)
    assert math.isnan(p50_p99_ms(asked[-1:])[0])


def test_the_log_is_counted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("x INFO fine\nx ERROR bad\nTraceback (most recent call last):\n  File\nx CRITICAL y\n")
    assert log_counts(log) == {"tracebacks": 1, "error_lines": 2}


def test_every_reload_of_the_soak_is_a_good_configuration_and_another_one(tmp_path: Path) -> None:
    config = soak_config(list(range(9001, 9013)), tmp_path, 1)
    path = tmp_path / "gslb.yaml"
    texts = set()
    for number in range(4):
        path.write_text(json.dumps(reloaded(config, number)))
        texts.add(path.read_text())
        settings = load_config(path, {"GSLB_BENCH_KEY": "k"})
        assert len(settings.endpoints) == (11 if number == 3 else 12)
    assert len(texts) == 4
    assert reloaded(config, 4) == config


def test_a_configuration_says_how_many_workers(tmp_path: Path) -> None:
    config = edge_config([9001], tmp_path, 3)
    assert yaml.safe_load(json.dumps(config))["workers"] == 3
    assert list(config["regions"]) == ["eu"]
