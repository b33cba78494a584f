"""One fleet for the whole run, whole again before each test; the figures at the end."""

from __future__ import annotations

import os
import signal
import statistics
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.real.fleet import Figures, Fleet

_FIGURES = pytest.StashKey[Figures]()


def pytest_configure(config: pytest.Config) -> None:
    """A SIGTERM ends a run like Ctrl-C does, so that the servers are stopped."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    config.stash[_FIGURES] = Figures()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the figures."""
    terminalreporter.section("figures")
    for line in config.stash[_FIGURES].lines:
        terminalreporter.line(line)


@pytest.fixture(scope="session")
def figures(pytestconfig: pytest.Config) -> Figures:
    """Where tests note what they measured."""
    return pytestconfig.stash[_FIGURES]


@pytest.fixture(scope="session")
def started_fleet(figures: Figures) -> Iterator[Fleet]:
    """The fleet, running; stopped at the end of the run."""
    missing = [name for name in ("REAL_VLLM", "GSLB_COMMAND", "GSLB_REAL_LOGS") if name not in os.environ]
    if missing:
        pytest.skip("needs a real vLLM: run `make test-real`")
    fleet = Fleet(Path(os.environ["REAL_VLLM"]), os.environ["GSLB_COMMAND"], Path(os.environ["GSLB_REAL_LOGS"]))
    figures.note("openai client", version("openai"))
    try:
        figures.note("start to both regions used", f"{fleet.start():.0f} s")
        yield fleet
        note_first_tokens(fleet, figures)
    finally:
        code = fleet.stop()
    assert code == 0, f"gslb ended with {code} after SIGTERM"


@pytest.fixture
def fleet(started_fleet: Fleet) -> Fleet:
    """The fleet with both servers up and in use."""
    started_fleet.make_whole()
    return started_fleet


def note_first_tokens(fleet: Fleet, figures: Figures) -> None:
    """Predicted and measured time to first token of the streams that were served at the first attempt."""
    pairs = [
        (record["predicted_ttft_ms"], record["ttft_ms"])
        for record in fleet.gslb.records()
        if record["stream"] and record["attempts"] == 1 and record["ttft_ms"] is not None
    ]
    if not pairs:
        return
    for name, values in (
        ("TTFT predicted", [predicted for predicted, _ in pairs]),
        ("TTFT measured", [measured for _, measured in pairs]),
        ("TTFT measured - predicted", [measured - predicted for predicted, measured in pairs]),
        ("TTFT off by", [abs(measured - predicted) for predicted, measured in pairs]),
    ):
        figures.note(
            name,
            f"median {statistics.median(values):.0f} ms, least {min(values):.0f}, most {max(values):.0f} "
            f"({len(values)} streams)",
        )
