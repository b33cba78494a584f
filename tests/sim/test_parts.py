"""What an edge does without one part of gslb, and that nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gslb.routing.health import Cause, State
from gslb.routing.hold import HoldRules
from gslb.routing.learn import STEPS_TO_FIRST
from gslb.routing.rules import RoutingRules
from gslb.routing.snapshot import EndpointView
from gslb.sim.desk import Desk
from gslb.sim.parts import OWN_WAYS, PARTS, PartLoad, labelled, reduced
from gslb.sim.result import RunResult
from gslb.sim.setting import Ask, Fault, Setting
from gslb.sim.world import World, run
from tests.sim.test_world import TROUBLE, play, quiet_end, small

HOLDING = {"rules": RoutingRules(holds=True), "hold": HoldRules(max_requests=200, max_wait_s=10.0)}
REFUSING = {
    "rules": RoutingRules(holds=True, refuses_over_budget=True),
    "hold": HoldRules(max_requests=200, max_wait_s=10.0, refuses_late=True),
}


def capped(setting: Setting) -> Setting:
    """The edges are told how many slots there are."""
    endpoints = tuple(replace(one, capacity=setting.engines[one.key].slots) for one in setting.endpoints)
    return replace(setting, endpoints=endpoints)


def without(setting: Setting, *parts: str) -> Setting:
    return replace(setting, without=frozenset(parts))


def both(setting: Setting, *parts: str, policy: str = "ttft") -> tuple[RunResult, RunResult]:
    """The whole, and what is left."""
    return play(setting, policy), play(without(setting, *parts), policy)


def at(setting: Setting, until_s: float, policy: str = "ttft") -> World:
    """The world as it is at that time."""
    world = World(setting, policy, 1, lambda: 0.0)
    world.play(lambda share: share * setting.duration_s < until_s)
    return world


def desks(world: World) -> list[Desk]:
    return [edge.chooser for edge in world.edges.values() if isinstance(edge.chooser, Desk)]


def views(world: World) -> list[EndpointView]:
    return [view for desk in desks(world) for view in desk.fleet.snapshot.endpoints]


def state_of(setting: Setting, key: str, until_s: float) -> tuple[State, Cause | None]:
    """How Virginia's edge sees an endpoint at that time."""
    known = desks(at(setting, until_s))[0].fleet.known(key)
    assert known is not None
    return known.state, known.cause


# --- all of them --------------------------------------------------------------------------------------


def test_with_nothing_taken_away_nothing_changes() -> None:
    setting = small(60.0, faults=TROUBLE, **REFUSING)
    whole, same = both(setting)
    assert whole == same
    assert (same.policy, same.without) == ("ttft", ())
    assert reduced(setting, "ttft") == setting


@pytest.mark.parametrize("part", PARTS)
def test_without_any_part_everything_ends_and_nothing_leaks(part: str) -> None:
    setting = quiet_end(capped(small(90.0, duration_s=100.0, faults=TROUBLE, **REFUSING)), 15.0)
    world = World(without(setting, part), "ttft", 1, lambda: 0.0)
    assert world.play(lambda _share: True)
    result = world.result(0.0, True)
    assert (result.policy, result.without) == (f"ttft -{part}", (part,))
    assert result.total.unfinished == 0
    assert sum(desk.held for desk in desks(world)) == 0
    assert all((view.own.requests, view.own.pending_tokens) == (0, 0) for view in views(world))


def test_a_label_names_what_is_gone_in_one_order() -> None:
    assert labelled("gorgo", ()) == "gorgo"
    assert labelled("gorgo", {"learning", "hold"}) == "gorgo -hold -learning"


def test_the_readme_says_the_same_of_every_part() -> None:
    readme = Path(__file__).resolve().parents[2] / "README.md"
    if not readme.exists():
        pytest.skip("tested away from the README, as compiled rooms are")
    rows = [line for line in readme.read_text("utf-8").splitlines() if line.startswith("| `")]
    assert [f"| `{part}` | {told} |" for part, told in PARTS.items()] == [
        row for row in rows if row.split("`")[1] in PARTS
    ]


def test_what_does_not_exist_cannot_be_taken_away() -> None:
    with pytest.raises(ValueError, match="unknown part 'luck'; known: in_flight, "):
        play(without(small(), "luck"))
    for policy in OWN_WAYS:
        with pytest.raises(ValueError, match=f"{policy} uses no part of gslb"):
            play(without(small(), "hold"), policy)


def test_the_published_form_of_a_policy_holds_learns_and_refuses_nothing() -> None:
    setting = capped(small(90.0, **REFUSING))
    world = at(without(setting, "hold", "learning", "refusal"), 15.0, "gorgo")
    assert sum(site.engine.waiting for site in world.sites.values()) > 20
    assert world.score.total().shed == 0
    assert any(view.own.requests for view in views(world))


# --- what is counted ----------------------------------------------------------------------------------


def test_without_in_flight_the_load_is_what_was_scraped() -> None:
    setting = small(60.0)
    seen = views(at(without(setting, "in_flight"), 10.0))
    assert all(view.own.requests == 0 for view in seen)
    assert sum(view.own.pending_tokens for view in seen) > 0
    for view in seen:
        assert view.load is not None
        assert view.others == (view.load.running or 0) + (view.load.waiting or 0)
    assert sum(view.guests.requests for view in seen) > 0
    whole = views(at(setting, 10.0))
    assert sum(view.own.requests for view in whole) > 100
    assert sum(view.others for view in whole) < sum(view.others for view in seen)


def test_without_pending_tokens_no_own_prompt_is_ahead() -> None:
    setting = small(60.0)
    world = at(without(setting, "pending_tokens"), 10.0)
    assert all(view.own.pending_tokens == 0 for view in views(world))
    assert any(view.own.requests for view in views(world))
    decisions = [attempt.decision for edge in world.edges.values() for attempt in edge._silent]
    assert decisions
    assert all(decision is not None and decision.option.ahead == 0 for decision in decisions)
    assert sum(view.own.pending_tokens for view in views(at(setting, 10.0))) > 0


def test_a_load_that_is_not_counted_fills_no_capacity() -> None:
    tickets = [PartLoad(0, 1).open_ticket(5, capacity=1) for _ in range(3)]
    assert None not in tickets
    load = PartLoad(1, 0)
    ticket = load.open_ticket(5, capacity=1)
    assert ticket is not None
    assert load.open_ticket(5, capacity=1) is None
    assert (load.requests, load.pending_tokens) == (1, 0)
    ticket.first_token(0.0)
    ticket.close()
    assert (load.requests, load.pending_tokens) == (0, 0)


# --- what is known ------------------------------------------------------------------------------------


def conversations(setting: Setting) -> Setting:
    """Two hundred conversations that take turns, each with a long prompt of its own."""

    def offered(dice: Random) -> Iterator[Ask]:
        for number, ask in enumerate(setting.offered(dice)):
            session = number % 200
            edge = setting.edges[session % len(setting.edges)]
            blocks = tuple(range(session * 100, session * 100 + 20))
            yield Ask(ask.at_s, edge.place, edge.name, 5200, 20, 2000.0, blocks, 256, session)

    return replace(setting, offered=offered)


def test_without_affinity_conversations_are_scattered() -> None:
    whole, rest = both(conversations(small(8.0, duration_s=60.0, warm_up_s=30.0)), "affinity")
    shares = [result.total.cached_tokens / result.total.prompt_tokens for result in (whole, rest)]
    assert shares[0] > 0.9
    assert shares[1] < shares[0] - 0.2
    world = at(without(conversations(small()), "affinity"), 10.0)
    assert all(desk.affinity is None for desk in desks(world))


def test_without_learning_everything_stays_as_declared() -> None:
    setting = small(60.0, faults=(Fault("brown_out", "virginia", 2.0, 20.0, factor=3.0),))
    seen = views(at(without(setting, "learning"), 15.0))

    def is_declared(view: EndpointView) -> bool:
        one = view.endpoint
        declared = (STEPS_TO_FIRST * one.step_ms, one.prefill_ms_per_token, one.slot_hold_ms)
        return (view.base_ms, view.rate_ms, view.slot_hold_ms) == pytest.approx(declared)

    assert all(is_declared(view) for view in seen)
    assert not any(is_declared(view) for view in views(at(setting, 15.0)) if view.own.requests)


# --- where it goes ------------------------------------------------------------------------------------


def test_without_damping_a_hot_region_drowns_the_next_one() -> None:
    setting = capped(small(10.0, duration_s=30.0, shares=(1.0, 0.0, 0.0, 0.0, 0.0)))

    def guests(setting: Setting) -> int:
        seen = desks(at(setting, 25.0))[0].fleet.snapshot.endpoints
        return max(view.guests.requests for view in seen if view.endpoint.region.name == "oregon")

    assert guests(setting) <= 16 == 0.5 * 32
    assert guests(without(setting, "damping")) > 20
    rules = reduced(without(setting, "damping"), "ttft").rules
    assert (rules.damping.near_equal_ms, rules.damping.foreign_tax_ms) == (0.0, 0.0)
    assert min(rules.gate_shut, rules.gate_open, rules.spill_cap) == float("inf")


def test_the_marks_of_ordered_are_its_own() -> None:
    setting = without(small(), "damping")
    marked = replace(setting, rules=replace(setting.rules, gate_shut=0.7, gate_open=0.5))
    rules = reduced(marked, "ordered").rules
    assert (rules.gate_shut, rules.gate_open, rules.spill_cap) == (0.7, 0.5, float("inf"))


# --- who waits ----------------------------------------------------------------------------------------


def test_without_hold_engines_queue_beyond_any_cap() -> None:
    setting = capped(small(90.0, **HOLDING))
    whole, rest = at(setting, 15.0), at(without(setting, "hold"), 15.0)
    assert sum(desk.held for desk in desks(whole)) > 20
    assert sum(desk.held for desk in desks(rest)) == 0
    waiting = [sum(site.engine.waiting for site in world.sites.values()) for world in (whole, rest)]
    assert waiting[1] > 20 + waiting[0]
    assert rest.score.total().shed == 0
    assert all((view.slots, view.endpoint.capacity) == (16, None) for view in views(rest))
    assert max(view.own.requests for view in views(rest)) > 16


def in_classes(setting: Setting) -> Setting:
    """Every second request is more important; their prompts are alike, so that nothing else tells them apart."""

    def offered(dice: Random) -> Iterator[Ask]:
        for number, ask in enumerate(setting.offered(dice)):
            tenant = ("small", "large")[number % 2]
            yield replace(ask, prompt_tokens=1000, tenant=tenant, priority=number % 2)

    return replace(setting, offered=offered)


def held_by_class(setting: Setting) -> list[int]:
    """How many of each class wait at the edges at the end."""
    held: list[Any] = [held for desk in desks(at(setting, 15.0)) for held in desk._queue._ends._entries]
    return [sum(entry[2].cookie.ask.priority == priority for entry in held) for priority in (0, 1)]


def test_without_hold_order_classes_wait_alike() -> None:
    setting = in_classes(capped(small(35.0, **HOLDING)))
    less, more = held_by_class(setting)
    assert less > 5 * more
    less, more = held_by_class(without(setting, "hold_order"))
    assert more > 0.6 * less > 20


def test_without_refusal_the_late_are_served_late() -> None:
    whole, rest = both(capped(small(90.0, duration_s=15.0, **REFUSING)), "refusal")
    assert whole.reasons["latency_budget_unreachable"] > 50
    assert "latency_budget_unreachable" not in rest.reasons
    assert rest.total.shed < whole.total.shed / 2


# --- who is well --------------------------------------------------------------------------------------


def test_without_progress_a_hung_engine_stays_in_use() -> None:
    hung = Fault("hung_engine", "virginia/1", 4.0, 40.0)
    setting = small(60.0, duration_s=30.0, faults=(hung,))
    setting = replace(setting, marks=replace(setting.marks, stall_s=4.0))
    assert state_of(setting, "virginia/1", 15.0) == (State.EJECTED, Cause.PROGRESS)
    assert state_of(without(setting, "progress"), "virginia/1", 15.0) == (State.ADMITTING, None)


def test_without_ejection_who_fails_is_asked_again_and_again() -> None:
    setting = small(20.0, faults=(Fault("region_loss", "virginia", 5.0, 18.0),))
    assert state_of(setting, "virginia/1", 15.0) == (State.EJECTED, Cause.PROBES)
    assert state_of(without(setting, "ejection"), "virginia/1", 15.0) == (State.ADMITTING, None)
    whole, rest = both(setting, "ejection")
    assert rest.total.attempts > whole.total.attempts + 50


def test_without_slow_start_who_comes_back_gets_all_of_its_share() -> None:
    setting = small(60.0, faults=(Fault("region_loss", "virginia", 3.0, 8.0),))

    def share(setting: Setting) -> float:
        return min(view.share for view in views(at(setting, 16.0)) if view.endpoint.region.name == "virginia")

    assert share(setting) < 0.5
    assert share(without(setting, "slow_start")) == 1.0


def test_a_run_tells_its_parts_by_the_door_that_everybody_uses() -> None:
    result = run(
        without(small(duration_s=3.0), "hold", "affinity"), "lmetric", 1, lambda: 0.0, lambda _share: True
    )
    assert (result.policy, result.without) == ("lmetric -affinity -hold", ("affinity", "hold"))
