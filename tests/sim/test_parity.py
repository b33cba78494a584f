"""Recorded decisions come out the same when they are made again, and what does not is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from gslb.cli_replay import replay as replay_command
from gslb.native import is_native
from gslb.policy.residency import ResidencyFence, ResidencyFenceRule
from gslb.routing.health import Outcome
from gslb.routing.load import Ticket
from gslb.routing.refusal import Refusal
from gslb.routing.router import Decision, Router
from gslb.routing.rules import RoutingRules
from gslb.routing.view import FleetView
from gslb.sim.codec import CARRIED, Unreadable
from gslb.sim.parity import DECIDING, replay
from gslb.sim.recording import Recording
from gslb.types import Facts, ForcedState, LoadSample, Place
from tests.support.builders import FRANKFURT, MARKS, MODEL, TOKYO, VIRGINIA, endpoint, region

pytestmark = pytest.mark.skipif(is_native(), reason="compiled rooms cannot be listened to")

SECRET = "a prompt that an upstream quotes in its error"
EU, US, AP = region("eu", jurisdictions=["EU"]), region("us", VIRGINIA), region("ap", TOKYO, priority=1)
ENDPOINTS = (
    endpoint(EU, 1, capacity=4), endpoint(EU, 2), endpoint(US, 1, models=None), endpoint(US, 2, capacity=8),
    endpoint(AP, 1),
)  # fmt: skip
PLACES = (FRANKFURT, VIRGINIA, TOKYO, Place(country="DE", city="Köln", lat=50.9, lon=6.96), Place())
FENCE = ResidencyFence([ResidencyFenceRule(("DE",), frozenset({"EU"}))], "allow")


def unexpected(fault: Exception) -> None:
    raise AssertionError(f"recording failed: {fault}")


class Live:
    """A recorded edge's core, driven by lot."""

    def __init__(self, rules: RoutingRules, seed: int, write: Callable[[str], object] | None = None) -> None:
        self.lines: list[str] = []
        self.recording = Recording(write or self.lines.append, unexpected, seed, {"gslb": "test"})
        self.fleet = self.recording.make(FleetView, MARKS)
        self.fleet.configure(ENDPOINTS, MARKS)
        self.routers = [self.router(rules)]
        self.tickets: list[tuple[str, Ticket]] = []
        self.lot = Random(seed)
        self.now_s = 100.0
        self.last: Facts | None = None

    def router(self, rules: RoutingRules) -> Router:
        return self.recording.make(Router, rules, FENCE.deny_reason, self.recording.dice)

    def step(self) -> None:
        """One thing happens."""
        self.now_s += self.lot.expovariate(5.0)
        happens = [
            self.asked, self.asked, self.asked, self.failed_over, self.explained, self.went_on, self.ended,
            self.probed, self.scraped, self.measured, self.learnt, self.ticked, self.reloaded, self.forced,
        ]  # fmt: skip
        self.lot.choice(happens)()

    def key(self) -> str:
        return self.lot.choice(ENDPOINTS).key

    def facts(self) -> Facts:
        facts = Facts(
            self.lot.choice((MODEL, MODEL, MODEL, "other")), self.lot.choice(PLACES),
            prompt_tokens=self.lot.randrange(4000), budget_ms=self.lot.choice((None, 900.0)),
            pinned_region=self.lot.choice((None, None, "us")), affinity_key=self.lot.getrandbits(64),
            prefix_blocks=(self.lot.getrandbits(64), 7), block_tokens=16,
        )  # fmt: skip
        self.last = facts
        return facts

    def asked(self) -> None:
        choice = self.routers[-1].route(self.facts(), self.fleet.snapshot, self.now_s)
        if isinstance(choice, Decision):
            self.sent(choice)

    def sent(self, choice: Decision) -> None:
        view = choice.option.view
        assert self.last is not None
        ticket = view.own.open_ticket(self.last.prompt_tokens, view.endpoint.capacity)
        if ticket is not None:
            self.tickets.append((view.endpoint.key, ticket))

    def failed_over(self) -> None:
        if self.last is not None:
            tried = [self.key()]
            failures = {tried[0].partition("/")[0]: 2}
            router = self.lot.choice(self.routers)
            choice = router.next_attempt(self.last, self.fleet.snapshot, self.now_s, tried, failures)
            if choice is not None:
                self.sent(choice)

    def explained(self) -> None:
        self.routers[-1].explain(self.facts(), self.fleet.snapshot, self.now_s)

    def went_on(self) -> None:
        if self.tickets:
            self.lot.choice(self.tickets)[1].first_token(self.now_s)

    def ended(self) -> None:
        if self.tickets:
            key, ticket = self.tickets.pop(self.lot.randrange(len(self.tickets)))
            ticket.close()
            self.fleet.outcome(key, self.lot.choice(list(Outcome)), self.now_s, SECRET)

    def probed(self) -> None:
        if self.lot.random() < 0.7:
            self.fleet.probe_passed(self.key(), self.now_s)
        else:
            self.fleet.probe_failed(self.key(), self.now_s, SECRET)

    def scraped(self) -> None:
        running = self.lot.choice((None, float(self.lot.randrange(9))))
        own = self.lot.randrange(3)
        waiting = self.lot.choice((None, 0.0, 2.0))
        sample = LoadSample(self.now_s, running, waiting, self.lot.random(), own_running_then=own)
        self.fleet.load_sampled(self.key(), sample)
        self.fleet.load_failed(self.key(), SECRET)

    def measured(self) -> None:
        self.fleet.rtt_measured(self.key(), self.lot.uniform(0.3, 300))

    def learnt(self) -> None:
        self.fleet.models_learnt(self.key(), [{"id": MODEL, "max_model_len": 4096}])

    def ticked(self) -> None:
        self.fleet.tick(self.now_s)

    def reloaded(self) -> None:
        """Another generation; exchanges of the old one go on with its router."""
        kept = self.lot.sample(ENDPOINTS, 4)
        self.fleet.configure(kept, MARKS)
        self.routers.append(self.router(RoutingRules(edge_place=self.lot.choice((None, FRANKFURT)))))

    def forced(self) -> None:
        self.fleet.force(self.key(), self.lot.choice(list(ForcedState)))


def recorded(steps: int = 300, seed: int = 1, rules: RoutingRules | None = None) -> Live:
    live = Live(rules or RoutingRules(), seed)
    for _ in range(steps):
        live.step()
    return live


@given(
    st.integers(0, 2**64 - 1),
    st.sampled_from(("ttft", "round_robin", "least_load", "nearest")),
    st.booleans(),
    st.sampled_from((None, FRANKFURT)),
)
@settings(max_examples=25, deadline=None)
def test_what_was_decided_is_decided_again(
    seed: int, policy: str, refuses: bool, edge_place: Place | None
) -> None:
    live = recorded(120, seed, RoutingRules(policy, refuses_over_budget=refuses, edge_place=edge_place))
    parity = replay(live.lines)
    assert parity.difference is None
    assert parity.equal == parity.decisions > 0
    assert parity.calls > parity.decisions


def test_recording_changes_no_decision() -> None:
    """The same edge without a recording decides the same."""

    class Plain(Live):
        def __init__(self) -> None:
            super().__init__(RoutingRules(), 5)
            self.recording._is_open = False

    plain, live = Plain(), Live(RoutingRules(), 5)
    for one in (plain, live):
        for _ in range(200):
            one.step()
    assert len(plain.lines) < 10 < len(live.lines)
    assert [view.own.requests for view in plain.fleet.snapshot.endpoints] == [
        view.own.requests for view in live.fleet.snapshot.endpoints
    ]
    assert plain.recording.dice.getstate() == live.recording.dice.getstate()


def decisions(lines: list[str]) -> list[tuple[int, dict[str, Any]]]:
    """Index and content of the lines in which an endpoint was chosen."""
    parsed = [(i, json.loads(line)) for i, line in enumerate(lines)]
    return [(i, data) for i, data in parsed if isinstance(data.get("gave"), dict) and "Decision" in data["gave"]]


def test_a_decision_that_differs_is_found_and_explained() -> None:
    lines = recorded().lines
    index, data = decisions(lines)[10]
    data["gave"]["Decision"]["predicted_ms"] += 0.001
    lines[index] = json.dumps(data)
    parity = replay(lines)
    assert parity.difference is not None
    assert parity.difference.line == index + 1
    assert parity.equal == parity.decisions - 1
    assert "network" in parity.difference.explanation
    live, replayed = parity.difference.live["Decision"], parity.difference.replayed["Decision"]
    assert {name for name in live if live[name] != replayed[name]} == {"predicted_ms"}


def test_an_input_that_was_lost_is_found() -> None:
    """What a recording must hold: without the scrapes other endpoints are chosen, or other milliseconds."""
    lines = [line for line in recorded().lines if '"do":"load_sampled"' not in line]
    parity = replay(lines)
    assert parity.difference is not None


def test_no_words_of_an_upstream_are_kept() -> None:
    assert SECRET not in "".join(recorded().lines)


def test_a_recording_that_was_cut_is_read_as_far_as_it_goes() -> None:
    text = "".join(recorded(40).lines)
    whole = replay(text.splitlines(keepends=True))
    last = text.rstrip("\n").rfind("\n") + 1
    for at in range(last + 1, len(text) - 1):
        parity = replay(text[:at].splitlines(keepends=True))
        assert parity.is_cut
        assert parity.difference is None
        assert parity.calls == whole.calls - 1


@pytest.mark.parametrize(
    ("line", "number", "message"),
    [
        ("{", 1, "no recording of gslb"),
        ("[]", 1, "no recording of gslb"),
        ('{"format": 99, "seed": 1}', 1, "is of format 99"),
        ('{"make": "x", "part": "Engine", "with": {}}', 3, "no part 'Engine'"),
        ('{"call": "nobody", "do": "tick", "with": {}, "gave": null}', 3, "nothing is named 'nobody'"),
        ('{"call": "fleet", "do": "_publish", "with": {}, "gave": null}', 3, "not for callers"),
        ('{"call": "fleet", "do": "absent", "with": {}, "gave": null}', 3, "cannot be replayed by this gslb"),
        ('{"call": "fleet", "do": "tick", "with": {"then_s": 1}, "gave": null}', 3, "cannot be replayed"),
        (
            '{"call": "fleet", "do": "tick", "with": {"now_s": {"is": "Path", "of": {}}}, "gave": null}',
            3,
            "no 'Path'",
        ),
        ('{"call": "fleet", "do": "tick", "with": {"now_s": {"what": 1}}, "gave": null}', 3, "cannot be read"),
        ("gone\n", 3, "no JSON"),
    ],
)
def test_what_cannot_be_replayed_names_its_line(line: str, number: int, message: str) -> None:
    lines = recorded(5).lines
    lines[number - 1] = line
    with pytest.raises(Unreadable, match=f"line {number}: .*{message}"):
        replay(lines)


def test_a_full_disk_ends_the_recording_and_nothing_else() -> None:
    written: list[str] = []
    faults: list[Exception] = []

    def write(line: str) -> None:
        if len(written) == 30:
            raise OSError(28, "No space left on device")
        written.append(line)

    live = Live(RoutingRules(), 3, write)
    live.recording._on_fault = faults.append
    for _ in range(100):
        live.step()
    assert [type(fault) for fault in faults] == [OSError]
    parity = replay(written)
    assert parity.difference is None
    assert len(written) == 30


def test_a_value_it_does_not_know_ends_the_recording_and_nothing_else() -> None:
    live = recorded(20)
    faults: list[Exception] = []
    live.recording._on_fault = faults.append
    strange: Any = Random(1)
    facts = Facts(strange, FRANKFURT)
    assert isinstance(live.routers[-1].route(facts, live.fleet.snapshot, live.now_s), Refusal)
    live.fleet.tick(live.now_s)
    assert "cannot hold a random.Random" in str(faults[0])
    assert len(faults) == 1
    assert replay(live.lines).difference is None


def test_the_command_says_how_many_were_equal(tmp_path: Path) -> None:
    file = tmp_path / "decisions.jsonl"
    lines = recorded().lines
    file.write_text("".join(lines))
    result = CliRunner().invoke(replay_command, [str(file)])
    deciding = [f'"do":"{name}"' for name in DECIDING]
    count = sum(any(name in line for name in deciding) for line in lines)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{count} decisions, {count} equal")

    index, data = decisions(lines)[0]
    data["gave"]["Decision"]["endpoint"] = "mars/1"
    lines[index] = json.dumps(data) + "\n"
    file.write_text("".join(lines))
    result = CliRunner().invoke(replay_command, [str(file)])
    assert result.exit_code == 1
    assert f"line {index + 1}: router" in result.stdout
    assert "mars/1" in result.stdout
    as_json = json.loads(CliRunner().invoke(replay_command, [str(file), "--json"]).stdout)
    assert as_json["difference"]["live"]["Decision"]["endpoint"] == "mars/1"
    assert as_json["decisions"] == as_json["equal"] + 1

    file.write_text("hello\n")
    result = CliRunner().invoke(replay_command, [str(file)])
    assert result.exit_code == 1
    assert "decisions.jsonl: line 1: this is no recording of gslb" in result.stderr


@pytest.mark.parametrize("kind", ["EndpointView", "Snapshot", "Facts", "Endpoint", "LoadSample", "Decision"])
def test_what_the_cores_calls_take_and_give_can_be_recorded(kind: str) -> None:
    """A class that moves to another room must be carried from there: some are in a call once a second only."""
    assert kind in CARRIED
