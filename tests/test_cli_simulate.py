"""`gslb simulate`: names and files, options, one JSON object, tables, errors, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import gslb.cli_simulate as cli
from gslb.sim.parts import PARTS
from gslb.sim.setting import Setting
from tests.support import small_world

ROOT = Path(__file__).resolve().parents[1]
SMALL = """\
scenario: small
description: A small one.
fleet:
  regions:
    eu: {location: "aws:eu-central-1", endpoints: 1}
    us: {location: "aws:us-east-1", endpoints: 1}
load: {kind: poisson, of_capacity: 0.5}
policies: [ttft, nearest]
"""
TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:{n // 60:02d}:{n % 60:02d}.0000000,{1000 + n},10\n" for n in range(600)
)


@pytest.fixture(autouse=True)
def world(monkeypatch: pytest.MonkeyPatch) -> None:
    """The small world in place of the simulator, and a page that tells what it was made of."""

    def render(results: Any, settings: list[Setting], budgets_ms: list[float]) -> str:
        return f"<html>{len(results)} runs, {settings[0].name}, {budgets_ms}</html>"

    monkeypatch.setattr(cli, "run_world", small_world.run)
    monkeypatch.setattr(cli, "render", render)


@pytest.fixture
def small(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return str(path)


def simulate(*arguments: str) -> Result:
    return CliRunner().invoke(cli.simulate, [*arguments, "--jobs", "1"])


def told(*arguments: str) -> dict[str, Any]:
    result = simulate(*arguments, "--json")
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_one_object(small: str) -> None:
    document = told(small, "--seeds", "2", "--seed", "7")
    assert (document["scenario"], document["seeds"], document["synthetic_geography"]) == ("small", [7, 8], False)
    assert list(document["policies"]) == ["ttft", "nearest"]
    wanted = {
        "offered", "completed", "shed", "failed", "goodput", "ttft_ms", "spill_share", "cross_region_share",
        "prefix_hit_rate", "cost", "by_region",
    }  # fmt: skip
    for policy in document["policies"].values():
        assert wanted <= policy.keys()
        assert set(policy["ttft_ms"]) == {"p50", "p90", "p99"}
    assert document["policies"]["ttft"]["offered"] == document["policies"]["nearest"]["offered"] > 500


def test_tables(small: str) -> None:
    result = simulate(small, "--seeds", "1", "--policy", "ttft", "--policy", "nearest,round_robin", "--regions")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "A small one."
    assert lines[1].startswith("small: 1 seed, 120 s each")
    assert [line.split()[0] for line in lines if "100.00" in line] == ["ttft", "nearest", "round_robin"]
    assert sum(line.strip().startswith("us ") for line in lines) == 3


def test_without(small: str) -> None:
    document = told(
        small, "--seeds", "1", "--policy", "ttft,oracle", "--without", "hold, affinity", "--without", "hold"
    )
    assert {name: policy["without"] for name, policy in document["policies"].items()} == {
        "ttft": [], "ttft -affinity -hold": ["affinity", "hold"], "ttft -hold": ["hold"], "oracle": [],
    }  # fmt: skip
    assert document["runs"] == document["runs_wanted"] == 4
    each = told(small, "--seeds", "1", "--policy", "ttft", "--without", "each", "--without", "hold")
    assert list(each["policies"]) == ["ttft", *(f"ttft -{part}" for part in PARTS)]
    assert "without" not in {key for key in document if key != "policies"}


def test_tables_of_variants(small: str) -> None:
    arguments = (
        "--seeds",
        "1",
        "--policy",
        "nearest,oracle",
        "--without",
        "pending_tokens",
        "--without",
        "hold,refusal",
    )
    result = simulate(small, *arguments)
    assert result.stderr == "No part of gslb is in oracle: run as a whole only.\n"
    rows = [
        line.split()[0] for line in result.stdout.splitlines() if line.startswith((" nearest", "  -", " oracle"))
    ]
    assert rows == 2 * ["nearest", "-pending_tokens", "-hold", "-refusal", "oracle"]
    assert all(len(line) <= 80 for line in result.stdout.splitlines())


def test_loads(small: str) -> None:
    document = told(small, "--seeds", "1", "--load", "0.2,0.6", "--policy", "ttft")
    low, high = document["loads"]
    assert (document["scenario"], low["load"], high["load"]) == ("small", 0.2, 0.6)
    assert high["policies"]["ttft"]["offered"] > 2 * low["policies"]["ttft"]["offered"]
    single = told(small, "--seeds", "1", "--load", "0.2", "--policy", "ttft")
    assert single["policies"]["ttft"]["offered"] == low["policies"]["ttft"]["offered"]


def test_a_trace(small: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(TRACE)
    document = told(small, "--seeds", "1", "--trace", str(trace))
    assert document["synthetic_geography"] is True
    assert 0 < document["policies"]["ttft"]["offered"] <= 600
    text = simulate("azure-chat", "--trace", str(trace), "--load", "0.01", "--seeds", "1").stdout
    assert "Who asks from where was made up: the trace does not tell." in text


def test_a_report(small: str, tmp_path: Path) -> None:
    out = tmp_path / "out.html"
    result = simulate(small, "--seeds", "2", "--report", str(out), "--json")
    assert json.loads(result.stdout)
    assert result.stderr == f"report: {out}\n"
    assert out.read_text() == "<html>4 runs, small, [1000.0]</html>"
    result = simulate(small, "--seeds", "1", "--report", str(tmp_path / "no" / "out.html"))
    assert result.exit_code == 1
    assert "cannot be written: there is no such folder" in result.output
    assert result.stdout == "", "told before the runs, not after"


def test_shipped_ones_by_name_and_by_path() -> None:
    by_path = {path.stem: path for path in (ROOT / "config" / "scenarios").glob("*.yaml")}
    shipped = cli.shipped_scenarios()
    assert {name: path.read_text("utf-8") for name, path in shipped.items()} == {
        name: path.read_text("utf-8") for name, path in by_path.items()
    }
    listed = simulate().stdout
    assert all(name in listed for name in by_path)
    by_name = told("region-loss", "--seeds", "1", "--policy", "ttft")
    assert by_name["scenario"] == "region-loss"
    assert by_name == told("config/scenarios/region-loss.yaml", "--seeds", "1", "--policy", "ttft") | {
        "policies": by_name["policies"]
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stedy"], "there is no scenario 'stedy': did you mean 'steady'?"),
        (["steady", "--policy", "ttft,nearst"], "there is no policy 'nearst': did you mean 'nearest'?"),
        (["steady", "--without", "hold,dampng"], "there is no part 'dampng': did you mean 'damping'?"),
        (["steady", "--without", "all"], "there is no part 'all'; known: affinity, cache_wait, damping, "),
        (
            ["steady", "--policy", "oracle", "--without", "hold"],
            "no part of gslb is in oracle, so none can be taken away",
        ),
        (["steady", "--policy", ""], "'--policy': it names nothing: say what, or leave the option away"),
        (["steady", "--without", ","], "'--without': it names nothing"),
        (["steady", "--load", ""], "'--load': it names nothing"),
        (["config/example.yaml"], "config/example.yaml: this is a configuration; a scenario has one for its"),
        (["steady", "--load", "x"], "'x' is no share of capacity such as 0.7"),
        (["steady", "--load", "0"], "'0' is no share of capacity such as 0.7"),
        (["steady", "--load", "nan"], "'nan' is no share of capacity such as 0.7"),
        (["azure-chat"], "this scenario replays a trace: give one with --trace FILE"),
        (["azure-chat", "--trace", "none.csv"], "none.csv: cannot be read: No such file or directory"),
        (["nowhere/x.yaml"], "nowhere/x.yaml:1:1: the file cannot be read: No such file or directory"),
    ],
)
def test_errors(arguments: list[str], message: str) -> None:
    result = simulate(*arguments)
    assert result.exit_code in (1, 2)
    assert message in " ".join(result.output.split())
    assert result.stdout == ""


def test_a_bad_scenario_and_a_bad_trace(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(SMALL.replace("poisson", "poison") + "durations: 1s\n")
    result = simulate(str(path))
    assert (result.exit_code, result.stdout) == (1, "")
    assert [line.split(" ")[1] for line in result.stderr.splitlines()] == ["load.kind:", "durations:"]
    trace = tmp_path / "trace.csv"
    trace.write_text(TRACE + "2023-11-16 18:59:00.0,-4,1\n")
    result = simulate("steady", "--trace", str(trace))
    assert result.exit_code == 1
    assert f"{trace}:602:23 ContextTokens: -4 is negative" in " ".join(result.output.split())


INTERRUPTED = """\
import gslb.cli_simulate as cli
from tests.support import small_world
cli.run_world = small_world.marked
if __name__ == "__main__":
    cli.simulate()
"""


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_prints_what_is_done_so_far(small: str, tmp_path: Path, jobs: str) -> None:
    """The signal goes to the whole foreground process group, as from a terminal."""
    arguments = [small, "--seeds", "1000", "--policy", "ttft", "--json", "--jobs", jobs]
    mark = tmp_path / "mark"
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, *arguments],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SMALL_WORLD_MARK": str(mark)},
    )  # fmt: skip
    deadline_s = time.monotonic() + 60
    while not mark.exists() and process.poll() is None and time.monotonic() < deadline_s:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    document = json.loads(stdout)
    assert document["is_partial"] is True
    assert 2 <= document["runs"] < 1000
    assert "Traceback" not in stderr
