"""The hold queue: nobody lost or served twice, the four laws of its order, bounds, true early refusals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gslb.routing.hold import REQUEST_COST, Held, HoldQueue, HoldRules
from gslb.routing.refusal import NoRoom, Refusal
from gslb.routing.router import Decision
from gslb.routing.waiting import Drain
from gslb.types import Facts
from tests.support.builders import decided, facts, fleet_at, router

FULL = NoRoom("eu", least_ms=100.0, drain_per_s=10.0)
GO = decided(router().route(facts(), fleet_at({"eu": 10}).snapshot, 0.0))  # type: ignore[arg-type]
NO = Refusal("no_healthy_region", "gone")


def queue(**rules: Any) -> HoldQueue:
    """A queue that trusts predictions, unless told otherwise."""
    rules.setdefault("doubt", 0.0)
    return HoldQueue(HoldRules(**rules))


def hold(line: HoldQueue, name: object, at_s: float = 0.0, group: Hashable = "g", **members: Any) -> Held:
    """Hold a request that must be taken."""
    held = line.add(facts(**members), group, name, at_s, FULL)
    assert isinstance(held, Held), held
    return held


def refuse(line: HoldQueue, at_s: float = 0.0, group: Hashable = "g", **members: Any) -> Refusal:
    """Offer a request that must not be taken."""
    refusal = line.add(facts(**members), group, "newcomer", at_s, FULL)
    assert isinstance(refusal, Refusal), refusal
    return refusal


def places(count: int) -> Callable[[Held], Decision | NoRoom]:
    """Room for so many, whoever they are."""
    left = [count]

    def place(held: Held) -> Decision | NoRoom:
        left[0] -= 1
        return GO if left[0] >= 0 else FULL

    return place


def let_go(line: HoldQueue, count: int, now_s: float = 0.0) -> list[object]:
    """The names of those that `count` free slots go to, in order."""
    return [held.cookie for held, _ in line.release(now_s, places(count))]


def ended(line: HoldQueue, now_s: float) -> list[tuple[object, str]]:
    """Who is refused now, and with what code."""
    return [(held.cookie, refusal.code) for held, refusal in line.overdue(now_s)]


class TestOrder:
    def test_equal_requests_go_in_order_of_arrival(self) -> None:
        line = queue()
        for name in "abcd":
            hold(line, name)
        assert let_go(line, 3) == ["a", "b", "c"]
        assert len(line) == 1

    def test_within_a_tenant_the_one_whose_budget_ends_first(self) -> None:
        line = queue()
        hold(line, "long", budget_ms=9000)
        hold(line, "short", budget_ms=1000)
        hold(line, "later but as short", 0.5, budget_ms=600)
        assert let_go(line, 3, 0.5) == ["short", "later but as short", "long"]

    def test_who_needs_longer_does_not_overtake_for_that(self) -> None:
        """Those who were there first were told that their wait fits: each who goes before them makes one late."""
        line = queue()
        for number, needs_ms in enumerate((100.0, 700.0, 20.0, 500.0)):
            line.add(facts(budget_ms=1000), "g", number, 0.01 * number, NoRoom("eu", needs_ms, 10.0))
        assert let_go(line, 4, 0.1) == [0, 1, 2, 3]

    def test_without_budget_its_time_ends_when_it_gives_up(self) -> None:
        line = queue(max_wait_s=30)
        patient = hold(line, "patient")
        hold(line, "has 20 s", 5.0, budget_ms=20_000)
        hold(line, "has 20 s, later", 12.0, budget_ms=20_000)
        assert patient.due_s == inf
        assert let_go(line, 3, 13.0) == ["has 20 s", "patient", "has 20 s, later"]

    def test_the_late_last_and_not_dropped(self) -> None:
        line = queue()
        hold(line, "late", budget_ms=500)
        hold(line, "in time", budget_ms=5000)
        hold(line, "late too", budget_ms=600)
        assert let_go(line, 3, 2.0) == ["in time", "late", "late too"]

    def test_late_is_what_cannot_be_in_time_any_more(self) -> None:
        line = queue()
        held = hold(line, "a", budget_ms=500)
        assert held.due_s == pytest.approx(0.4), "its first token takes 100 ms from there"
        hold(line, "b", budget_ms=550)
        assert let_go(line, 2, 0.4) == ["a", "b"]
        hold(line, "a", budget_ms=500)
        hold(line, "b", budget_ms=550)
        assert let_go(line, 2, 0.41) == ["b", "a"]

    def test_a_higher_class_first_even_when_it_is_late(self) -> None:
        line = queue()
        hold(line, "low", budget_ms=5000)
        hold(line, "high", budget_ms=200, priority=1)
        hold(line, "highest", priority=7)
        assert let_go(line, 3, 2.0) == ["highest", "high", "low"]

    def test_one_full_group_holds_up_no_other_and_is_asked_once(self) -> None:
        line = queue()
        for name in range(100):
            hold(line, name, group="full")
        for name in "ab":
            hold(line, name, group="free")
        asked: Counter[Hashable] = Counter()

        def place(held: Held) -> Decision | NoRoom:
            asked[held.group[0]] += 1
            return GO if held.group[0] == "free" else FULL

        assert [held.cookie for held, _ in line.release(0.0, place)] == ["a", "b"]
        assert asked == {"full": 1, "free": 2}

    def test_over_groups_the_order_is_one(self) -> None:
        line = queue()
        hold(line, "low", group="g", priority=0)
        hold(line, "high", group="h", priority=1)
        hold(line, "middle", group="h", priority=0)
        assert let_go(line, 3) == ["high", "low", "middle"]

    def test_a_refusal_ends_only_its_own_waiting(self) -> None:
        line = queue()
        hold(line, "a")
        hold(line, "b")
        told = [
            (held.cookie, choice) for held, choice in line.release(0.0, lambda h: NO if h.cookie == "a" else GO)
        ]
        assert told == [("a", NO), ("b", GO)]

    def test_what_is_left_of_the_budget_is_what_is_routed_by(self) -> None:
        line = queue()
        held = hold(line, "a", 10.0, budget_ms=1500, prompt_tokens=7)
        assert held.facts_at(11.0).budget_ms == pytest.approx(500)
        assert held.facts_at(12.0).budget_ms == 0.0
        assert held.facts_at(11.0).prompt_tokens == 7
        unbound = hold(line, "b", 10.0)
        assert unbound.facts_at(12.0) is unbound.facts


class TestTenants:
    def test_one_with_many_requests_does_not_crowd_out_another(self) -> None:
        line = queue()
        for number in range(20):
            hold(line, ("many", number), tenant="many")
        hold(line, ("few", 0), tenant="few")
        hold(line, ("few", 1), tenant="few")
        assert [name for name, _ in let_go(line, 4)] == ["many", "few", "many", "few"]  # type: ignore[misc]

    def test_long_prompts_count_for_more(self) -> None:
        line = queue()
        for number in range(20):
            hold(line, ("long", number), tenant="long", prompt_tokens=3 * REQUEST_COST)
            hold(line, ("short", number), tenant="short")
        served = Counter(name for name, _ in let_go(line, 15))  # type: ignore[misc]
        assert served == {"long": 3, "short": 12}

    def test_idling_saves_up_nothing(self) -> None:
        line = queue()
        hold(line, ("busy", -1), tenant="busy")
        for number in range(50):
            hold(line, ("busy", number), tenant="busy")
        let_go(line, 30)
        for number in range(20):
            hold(line, ("late comer", number), tenant="late comer")
        served = Counter(name for name, _ in let_go(line, 10))  # type: ignore[misc]
        assert served == {"busy": 5, "late comer": 5}

    def test_leaving_and_coming_back_clears_no_account(self) -> None:
        """One request at a time, each after the last was served, must not be always the first in line."""
        line = queue()
        for _ in range(40):
            hold(line, "many", tenant="many")
        served: Counter[object] = Counter()
        for _ in range(20):
            if not any(held_by == "one" for held_by in _tenants(line)):
                hold(line, "one", tenant="one", prompt_tokens=2 * REQUEST_COST)
            served.update(let_go(line, 1))
        assert served["one"] == pytest.approx(5, abs=1), served

    def test_an_account_is_one_over_all_groups(self) -> None:
        line = queue()
        for number in range(20):
            hold(line, "wide", group=f"g{number % 4}", tenant="wide")
            hold(line, "narrow", group="g0", tenant="narrow")
        served = Counter(let_go(line, 20))
        assert served == {"wide": 10, "narrow": 10}


def _tenants(line: HoldQueue) -> list[str]:
    return [tenant for tenants in line._waiting.values() for tenant in tenants]


class TestAgeing:
    def test_a_low_class_waits_no_longer_than_a_step_per_class(self) -> None:
        line = queue(ageing_s=10, max_wait_s=1000)
        hold(line, "low", priority=0)
        for second in range(1, 60):
            hold(line, "middle", float(second), priority=3)
            hold(line, "high", float(second), priority=9)
            (first,) = let_go(line, 1, float(second))
            if first == "low":
                break
        assert second == 20, "two classes above it"

    def test_the_class_it_rises_to_is_the_next_that_waits(self) -> None:
        line = queue(ageing_s=10)
        held = hold(line, "low", priority=-5)
        hold(line, "high", 9.0, priority=100)
        let_go(line, 0, 10.0)
        assert held.priority == 100
        assert line.depths() == {100: 2}
        assert let_go(line, 2, 10.0) == ["low", "high"]

    def test_the_highest_stays(self) -> None:
        line = queue(ageing_s=1)
        held = hold(line, "only", priority=3)
        let_go(line, 0, 25.0)
        assert held.priority == 3

    def test_it_catches_up_when_nobody_looked_for_long(self) -> None:
        line = queue(ageing_s=1)
        low = hold(line, "low", priority=0)
        hold(line, "middle", priority=1)
        hold(line, "high", priority=2)
        let_go(line, 0, 2.0)
        assert low.priority == 2


class TestNewcomers:
    def test_wait_behind_their_class_and_higher_ones(self) -> None:
        line = queue()
        hold(line, "a", priority=2)
        assert line.must_wait("g", 2, "eu/1")
        assert line.must_wait("g", 1, "eu/1")
        assert not line.must_wait("g", 3, "eu/1")
        assert not line.must_wait("h", 0, "eu/1")
        let_go(line, 1)
        assert not line.must_wait("g", 0, "eu/1")


class TestEnds:
    def test_nobody_waits_longer_than_allowed(self) -> None:
        line = queue(max_wait_s=30)
        hold(line, "a", 0.0)
        hold(line, "b", 5.0)
        assert line.next_due_s() == 30.0
        assert ended(line, 29.9) == []
        assert ended(line, 30.0) == [("a", "saturated")]
        assert line.next_due_s() == 35.0
        assert ended(line, 99.0) == [("b", "saturated")]
        assert (len(line), line.next_due_s()) == (0, inf)

    def test_nor_longer_than_its_holder_allows(self) -> None:
        line = queue()
        held = line.add(facts(), "g", "a", 0.0, FULL, until_s=2.0)
        assert isinstance(held, Held)
        assert (held.gives_up_s, line.next_due_s()) == (2.0, 2.0)
        assert ended(line, 2.0) == [("a", "saturated")]

    def test_predictions_are_doubted(self) -> None:
        line = HoldQueue(HoldRules(refuses_late=True))
        assert hold(line, "a", budget_ms=1000).due_s == pytest.approx(1.0 - 0.125)

    def test_who_has_left_is_not_let_go(self) -> None:
        line = queue()
        first, second = hold(line, "a"), hold(line, "b")
        line.remove(first)
        line.remove(first)
        assert let_go(line, 5) == ["b"]
        line.remove(second)
        assert (len(line), line.depths()) == (0, {})

    def test_refused_when_the_budget_is_missed_if_so_configured(self) -> None:
        line = queue(refuses_late=True)
        hold(line, "short", budget_ms=1000)
        hold(line, "unbound")
        assert line.next_due_s() == pytest.approx(0.9)
        assert ended(line, 0.9) == [("short", "latency_budget_unreachable")]

    def test_new_rules_bind_those_who_come_later(self) -> None:
        line = queue(max_wait_s=30)
        hold(line, "a")
        line.rules = HoldRules(max_requests=0, max_wait_s=1)
        assert refuse(line).code == "saturated"
        assert ended(line, 29.0) == []
        assert let_go(line, 1) == ["a"]


class TestBounds:
    def test_a_full_queue_refuses(self) -> None:
        line = queue(max_requests=3)
        for name in "abc":
            hold(line, name)
        refusal = refuse(line)
        assert (refusal.code, refusal.home) == ("saturated", "eu")
        assert len(line) == 3

    def test_zero_holds_nobody(self) -> None:
        assert refuse(queue(max_requests=0)).code == "saturated"

    def test_a_higher_class_displaces_the_last_of_the_lowest(self) -> None:
        line = queue(max_requests=3)
        for name, priority in (("a", 0), ("b", 0), ("c", 1)):
            hold(line, name, priority=priority)
        hold(line, "important", priority=2)
        assert line.next_due_s() == -inf
        assert ended(line, 0.0) == [("b", "saturated")]
        assert let_go(line, 9) == ["important", "c", "a"]

    def test_a_tenant_with_most_gives_way_to_one_with_less(self) -> None:
        line = queue(max_requests=4)
        for name in range(4):
            hold(line, name, tenant="many")
        hold(line, "x", tenant="few")
        hold(line, "y", tenant="few")
        assert refuse(line, tenant="few").code == "saturated", "they are equal now"
        assert sorted(ended(line, 0.0)) == [(2, "saturated"), (3, "saturated")]
        assert len(line) == 4

    def test_a_late_one_gives_way_to_one_that_is_not(self) -> None:
        line = queue(max_requests=3)
        hold(line, "a", budget_ms=300)
        hold(line, "b", budget_ms=400)
        hold(line, "c", budget_ms=5000)
        hold(line, "d", 1.0, budget_ms=2000)
        assert ended(line, 1.0) == [("b", "saturated")]
        assert refuse(line, 1.0, budget_ms=50).code == "saturated", "itself late"
        hold(line, "e", 1.0)
        assert let_go(line, 9, 1.0) == ["d", "c", "e"]

    def test_displaced_and_gone_is_told_nothing(self) -> None:
        line = queue(max_requests=1)
        held = hold(line, "a")
        hold(line, "b", priority=1)
        line.remove(held)
        assert ended(line, 0.0) == []
        assert len(line) == 1


class TestForetelling:
    """FULL drains 10 slots a second and needs 100 ms beside the waiting."""

    def test_who_cannot_be_in_time_is_told_at_once(self) -> None:
        line = queue(refuses_late=True)
        for name in range(9):
            hold(line, name, budget_ms=1150)
        hold(line, "tenth", budget_ms=1150)
        refusal = refuse(line, budget_ms=1150)
        assert refusal.code == "latency_budget_unreachable"
        assert "1200 ms" in refusal.message
        assert "1150 ms" in refusal.message

    def test_unless_late_ones_are_served_too(self) -> None:
        line = queue()
        for name in range(500):
            hold(line, name, budget_ms=1150)
        assert len(line) == 500

    def test_only_those_that_go_before_it_count(self) -> None:
        line = queue(refuses_late=True)
        for name in range(500):
            hold(line, name)  # without budget: due when they give up
        hold(line, "short", budget_ms=300)
        for _ in range(100):
            hold(line, "low", priority=-1)
        hold(line, "as short", budget_ms=400)
        assert refuse(line, priority=-1, budget_ms=5000).code == "latency_budget_unreachable"

    def test_of_other_tenants_only_their_share(self) -> None:
        line = queue(refuses_late=True)
        for name in range(100):
            hold(line, name, tenant="many", budget_ms=10_150)
        hold(line, "a", tenant="few", budget_ms=400)
        assert refuse(line, tenant="many", budget_ms=10_150).code == "latency_budget_unreachable"

    def test_who_waits_at_other_endpoints_does_not_count(self) -> None:
        line = queue(refuses_late=True)
        for name in range(500):
            hold(line, name, group="h")
        hold(line, "a", budget_ms=250)

    def test_retry_after_is_when_a_newcomer_would_be_in_time(self) -> None:
        line = queue(refuses_late=True)
        for name in range(60):
            hold(line, name)
        refusal = refuse(line, priority=-1, budget_ms=3100)
        assert refusal.retry_after_s == pytest.approx(6.1 + 0.1 - 3.1)

    def test_or_when_there_is_room_if_that_is_sooner(self) -> None:
        line = queue(refuses_late=True)
        for name in range(60):
            hold(line, name)
        refusal = refuse(line, priority=-1, budget_ms=50)
        assert refusal.retry_after_s == pytest.approx(6.1)

    def test_but_never_later_than_all_have_gone_who_wait_now(self) -> None:
        line = queue(max_requests=500, max_wait_s=12)
        for name in range(500):
            hold(line, name)
        assert refuse(line).retry_after_s == 12.0

    def test_of_a_full_queue_when_it_would_be_its_turn(self) -> None:
        line = queue(max_requests=40)
        for name in range(40):
            hold(line, name)
        assert refuse(line).retry_after_s == pytest.approx(4.1)

    @pytest.mark.parametrize(
        ("slots", "service_s", "declared_per_s"), [(8, 1.0, 8.0), (8, 1.0, 40.0), (3, 2.5, 1.0)]
    )
    def test_it_is_true(self, slots: int, service_s: float, declared_per_s: float) -> None:
        """Slots that come free one after another: who comes back after Retry-After is taken, and is in time."""
        full = NoRoom("eu", 100.0, declared_per_s)
        line = queue(refuses_late=True, max_requests=10_000, max_wait_s=1000)
        step_s = service_s / slots
        asked_s = refused_s = 0.0
        retry_after_s: float | None = None
        for number in range(4000):
            now_s = number * step_s
            let_go(line, 1, now_s)
            while now_s < 60 and len(line) < 5 * slots:
                line.add(facts(), "g", "filler", now_s, full)  # kept that full for a minute: it learns the drain
            if retry_after_s is None and now_s >= 60:
                budget_ms = 1000 * service_s + 200
                refusal = line.add(facts(priority=-1, budget_ms=budget_ms), "g", "asked", now_s, full)
                assert isinstance(refusal, Refusal)
                retry_after_s, refused_s = refusal.retry_after_s, now_s
                assert retry_after_s is not None
            if retry_after_s is not None and now_s >= refused_s + retry_after_s:
                asked_s = now_s
                break
        ahead = len(line)
        assert (ahead + 1) * step_s + 0.1 <= service_s + 0.2 + 1.5 * step_s, "it would make its budget"
        assert (ahead + 1) * step_s + 0.1 >= 0.5 * service_s or retry_after_s == 1.0, (
            "and need not have waited longer"
        )
        assert asked_s


class TestDrain:
    def test_what_is_declared_holds_until_something_is_seen(self) -> None:
        assert Drain(5.0).per_s(7.0) == 7.0

    def test_what_is_seen_takes_over(self) -> None:
        drain = Drain(0.0)
        for tenth in range(1, 601):
            drain.observe(tenth / 10, placed=1)
        assert drain.per_s(2.0) == pytest.approx(10, rel=0.02)

    def test_nothing_for_long_is_slow(self) -> None:
        drain = Drain(0.0)
        drain.observe(10.0)
        assert drain.per_s(10.0) < 1.2
        drain.observe(60.0)
        assert drain.per_s(10.0) < 0.01

    def test_while_nobody_waits_nothing_is_seen(self) -> None:
        drain = Drain(0.0)
        drain.observe(1.0, placed=20)
        drain.resume(1000.0)
        assert drain.per_s(3.0) == pytest.approx(3.0)

    def test_never_zero(self) -> None:
        assert Drain(0.0).per_s(0.0) > 0


# --- laws ---------------------------------------------------------------------------------------------------


@dataclass
class Story:
    """What happened to everybody who came."""

    line: HoldQueue
    held: dict[int, Held] = field(default_factory=dict)
    fate: dict[int, str] = field(default_factory=dict)
    now_s: float = 0.0

    def end(self, held: Held, fate: str) -> None:
        number = held.cookie
        assert isinstance(number, int)
        assert number not in self.fate, "twice"
        self.fate[number] = fate
        del self.held[number]

    def check_first(self, gone: Held, open_groups: set[Hashable], waiting: list[Held]) -> None:
        """Nobody who might have gone should have gone before `gone`."""
        for other in waiting:
            if other is gone or other.group[0] not in open_groups:
                continue
            assert other.priority <= gone.priority, "a higher class waits"
            if other.priority < gone.priority:
                continue
            is_late = gone.due_s < self.now_s
            assert (other.due_s < self.now_s) >= is_late, "a late one went before one in time"
            if (other.due_s < self.now_s) == is_late and other.facts.tenant == gone.facts.tenant:
                assert (other.order_s, other.number) > (gone.order_s, gone.number), (
                    "its tenant has one due earlier"
                )


GROUPS = "ghi"
asks = st.builds(
    Facts,
    model=st.just("m"),
    tenant=st.sampled_from(["", "a", "b"]),
    prompt_tokens=st.integers(0, 5000),
    budget_ms=st.none() | st.floats(1, 20_000),
    priority=st.integers(-1, 2),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("come"), asks, st.sampled_from(GROUPS)),
        st.tuples(st.just("come"), asks, st.just("g")),
        st.tuples(st.just("leave"), st.integers(0, 50), st.none()),
        st.tuples(st.just("pass"), st.floats(0, 12), st.none()),
        st.tuples(st.just("room"), st.fixed_dictionaries({g: st.integers(0, 3) for g in GROUPS}), st.none()),
        st.tuples(st.just("overdue"), st.none(), st.none()),
    ),
    max_size=60,
)


@given(
    steps=steps,
    most=st.sampled_from([2, 8, 100]),
    refuses_late=st.booleans(),
    ageing_s=st.sampled_from([0.5, 7.0]),
)
@settings(max_examples=400, deadline=None)
def test_laws(steps: list[tuple[str, Any, Any]], most: int, refuses_late: bool, ageing_s: float) -> None:
    story = Story(queue(max_requests=most, refuses_late=refuses_late, ageing_s=ageing_s))
    line = story.line
    for number, (what, value, group) in enumerate(steps):
        if what == "come":
            held = line.add(value, group, number, story.now_s, FULL)
            if isinstance(held, Held):
                story.held[number] = held
            else:
                assert held.retry_after_s is not None
                assert held.retry_after_s >= 1
                story.fate[number] = held.code
        elif what == "leave" and value in story.held:
            line.remove(story.held[value])
            story.end(story.held[value], "left")
        elif what == "pass":
            story.now_s += value
        elif what == "room":
            _release(story, value)
        else:
            for held, refusal in line.overdue(story.now_s):
                assert refusal.code == "saturated" or (refuses_late and held.due_s <= story.now_s)
                story.end(held, refusal.code)
        assert len(line) <= most
        displaced = len(line._displaced)
        assert len(line) + displaced == len(story.held)
        assert sum(line.depths().values()) == len(line)
    _release(story, dict.fromkeys(GROUPS, 1000))
    for held, refusal in line.overdue(inf):
        story.end(held, refusal.code)
    assert not story.held, "somebody was lost"
    assert (len(line), line.next_due_s(), line.depths(), line._groups, len(line._ageing)) == (0, inf, {}, {}, 0)


def _release(story: Story, room: dict[str, int]) -> None:
    left: Counter[Hashable] = Counter(room)
    closed: list[Hashable] = []

    def place(held: Held) -> Decision | NoRoom:
        assert held.group[0] not in closed, "asked again"
        if left[held.group[0]] > 0:
            left[held.group[0]] -= 1
            return GO
        closed.append(held.group[0])
        return FULL

    waiting = [held for held in story.held.values() if held.is_waiting]
    for held, choice in story.line.release(story.now_s, place):
        assert choice is GO
        story.check_first(held, set(GROUPS) - set(closed), waiting)
        waiting.remove(held)
        story.end(held, "served")
    assert all(left[held.group[0]] <= 0 for held in story.held.values() if held.is_waiting), "room was left"


@given(
    costs=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20_000)), min_size=30, max_size=120),
    groups=st.sampled_from(["g", "gh"]),
)
@settings(max_examples=150, deadline=None)
def test_fairness_is_bounded(costs: list[tuple[str, int]], groups: str) -> None:
    """Of two tenants that both have requests waiting all the time, none is served more than the other by more than
    one request of each."""
    line = queue(max_requests=10_000)
    largest: Counter[str] = Counter()
    for number, (tenant, tokens) in enumerate(costs):
        hold(line, tenant, group=groups[number % len(groups)], tenant=tenant, prompt_tokens=tokens)
        largest[tenant] = max(largest[tenant], tokens + REQUEST_COST)
    left = Counter(tenant for tenant, _ in costs)
    served = dict.fromkeys(left, 0)
    for held, _ in line.release(0.0, lambda held: GO):
        tenant = held.facts.tenant
        served[tenant] += held.cost
        left[tenant] -= 1
        if not left[tenant]:
            del served[tenant]
            del left[tenant]
        for one in served:
            for other in served:
                assert served[one] - served[other] <= largest[one] + largest[other]
