"""Scenario files: what a good one becomes, what is said of a bad one, and that all shipped ones are good."""

from __future__ import annotations

import json
import pickle
import re
from contextlib import suppress
from pathlib import Path
from typing import get_args

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from gslb.cli_config import check, schema
from gslb.config.json_schema import known_keys
from gslb.config.problems import ConfigErrors
from gslb.config.scenario import CheckedScenario, check_scenario, is_scenario, load_scenario
from gslb.config.scenario_schema import (
    KIND_OF_KEY,
    SCENARIO_POLICIES,
    EndpointGroup,
    Fleet,
    FleetRegion,
    Load,
    Scenario,
    ScenarioFault,
    Surge,
)
from gslb.config.schema_fleet import POLICY_NAMES
from gslb.routing.policies import POLICIES
from gslb.types import Purchase

SHIPPED = sorted((Path(__file__).parents[2] / "config" / "scenarios").glob("*.yaml"))
README = (SHIPPED[0].parent / "README.md").read_text("utf-8")

HEAD = """\
scenario: small
fleet:
  regions:
    eu: {location: "aws:eu-central-1", endpoints: 2}
    us: {location: "aws:us-east-1", endpoints: 1}
"""
LEAST = HEAD + "load: {kind: poisson, of_capacity: 0.5}\n"


def scenario_of(text: str, base_dir: Path = Path()) -> CheckedScenario:
    return check_scenario(text, "s.yaml", {}, base_dir)


def problems_of(text: str, base_dir: Path = Path()) -> list[str]:
    try:
        check_scenario(text, "s.yaml", {}, base_dir)
    except ConfigErrors as errors:
        return [str(problem) for problem in errors.problems]
    return []


def test_the_least_scenario() -> None:
    checked = scenario_of(LEAST)
    assert [region.name for region in checked.regions] == ["eu", "us"]
    assert [endpoint.key for endpoint in checked.endpoints] == ["eu/0", "eu/1", "us/0"]
    first = checked.endpoints[0]
    assert (first.models, first.capacity, first.price_per_hour, first.node) == ({"model"}, 64, None, None)
    assert (first.prefill_ms_per_token, first.step_ms, first.slot_hold_ms) == (0.049, 30.4, 3900)
    assert dict(checked.edges) == {region.name: region.place for region in checked.regions}
    assert checked.engines["us/0"].slots == 64
    assert (checked.scenario.duration, checked.scenario.budget) == (120, 1)
    assert checked.regions[0].jurisdictions == {"DE", "EU", "EEA"}
    assert pickle.loads(pickle.dumps(checked)) == checked


def test_what_a_group_does_not_say_is_said_by_its_region_or_the_fleet() -> None:
    checked = scenario_of("""\
scenario: mixed
fleet:
  slots: 32
  kv_tokens: 500
  price_per_gpu_hour: 2
  regions:
    eu:
      location: Frankfurt
      slots: 48
      capacity_known: false
      priority: 1
      endpoints:
        - {count: 1, profile: a100-70b-tp8, node: n1, purchase: spot, price_per_gpu_hour: 1, gpus: 4}
        - {count: 2, slots: 16, capacity_known: true}
edges: {paris: "Paris, FR"}
load: {kind: poisson, rate: 5}
routing: {slot_hold: 2s}
""")
    spot, other, _ = checked.endpoints
    assert [checked.engines[endpoint.key].slots for endpoint in checked.endpoints] == [48, 16, 16]
    assert {engine.kv_tokens for engine in checked.engines.values()} == {500}
    assert (spot.capacity, spot.node, spot.purchase, spot.price_per_hour) == (None, "n1", Purchase.SPOT, 4.0)
    assert (other.capacity, other.node, other.purchase, other.price_per_hour) == (
        16, None, Purchase.ON_DEMAND, 16.0,
    )  # fmt: skip
    assert (spot.prefill_ms_per_token, spot.slot_hold_ms) == (0.106, 2000)
    assert checked.regions[0].priority == 1
    assert [place.city for place in checked.edges.values()] == ["Paris"]


def test_a_fleet_from_a_configuration(tmp_path: Path) -> None:
    (tmp_path / "gslb.yaml").write_text(
        "regions:\n  eu: {location: Frankfurt, endpoints: [{url: 'http://h:1', capacity: 7, node: n1}]}\n"
        "routing: {near_equal: 5ms}\nhealth: {interval: 3s}\n"
    )
    text = "scenario: s\nfleet: {config: gslb.yaml, slots: 9}\nload: {kind: poisson, rate: 1}\n"
    checked = scenario_of(text + "faults: [{kind: slow_node, target: n1, at: 30s, factor: 2}]\n", tmp_path)
    (endpoint,) = checked.endpoints
    assert (endpoint.key, endpoint.capacity, endpoint.models) == ("eu/h:1", 7, {"model"})
    assert checked.engines["eu/h:1"].slots == 9
    assert (checked.routing.near_equal, checked.health.interval) == (0.005, 3)
    assert scenario_of(text + "health: {interval: 4s}\n", tmp_path).health.interval == 4
    (tmp_path / "gslb.yaml").write_text(
        "regions: {eu: {location: Frankfurt, endpoints: [{url: 'http://h:1', profile: a100-70b-tp8}]}}\n"
    )
    assert scenario_of(text, tmp_path).engines["eu/h:1"].profile == "a100-70b-tp8"
    (tmp_path / "gslb.yaml").write_text("regions: {}\nlisten: x\n")
    (problem,) = problems_of(text, tmp_path)
    assert problem.startswith("s.yaml:2:17 fleet.config: the configuration cannot be used: ")
    assert "gslb.yaml:1:10 regions: at least one is needed (and 1 more" in problem


def test_a_table_of_round_trips(tmp_path: Path) -> None:
    table = tmp_path / "rtt.csv"
    table.write_text("from_region,to_region,p50_rtt_ms\neu-central-1,us-east-1,91\n")
    checked = scenario_of(LEAST + "rtt_table: rtt.csv\n", tmp_path)
    assert checked.table == {("eu-central-1", "us-east-1"): 91.0}
    assert set(checked.table_names.values()) == {"eu-central-1", "us-east-1"}
    table.write_text("from_region,to_region,p50_rtt_ms\neu-central-1,us-east-2,91\n")
    assert problems_of(LEAST + "rtt_table: rtt.csv\n", tmp_path) == [
        "s.yaml:5:20 fleet.regions.us.location: rtt.csv has no region 'us-east-1': did you mean 'us-east-2'?"
    ]
    for content, told in (
        ("a,b\n", "rtt.csv:1: a table of round trips needs the columns from_region, to_region, p50_rtt_ms"),
        ("from_region,to_region,p50_rtt_ms\na,b,x\n", "rtt.csv:2: p50_rtt_ms: 'x' is no round trip in ms"),
        ("from_region,to_region,p50_rtt_ms\na,b,-1\n", "rtt.csv:2: p50_rtt_ms: '-1' is no round trip in ms"),
        ("from_region,to_region,p50_rtt_ms\n", "rtt.csv: the table has no rows"),
    ):
        table.write_text(content)
        assert problems_of(LEAST + "rtt_table: rtt.csv\n", tmp_path) == [f"s.yaml:7:12 rtt_table: {told}"]


FAULTS = LEAST + "faults: [{kind: region_loss, target: eu, at: 30s}]\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            LEAST.replace("aws:us-east-1", "aws:us-east-9"),
            "5:20 fleet.regions.us.location: 'aws:us-east-9' names no",
        ),
        (LEAST.replace("endpoints: 1}", "endpoints: 1, slotz: 3}"), "unknown key: did you mean 'slots'?"),
        (
            LEAST.replace("endpoints: 1}", "endpoints: 0}"),
            "5:48 fleet.regions.us.endpoints: must be at least 1, got the number",
        ),
        (LEAST.replace("endpoints: 1}", "endpoints: 1000000000}"), "must be at most 10000"),
        (LEAST.replace("0.5", "0.5, clients: {us: 0}"), "load: nobody asks: clients needs an edge with a weight"),
        (LEAST.replace("poisson", "diurnal, day: 9s"), "load.day: must be at least 10"),
        (LEAST.replace("endpoints: 1}", "endpoints: true}"), "fleet.regions.us.endpoints: expected a list"),
        (
            LEAST.replace("fleet:", "fleet:\n  profile: h100-70b"),
            "3:12 fleet.profile: there is no profile 'h100-70b': did you mean 'h100-70b-tp8'?",
        ),
        (
            LEAST.replace("poisson", "poison"),
            "6:14 load.kind: 'poison' is not known here: did you mean 'poisson'?",
        ),
        (LEAST.replace("of_capacity: 0.5", "of_capacity: 0"), "load.of_capacity: must be more than 0"),
        (LEAST.replace(", of_capacity: 0.5", ""), "6:7 load: how much is asked? give of_capacity"),
        (LEAST.replace("0.5", "0.5, rate: 3"), "6:7 load: of_capacity and rate exclude each other"),
        (LEAST.replace("0.5", "0.5, cv: 3"), "load.cv: this key is for kind: gamma; this load is poisson"),
        (
            LEAST.replace("0.5", "0.5, clients: {us: 1, eo: 2}"),
            "load.clients.eo: there is no edge 'eo'; known: eu, us",
        ),
        (LEAST.replace("0.5", "0.5, lengths_of: x.csv"), "load.lengths_of: x.csv: there is no such file"),
        (
            LEAST.replace("0.5", "0.5, prompt: {median: 9, mean: 8}"),
            "load.prompt: mean (8) must lie between median",
        ),
        (
            LEAST.replace("0.5", "0.5, surges: [{edge: uss, at: 1s, until: 2s, factor: 2}]"),
            "load.surges[0].edge: there is no edge 'uss': did you mean 'us'?",
        ),
        (
            LEAST.replace("0.5", "0.5, surges: [{edge: us, at: 3s, until: 2s, factor: 2}]"),
            "load.surges[0].until: until must be after at (3s)",
        ),
        (
            LEAST.replace("0.5", "0.5, surges: [{edge: us, at: 500s, until: 502s, factor: 2}]"),
            "load.surges[0].at: the run ends before that, at 120s",
        ),
        (
            FAULTS.replace("region_loss", "region_los"),
            "7:17 faults[0].kind: 'region_los' is not known here: did you",
        ),
        (
            FAULTS.replace("target: eu", "target: [eu/2, us]"),
            "7:39 faults[0].target[0]: there is no region, node or endpoint 'eu/2'",
        ),
        (
            FAULTS.replace("target: eu", "target: euu"),
            "7:38 faults[0].target: there is no region, node or endpoint",
        ),
        (FAULTS.replace("30s", "300s"), "7:46 faults[0].at: the run ends before that, at 120s"),
        (FAULTS.replace("30s", "30s, until: 20s"), "faults[0]: until (20s) must be after at (30s)"),
        (FAULTS.replace("region_loss", "brown_out"), "faults[0]: brown_out needs a factor"),
        (
            LEAST + "policies: [ttft, nearst]\n",
            "7:18 policies[1]: 'nearst' is not known here: did you mean 'nearest'?",
        ),
        (LEAST + "routing: {policy: tft}\n", "7:19 routing.policy: 'tft' is not known here: did you mean 'ttft'?"),
        (LEAST + "routing: {order: [eu, uk]}\n", "7:23 routing.order[1]: there is no region 'uk'"),
        (LEAST + "health: {intervall: 1s}\n", "7:10 health.intervall: unknown key: did you mean 'interval'?"),
        (LEAST + "edges: {x: Nowhereville}\n", "7:12 edges.x: 'Nowhereville' names no known place"),
        (LEAST + "warm_up: 120s\n", "7:10 warm_up: warm_up must be shorter than duration (120s)"),
        (LEAST + "budget: 3\n", "7:9 budget: a duration needs a unit: write 3s or 3ms"),
        (LEAST + "durations: 3s\n", "7:1 durations: unknown key: did you mean 'duration'?"),
        (LEAST + "rtt_table: x.csv\n", "7:12 rtt_table: x.csv: No such file"),
        (LEAST.replace("scenario: small\n", ""), "the required key 'scenario' is missing"),
        (
            "scenario: s\nfleet: {}\nload: {kind: trace}\n",
            "2:8 fleet: a fleet needs exactly one of regions and config",
        ),
        (
            "scenario: s\nfleet: {config: x.yaml}\nload: {kind: trace}\n",
            "fleet.config: the configuration cannot be",
        ),
        (HEAD + "load: {kind: trace, file: x}\n", "6:27 load.file: x: there is no such file"),
        (
            HEAD + "load: {kind: trace, surges: [{edge: us, at: 3s, until: 4s, factor: 2}]}\n",
            "load: surges need asks that are made up",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, problem: str) -> None:
    found = problems_of(text)
    assert len(found) == 1, found
    assert problem in found[0]


def test_everything_wrong_is_told_at_once() -> None:
    found = problems_of(
        FAULTS.replace("poisson", "poison")
        .replace("eu-central-1", "eu-nowhere")
        .replace("target: eu", "target: x")
        + "polices: all\nwarm_up: 3\n"
    )
    assert [line.split(" ")[0] for line in found] == [
        "s.yaml:4:20", "s.yaml:6:14", "s.yaml:7:38", "s.yaml:8:1", "s.yaml:9:10",
    ]  # fmt: skip


BLOCK = README.split("```yaml\n")[1].split("```")[0]


@given(
    st.integers(0, len(BLOCK)),
    st.integers(0, 12),
    st.sampled_from(["", "x", ": ", "\n", "[", "-1", "0", "1e99", "~"]),
)
@settings(max_examples=150, deadline=None)
def test_no_damage_leads_to_another_error(at: int, length: int, damage: str) -> None:
    with suppress(ConfigErrors):
        scenario_of(BLOCK[:at] + damage + BLOCK[at + length :])


def test_all_policies() -> None:
    assert scenario_of(LEAST + "policies: all\n").scenario.policies == list(SCENARIO_POLICIES)
    assert SCENARIO_POLICIES[: len(POLICY_NAMES)] == POLICY_NAMES
    assert set(POLICIES) == set(POLICY_NAMES)


def test_keys_of_kinds_are_keys() -> None:
    assert set(KIND_OF_KEY) <= set(Load.model_fields)
    kinds = get_args(Load.model_fields["kind"].annotation)
    assert all(set(fits) <= set(kinds) for fits in KIND_OF_KEY.values())


def test_known_keys_of_scenarios() -> None:
    assert "fleet" in known_keys((), Scenario)
    assert "count" in known_keys(("fleet", "regions", "x", "endpoints", 1), Scenario)
    assert "turns" in known_keys(("load", "sessions"), Scenario)
    assert "median" in known_keys(("load", "sessions", "opening"), Scenario)
    assert "notice" in known_keys(("faults", 0), Scenario)
    assert "near_equal" in known_keys(("routing",), Scenario)
    assert known_keys(("load", "clients"), Scenario) == ()


def test_what_is_a_scenario() -> None:
    assert is_scenario(LEAST)
    assert is_scenario("fleet: {}")
    assert not is_scenario("regions: {}")
    assert not is_scenario("scenario")
    assert not is_scenario("scenario: [")


# --- the shipped ones -------------------------------------------------------------------------------------


def test_there_are_enough() -> None:
    names = {path.stem for path in SHIPPED}
    assert names >= {
        "steady", "diurnal-follow-the-sun", "flash-crowd", "region-loss", "brown-out", "hung-engine",
        "stale-metrics", "spot-reclaim", "long-prompt-sessions", "heterogeneous-gpus", "fleet-overload",
        "azure-chat", "mooncake",
    }  # fmt: skip


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped(path: Path) -> None:
    text = path.read_text("utf-8")
    checked = load_scenario(path, {})
    assert checked.scenario.scenario == path.stem
    assert len(checked.scenario.description) > 20
    assert text.startswith("# ")
    assert (len(checked.regions), len(checked.endpoints)) == (5, 40)
    result = CliRunner().invoke(check, [str(path)])
    assert (result.exit_code, result.output) == (0, f"{path}: ok, 5 regions, 40 endpoints\n")


def test_the_readme_lists_all_of_them() -> None:
    assert all(f"`{path.stem}`" in README for path in SHIPPED)


def test_the_readmes_file_is_good_and_has_every_key() -> None:
    assert problems_of(BLOCK.replace("rtt_table:", "# rtt_table:")) == []
    written = set(re.findall(r"\w+", BLOCK))
    for section in (Scenario, Load, ScenarioFault, Surge, Fleet, FleetRegion, EndpointGroup):
        rest = {"sessions", "cached", "step_tokens", "prefix_cache", "priority", "until", "notice"}
        assert set(section.model_fields) - written <= rest


def test_check_tells_what_is_wrong_with_a_scenario(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(LEAST + "durations: 3s\n")
    result = CliRunner().invoke(check, [str(path)])
    assert result.exit_code == 1
    assert result.output == f"{path}:7:1 durations: unknown key: did you mean 'duration'?\n"


def test_the_schema_describes_every_key() -> None:
    result = CliRunner().invoke(schema, ["--scenario"])
    assert result.exit_code == 0
    tree = json.loads(result.output)
    assert tree["title"] == "gslb scenario"
    for part in (tree, *tree["$defs"].values()):
        for name, member in part.get("properties", {}).items():
            pieces = [member, *member.get("anyOf", [])]
            assert any("description" in piece or "$ref" in piece for piece in pieces), name
    assert tree["properties"]["budget"]["default"] == "1s"
    assert {"type": "string"} in tree["$defs"]["ScenarioFault"]["properties"]["target"]["anyOf"]
