"""The demo itself, short, as a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from gslb.cli_demo import demo

COMMAND = [sys.executable, "-c", "from gslb.cli_demo import demo; demo()"]


def test_a_short_demo_keeps_its_promises() -> None:
    done = subprocess.run(
        [*COMMAND, "--duration", "8", "--json", "--seed", "4"], capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["problems"] == {}
    assert told["failed"] == 0
    assert told["outage"]["failed_before_first_byte"] == 0
    assert told["spilled"] > 0
    assert told["fenced"] > 0
    assert told["aborted"] > 0
    assert told["outage"]["region"] == "virginia"
    assert told["outage"]["started_s"] < told["outage"]["ended_s"]
    assert isinstance(told["outage"]["recovered_s"], float)
    assert 0 < told["ttft_p50_ms"] <= told["ttft_p99_ms"]
    fates = ("completed", "failed", "fenced", "aborted", "cut_streams")
    assert sum(told[fate] for fate in fates) == told["requests"]
    for code, entry in told["by_country"].items():
        assert entry["is_nearest"], code
    for code in ("DE", "FR", "PL"):
        assert told["by_country"][code]["spilled"] == 0, "residency was crossed"
    assert sum(entry["spilled"] for entry in told["by_region"].values()) == told["spilled"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_with_the_summary_so_far(number: signal.Signals, code: int) -> None:
    with subprocess.Popen([*COMMAND, "--duration", "600"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert "calm" in process.stdout.readline()
            process.send_signal(number)
            rest = process.stdout.read()
            assert process.wait(timeout=60) == code
        finally:
            process.kill()
    assert rest.strip()
    assert "Traceback" not in rest


@pytest.mark.parametrize("duration", ["7.9", "0", "-3", "nan", "soon", "1e9"])
def test_a_duration_it_cannot_play_is_refused(duration: str) -> None:
    result = CliRunner().invoke(demo, ["--duration", duration])
    assert result.exit_code == 2
    assert "--duration" in result.output
