"""The simulated engine, fitted to a real vLLM by a short series, beside that vLLM under the same arrivals.

A CPU engine at the lowest priority on shared cores is no steady clock: what is fitted now may be off by half a
minute later, and near capacity that decides whether a queue grows. So the test looks at the median of a light load
only, and fails for a simulated engine that is nonsense; the figures are printed.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tests.real.fleet import Figures, Fleet
from tests.real.processes import SLOTS, STEP_TOKENS

CHECKOUT = Path(__file__).resolve().parent.parent.parent
_LIGHT = 0.3
_TIMES_OFF = 4.0


def test_a_fitted_engine_is_about_as_quick_as_the_real_one(fleet: Fleet, figures: Figures) -> None:
    python = Path(os.environ["GSLB_COMMAND"]).parent / "python"
    told = subprocess.run(
        [
            python, "-m", "benchmarks.calibration", "--upstream", fleet.servers["eu"].url, "--slots", str(SLOTS),
            "--step-tokens", str(STEP_TOKENS), "--loads", f"{_LIGHT},0.7", "--seconds", "20", "--json", "-",
        ],
        cwd=CHECKOUT, capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)
    profile = found["fit"]["profile"]
    prefill_ms, step_ms = profile["prefill_ms"], profile["step_ms"]
    figures.note("fitted prefill, decode step", f"{prefill_ms:.3f} ms/token, {step_ms:.1f} ms")
    assert prefill_ms > 0
    assert step_ms > 0
    for one in found["compared"]:
        real_ms, simulated_ms = one["engine_ms"], one["simulated_ms"]
        figures.note(
            f"TTFT p{100 * one['share']:.0f} at {one['load']:g} of capacity",
            f"real {real_ms:.0f} ms, simulated {simulated_ms:.0f} ms ({one['count']} requests)",
        )
        if one["load"] == _LIGHT and one["share"] == 0.5:
            assert real_ms / _TIMES_OFF < simulated_ms < real_ms * _TIMES_OFF
