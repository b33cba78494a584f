"""Properties of every decision over random fleets: fences hold, nothing repeats, explanations agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gslb.policy.residency import ResidencyFence, ResidencyFenceRule
from gslb.routing.explanation import one_line
from gslb.routing.health import SUSPICION, Outcome, State
from gslb.routing.policies import POLICIES
from gslb.routing.router import Decision, Refusal, Router
from gslb.routing.snapshot import EndpointView
from gslb.routing.view import FleetView
from gslb.types import UNKNOWN_PLACE, Facts, ForcedState
from tests.support.builders import (
    FRANKFURT,
    MARKS,
    TOKYO,
    VIRGINIA,
    endpoint,
    find,
    fleet,
    occupy,
    region,
    router,
    sample,
)

PLACES = [FRANKFURT, VIRGINIA, TOKYO, UNKNOWN_PLACE]
LAWS = st.frozensets(st.sampled_from(["EU", "US", "JP"]), max_size=2)
NAMES = ["eu", "us", "ap"]
MODELS = ["llama", "qwen"]
RULES = st.lists(
    st.builds(
        ResidencyFenceRule,
        st.lists(st.sampled_from(["DE", "US", "JP"]), min_size=1, max_size=2).map(tuple),
        st.sampled_from([frozenset({"EU"}), frozenset({"US"}), frozenset({"EU", "JP"})]),
    ),
    max_size=2,
)


@dataclass
class World:
    view: FleetView
    residency: ResidencyFence
    facts: Facts
    router: Router


@st.composite
def worlds(draw: Any) -> World:
    laws = [draw(LAWS) for _ in NAMES]
    tiers = [draw(st.integers(0, 1)) for _ in NAMES]
    regions = [
        region(name, place, law, tier)
        for name, place, law, tier in zip(NAMES, PLACES[:3], laws, tiers, strict=True)
    ]
    models = st.none() | st.frozensets(st.sampled_from(MODELS))
    members = [
        endpoint(
            draw(st.sampled_from(regions)),
            number,
            models=draw(models),
            capacity=draw(st.sampled_from([None, 1, 4])),
        )
        for number in range(draw(st.integers(0, 8)))
    ]
    view = fleet(members, is_well=False)
    for member in members:
        put_in(view, member.key, draw(st.sampled_from(State)))
        view.force(member.key, draw(st.sampled_from([ForcedState.NONE, *ForcedState])))
        occupy(view, member.key, draw(st.integers(0, 5)), draw(st.sampled_from([0, 500])))
        if draw(st.booleans()):
            view.load_sampled(
                member.key, sample(draw(st.sampled_from([0.0, 99.0])), running=draw(st.integers(0, 6)))
            )
    residency = ResidencyFence(draw(RULES), draw(st.sampled_from(["deny", "allow"])))
    asked = Facts(
        draw(st.sampled_from(MODELS)), draw(st.sampled_from(PLACES)), "acme", draw(st.integers(0, 5000)),
        budget_ms=draw(st.sampled_from([None, 50.0, 5000.0])),
        pinned_region=draw(st.sampled_from([None, None, *NAMES, "mars"])),
        tenant_jurisdictions=draw(st.none() | LAWS),
    )  # fmt: skip
    asking = router(
        draw(st.integers(0, 9)), residency.deny_reason, policy=draw(st.sampled_from(sorted(POLICIES))),
        objective=draw(st.sampled_from(["latency", "cost"])), order=tuple(draw(st.permutations(NAMES))),
        refuses_over_budget=draw(st.booleans()), edge_place=draw(st.sampled_from([None, FRANKFURT])),
    )  # fmt: skip
    return World(view, residency, asked, asking)


def put_in(view: FleetView, key: str, state: State) -> None:
    """Bring a new endpoint into `state`, at second 100 at the latest."""
    if state is not State.UNKNOWN:
        view.probe_passed(key, 0.0)
    if state is State.SUSPECT:
        view.outcome(key, Outcome.BROKEN, 0.0, "reset")
    if state in (State.EJECTED, State.PROBING):
        for _ in range(MARKS.passive_fall):
            view.outcome(key, Outcome.BROKEN, 80.0 if state is State.PROBING else 99.0, "reset")
        view.tick(100.0)
    assert find(view.snapshot, key).state is state


def may_serve(world: World, view: EndpointView) -> bool:
    """The fences, said once more in the plainest way."""
    asked, where = world.facts, view.endpoint.region
    return (
        view.models is not None
        and asked.model in view.models
        and view.forced is ForcedState.NONE
        and asked.pinned_region in (None, where.name)
        and (asked.tenant_jurisdictions is None or bool(asked.tenant_jurisdictions & where.jurisdictions))
        and world.residency.deny_reason(asked.place, where) is None
    )


def attempts(world: World) -> Iterator[Decision]:
    """The decisions of one exchange in which every attempt fails."""
    choice: Decision | Refusal | None = world.router.route(world.facts, world.view.snapshot, 100.0)
    tried: list[str] = []
    failures: Counter[str] = Counter()
    while isinstance(choice, Decision):
        yield choice
        tried.append(choice.option.view.endpoint.key)
        failures[choice.region] += 1
        choice = world.router.next_attempt(world.facts, world.view.snapshot, 100.0, tried, failures)


@given(worlds())
@settings(max_examples=150, deadline=None)
def test_no_attempt_crosses_a_fence_or_repeats(world: World) -> None:
    made = list(attempts(world))
    used = [decision.option.view.endpoint.key for decision in made]
    assert len(used) == len(set(used))
    assert all(may_serve(world, decision.option.view) for decision in made)
    assert all(decision.region == decision.option.view.endpoint.region.name for decision in made)


@given(worlds())
@settings(max_examples=100, deadline=None)
def test_somebody_serves_whenever_somebody_may(world: World) -> None:
    allowed = [view for view in world.view.snapshot.endpoints if may_serve(world, view)]
    choice = world.router.route(world.facts, world.view.snapshot, 100.0)
    if not allowed:
        assert isinstance(choice, Refusal)
        assert choice.code in ("no_healthy_region", "bad_request", "model_not_found", "residency_denied")
    elif isinstance(choice, Refusal):
        assert choice.code in ("saturated", "latency_budget_unreachable")
        assert choice.retry_after_s is not None
        assert choice.retry_after_s >= 1


@given(worlds())
@settings(max_examples=100, deadline=None)
def test_ejected_endpoints_come_last(world: World) -> None:
    """The operator's first-tier region, struck or not: nobody ill before the last well one that is not full."""
    suspicions = [SUSPICION[decision.option.view.state] for decision in attempts(world)]
    ill = SUSPICION[State.EJECTED]
    assert all(later == ill for earlier, later in pairwise(suspicions) if earlier == ill)


@given(worlds())
@settings(max_examples=100, deadline=None)
def test_explanations_agree_with_decisions(world: World) -> None:
    choice, explanation = world.router.explain(world.facts, world.view.snapshot, 100.0)
    ranked = [one.endpoint for one in explanation.ranked]
    dropped = [one.endpoint for one in explanation.dropped]
    assert sorted(ranked + dropped) == sorted(view.endpoint.key for view in world.view.snapshot.endpoints)
    assert [one.total_ms for one in explanation.ranked] == sorted(one.total_ms for one in explanation.ranked)
    for one in explanation.ranked:
        assert abs(one.total_ms - (one.network_ms + one.queue_ms + one.prefill_ms + one.tax_ms)) < 0.01
    if isinstance(choice, Decision):
        assert explanation.choice in explanation.ranked
        assert explanation.choice is not None
        assert explanation.choice.endpoint == choice.option.view.endpoint.key
        assert (explanation.home, explanation.reason) == (choice.home, choice.reason)
        assert (choice.reason == "home") == (choice.region == choice.home)
    else:
        assert explanation.choice is None
        assert explanation.reason == choice.code
    assert one_line(explanation).isprintable()


@given(worlds())
@settings(max_examples=50, deadline=None)
def test_the_same_dice_decide_the_same(world: World) -> None:
    def twin() -> Router:
        return router(7, world.residency.deny_reason, policy=world.router.rules.policy, order=tuple(NAMES))

    def said(choice: Decision | Refusal) -> object:
        return choice.option.view.endpoint.key if isinstance(choice, Decision) else choice

    first, second = twin(), twin()
    for _ in range(5):
        assert said(first.route(world.facts, world.view.snapshot, 100.0)) == said(
            second.route(world.facts, world.view.snapshot, 100.0)
        )
