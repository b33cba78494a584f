"""Holding without an order of its own: first come, first served. What `routing.hold` is compared with.

Bounds, groups and early refusal are those of `HoldQueue`; what is left out is classes, tenants in turn, and the
late last. A full queue refuses whoever comes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator

from gslb.routing.hold import HoldRules
from gslb.routing.refusal import NoRoom, Refusal, refuse_hopeless, refuse_waiting
from gslb.routing.router import Decision
from gslb.routing.waiting import Drain, Held, Line
from gslb.types import Facts


class FirstCome:
    """Requests that wait for room, in one line per group. Used as `HoldQueue` is."""

    def __init__(self, rules: HoldRules) -> None:
        self._rules = rules
        self._groups: dict[Hashable, OrderedDict[int, Held]] = {}
        self._drains: dict[Hashable, Drain] = {}
        self._ends = Line()
        self._number = 0

    def __len__(self) -> int:
        return len(self._ends)

    def must_wait(self, group: Hashable, _priority: int) -> bool:
        """True when others of `group` were there first."""
        return group in self._groups

    def add(self, facts: Facts, group: Hashable, cookie: object, now_s: float, no_room: NoRoom) -> Held | Refusal:
        """Hold a request that found no room, or say why not."""
        rules = self._rules
        held = Held(
            facts, group, cookie, no_room, no_room.least_ms * (1.0 + rules.doubt), now_s, now_s + rules.max_wait_s,
            self._number, 0,
        )  # fmt: skip
        if rules.refuses_late:
            held.ends_s = min(held.due_s, held.gives_up_s)
            if now_s + self._wait_s(held, now_s) > held.due_s:
                return self._refuse(held, now_s, is_late=True)
        if len(self) >= rules.max_requests:
            return self._refuse(held, now_s)
        self._number += 1
        if group not in self._groups:
            self._groups[group] = OrderedDict()
            self._drain(group, now_s).resume(now_s)
        self._groups[group][held.number] = held
        self._ends.add(held.ends_s, held)
        return held

    def release(
        self, now_s: float, place: Callable[[Held], Decision | NoRoom | Refusal]
    ) -> Iterator[tuple[Held, Decision | Refusal]]:
        """Who may go now, each with what `place` said of it; a group that finds no room is not asked again."""
        closed: set[Hashable] = set()
        while heads := [next(iter(line.values())) for key, line in self._groups.items() if key not in closed]:
            held = min(heads, key=_number)
            choice = place(held)
            if isinstance(choice, NoRoom):
                closed.add(held.group)
                continue
            if isinstance(choice, Decision):
                self._drain(held.group, now_s).observe(now_s, placed=1)
            self._remove(held)
            yield held, choice

    def overdue(self, now_s: float) -> Iterator[tuple[Held, Refusal]]:
        """Who has waited as long as it may, or missed its budget where that is refused."""
        while (first := self._ends.first()) is not None and first[0] <= now_s:
            held = first[1]
            self._remove(held)
            yield held, self._refuse(held, now_s, is_late=held.ends_s < held.gives_up_s)

    def _remove(self, held: Held) -> None:
        line = self._groups[held.group]
        del line[held.number]
        if not line:
            del self._groups[held.group]
        self._ends.remove(held.ends_s, held)

    def _refuse(self, held: Held, now_s: float, *, is_late: bool = False) -> Refusal:
        home, longest_s, wait_s = held.no_room.home, self._rules.max_wait_s, self._wait_s(held, now_s)
        if is_late and held.facts.budget_ms is not None:
            return refuse_hopeless(wait_s, held.needs_ms, held.facts.budget_ms, longest_s, home)
        return refuse_waiting(min(wait_s, longest_s), home)

    def _wait_s(self, held: Held, now_s: float) -> float:
        """How long one like `held` would wait if it came now: a slot for each one ahead of it, and its own."""
        drain = self._drain(held.group, now_s)
        ahead = len(self._groups.get(held.group, ()))
        if ahead:
            drain.observe(now_s)
        return (ahead + 1) / drain.per_s(held.no_room.drain_per_s)

    def _drain(self, group: Hashable, now_s: float) -> Drain:
        drain = self._drains.get(group)
        if drain is None:
            drain = self._drains[group] = Drain(now_s)
        return drain


def _number(held: Held) -> int:
    return held.number
