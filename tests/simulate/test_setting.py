"""What a scenario becomes: the world with its rates, faults, rules, round trips."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from gslb.config.scenario import CheckedScenario, check_scenario, load_scenario
from gslb.geo.rtt_prior import rtt_prior_ms
from gslb.routing.profiles import PROFILES
from gslb.sim.setting import Ask, Setting
from gslb.sim.trace_lines import TraceError
from gslb.simulate.setting import rules_for, setting_of

HEAD = """\
scenario: small
fleet:
  regions:
    eu: {location: "aws:eu-central-1", endpoints: 3}
    us: {location: "aws:us-east-1", endpoints: 1}
"""
SCENARIOS = Path(__file__).parents[2] / "config" / "scenarios"


def checked_of(text: str, base_dir: Path = Path()) -> CheckedScenario:
    return check_scenario(HEAD + text, "s.yaml", {}, base_dir)


def asks_of(setting: Setting, seed: int = 1) -> list[Ask]:
    return list(setting.offered(Random(seed)))


def test_the_world_of_a_scenario() -> None:
    checked = checked_of("""\
load: {kind: poisson, rate: 10}
budget: 700ms
faults:
  - {kind: slow_node, target: [eu/1, us], at: 3s, factor: 2}
  - {kind: region_loss, target: us, at: 4s, until: 5s}
health: {interval: 3s, scrape_interval: 500ms, fall: 2}
routing: {near_equal: 20ms, over_budget: refuse, failover: {max_attempts: 2}}
signal_age: 4s
jitter: 0.2
""")
    setting = setting_of(checked)
    assert [fault.target for fault in setting.faults] == ["eu/1", "us", "us"]
    assert setting.faults[0].until_s == float("inf")
    assert (setting.faults[2].at_s, setting.faults[2].until_s, setting.faults[0].factor) == (4, 5, 2)
    assert (setting.probe_interval_s, setting.scrape_interval_s, setting.signal_age_s) == (3, 0.5, 4)
    assert (setting.marks.fall, setting.marks.window_s, setting.max_attempts, setting.jitter) == (2, 6, 2, 0.2)
    assert (setting.rules.damping.near_equal_ms, setting.rules.refuses_over_budget) == (20, True)
    assert setting.engines["eu/2"].profile is PROFILES["h100-70b-tp8"]
    assert [edge.name for edge in setting.edges] == ["eu", "us"]
    assert not setting.synthetic_geography
    asks = asks_of(setting)
    assert len(asks) == pytest.approx(1200, abs=140)
    assert {round(ask.budget_ms) for ask in asks} == {700}
    assert asks == asks_of(setting)
    assert asks != asks_of(setting, seed=2)


def test_load_follows_capacity() -> None:
    half, whole = (
        setting_of(checked_of("load: {kind: poisson, of_capacity: 0.5}\n"), None, x) for x in (None, 1.0)
    )
    counts = Counter(ask.edge for ask in asks_of(half))
    assert counts["eu"] / counts["us"] == pytest.approx(3, rel=0.2)
    assert len(asks_of(whole)) == pytest.approx(2 * counts.total(), rel=0.1)
    assert counts.total() / 120 == pytest.approx(0.5 * 4 * 4.48, rel=0.1)  # one such engine takes 4.48 of these


def test_clients_by_population_or_by_stated_weights() -> None:
    stated = asks_of(setting_of(checked_of("load: {kind: poisson, rate: 50, clients: {us: 3, eu: 1}}\n")))
    assert sum(ask.edge == "us" for ask in stated) / len(stated) == pytest.approx(0.75, abs=0.03)
    people = asks_of(setting_of(checked_of("load: {kind: poisson, rate: 50, clients: population}\n")))
    assert sum(ask.edge == "us" for ask in people) / len(people) < 0.4


def test_sessions_and_days_and_bursts() -> None:
    talks = asks_of(setting_of(checked_of("load: {kind: sessions, rate: 20, sessions: {turns: 3, think: 5s}}\n")))
    assert {ask.block_tokens for ask in talks} == {128}
    assert len({ask.session for ask in talks}) < len(talks) / 2
    day = asks_of(setting_of(checked_of("load: {kind: diurnal, rate: 50, day: 2m, start_hour: 14}\n")))
    assert len(day) == pytest.approx(6000, rel=0.08)
    bursts = asks_of(setting_of(checked_of("load: {kind: gamma, rate: 50, cv: 5}\n")))
    assert len(bursts) == pytest.approx(6000, rel=0.3)


def test_the_table_of_round_trips_goes_before_the_prior(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("from_region,to_region,p50_rtt_ms\neu-central-1,us-east-1,123\n")
    checked = checked_of("load: {kind: poisson, rate: 1}\nrtt_table: t.csv\n", tmp_path)
    setting = setting_of(checked)
    eu, us = (region.place for region in setting.regions)
    assert setting.rtt_ms(eu, us) == setting.rtt_ms(us, eu) == 123
    assert setting.rtt_ms(eu, eu) == rtt_prior_ms(eu, eu)
    client = asks_of(setting)[0].place
    assert setting.rtt_ms(client, us) == rtt_prior_ms(client, us)


def test_rules_of_policies() -> None:
    checked = checked_of("load: {kind: poisson, rate: 1}\nrouting: {near_equal: 20ms}\n")
    ordered = rules_for(checked, "ordered")
    assert (ordered.policy, ordered.order, ordered.gate_shut, ordered.gate_open) == (
        "ordered",
        ("eu", "us"),
        0.7,
        0.5,
    )
    assert (rules_for(checked, "ttft").gate_shut, rules_for(checked, "oracle").policy) == (0.85, "ttft")
    assert rules_for(checked, "nearest").damping.near_equal_ms == 20


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:{n // 60:02d}:{n % 60:02d}.{n % 7}000000,{1000 + n},{100 + n % 50}\n" for n in range(600)
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    return path


def test_a_trace_in_place_of_the_scenarios_load(trace: Path) -> None:
    setting = setting_of(load_scenario(SCENARIOS / "steady.yaml", {}), trace, 0.05)
    assert setting.synthetic_geography
    assert setting.duration_s < 120  # ten minutes of one request a second, used up faster
    asks = asks_of(setting)
    assert len(asks) == 600
    assert len({ask.edge for ask in asks}) == 5
    assert sorted(ask.prompt_tokens for ask in asks) == list(range(1000, 1600))


def test_a_trace_at_its_own_rate(trace: Path, tmp_path: Path) -> None:
    checked = checked_of("load: {kind: trace, file: azure.csv, scale: superpose}\nduration: 100s\n", tmp_path)
    setting = setting_of(checked)
    assert setting.duration_s == 100
    assert len(asks_of(setting)) == pytest.approx(100, abs=3)


def test_lengths_of_a_trace(trace: Path, tmp_path: Path) -> None:
    checked = checked_of("load: {kind: poisson, rate: 20, lengths_of: azure.csv}\n", tmp_path)
    asks = asks_of(setting_of(checked))
    assert all(ask.output_tokens == 100 + (ask.prompt_tokens - 1000) % 50 for ask in asks)


def test_what_keeps_a_trace_from_being_replayed(trace: Path, tmp_path: Path) -> None:
    checked = checked_of("load: {kind: trace, of_capacity: 0.5}\n")
    with pytest.raises(ValueError, match="give one with --trace FILE"):
        setting_of(checked)
    with pytest.raises(ValueError, match=r"used up after 2 s, within the warm-up"):
        setting_of(checked, trace, 10.0)
    trace.write_text(AZURE + "x")
    with pytest.raises(TraceError, match=r"azure.csv:602:1: 1 fields where the first line names 3"):
        setting_of(checked, trace)
    with pytest.raises(FileNotFoundError):
        setting_of(checked, tmp_path / "none.csv")
