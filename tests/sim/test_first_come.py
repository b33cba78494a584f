"""The line that parts are compared with: order of arrival and nothing else."""

from __future__ import annotations

from gslb.routing.hold import HoldRules
from gslb.routing.refusal import NoRoom, Refusal
from gslb.routing.router import Decision
from gslb.routing.waiting import Held
from gslb.sim.first_come import FirstCome
from gslb.types import Facts

ROOM = NoRoom("eu", least_ms=100.0, drain_per_s=10.0)


def facts(name: str, budget_ms: float | None = 1000.0, priority: int = 0) -> Facts:
    return Facts("model", tenant=name, budget_ms=budget_ms, priority=priority)


def refuse(_held: Held) -> Refusal:
    """Stands for any answer but no room: the line does not look at it."""
    return Refusal("saturated", "")


def names(line: FirstCome, now_s: float, most: int = 100, full: str = "") -> list[object]:
    """Who goes, in order, while `most` find room and none of group `full` does."""
    gone: list[object] = []

    def place(held: Held) -> Decision | NoRoom | Refusal:
        return ROOM if len(gone) >= most or held.group[0] == full else refuse(held)

    for held, _ in line.release(now_s, place):
        gone.append(held.cookie)
    return gone


def test_first_come_first_served_whatever_class_tenant_or_budget() -> None:
    line = FirstCome(HoldRules())
    line.add(facts("a", budget_ms=None), "g", 1, 0.0, ROOM)
    line.add(facts("a", budget_ms=50.0), "g", 2, 0.1, ROOM)
    line.add(facts("b", priority=9), "g", 3, 0.2, ROOM)
    line.add(facts("b", budget_ms=200.0), "h", 4, 0.3, ROOM)
    assert len(line) == 4
    assert line.must_wait("g", 10, "eu/1")
    assert not line.must_wait("i", 0, "eu/1")
    assert names(line, 5.0, most=1) == [1]
    assert names(line, 5.0) == [2, 3, 4]
    assert len(line) == 0
    assert not line.must_wait("g", 0, "eu/1")


def test_a_full_group_keeps_nobody_else_back() -> None:
    line = FirstCome(HoldRules())
    for number in range(4):
        line.add(facts("a"), "gh"[number % 2], number, 0.0, ROOM)
    assert names(line, 0.1, full="g") == [1, 3]
    assert names(line, 0.1) == [0, 2]


def test_who_has_waited_too_long_goes_and_a_full_line_takes_nobody() -> None:
    line = FirstCome(HoldRules(max_requests=2, max_wait_s=5.0))
    line.add(facts("a"), "g", 1, 0.0, ROOM)
    line.add(facts("a"), "g", 2, 1.0, ROOM)
    refused = line.add(facts("a", priority=9), "g", 3, 1.0, ROOM)
    assert isinstance(refused, Refusal)
    assert refused.code == "saturated"
    assert list(line.overdue(4.9)) == []
    assert [held.cookie for held, _ in line.overdue(5.0)] == [1]
    assert names(line, 5.0) == [2]


def test_what_would_be_late_is_refused_when_it_comes_or_when_it_is() -> None:
    line = FirstCome(HoldRules(refuses_late=True, doubt=0.0))
    added = [line.add(facts("a"), "g", number, 0.0, ROOM) for number in range(20)]
    held = [one for one in added if isinstance(one, Held)]
    late = [one for one in added if isinstance(one, Refusal)]
    # Ten slots come free in a second, and a first token takes a tenth of it.
    assert 8 <= len(held) <= 9
    assert {refusal.code for refusal in late} == {"latency_budget_unreachable"}
    assert all(refusal.retry_after_s is not None and refusal.retry_after_s >= 1.0 for refusal in late)
    assert [(one.cookie, refusal.code) for one, refusal in line.overdue(0.95)] == [
        (one.cookie, "latency_budget_unreachable") for one in held
    ]
