"""The order in which held requests go: the structures behind `hold.HoldQueue`.

Everything that waits stands in sorted lists of (key, number, Held): a place is found in O(log n), and what moves
then is a block of pointers (80 KB for 10,000 held). Nobody who has left stays behind in them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Hashable, Mapping
from dataclasses import replace
from heapq import heappop, heappush, heapreplace
from math import exp, inf
from typing import Final

from gslb.routing.refusal import NoRoom
from gslb.types import Facts

_MEMORY_S: Final = 10.0
"""What was observed of a group's drain weighs by its age: to 1/e after this."""
_BELIEF_S: Final = 2.0
"""What is declared of it counts like observations over this long at first, and less the more was seen."""


Account = tuple[float, int]
"""What a tenant was served while it waited (its cost), and a number that tells tenants with as much apart: who
began to wait first goes first. It only ever grows."""


Where = tuple[Hashable, str | None]
"""A group of requests, and of these those that wait for one endpoint (its key), or for any."""


class Held:
    """One request that waits. Times in monotonic seconds.

    `cookie` is the holder's own. `needs_ms` is what its first token takes once it is placed, with some doubt,
    `due_s` the last moment at which that still makes the budget (inf without one), `gives_up_s` when it is refused
    whatever happens, `tenant` whose turn it takes, `priority` the class it stands in now (ageing raises it),
    `cost` what its being served counts for its tenant. `order_s` is by what its tenant's requests go: when its
    budget ends, or it gives up. `ends_s` and `ages_s` are the queue's: when it is refused, when it rises.

    Not by `due_s`: who needs longest would go before those of the same budget who were there first and were told
    that their wait fits. In overload each such newcomer makes one of them late (simulated at 1.1 x capacity, five
    regions: .908 of the requests within their budget by `due_s`, .930 by `order_s`).
    """

    __slots__ = (
        "ages_s", "arrived_s", "cookie", "cost", "due_s", "ends_s", "facts", "gives_up_s", "group", "is_late",
        "is_waiting", "needs_ms", "no_room", "number", "order_s", "priority", "tenant",
    )  # fmt: skip

    def __init__(
        self,
        facts: Facts,
        group: Where,
        cookie: object,
        no_room: NoRoom,
        needs_ms: float,
        arrived_s: float,
        gives_up_s: float,
        number: int,
        cost: int,
    ) -> None:
        self.facts = facts
        self.group = group
        self.cookie = cookie
        self.no_room = no_room
        self.needs_ms = needs_ms
        self.arrived_s = self.ages_s = arrived_s
        self.gives_up_s = self.ends_s = gives_up_s
        self.due_s = inf
        self.order_s = gives_up_s
        if facts.budget_ms is not None:
            self.due_s = arrived_s + (facts.budget_ms - needs_ms) / 1000
            self.order_s = min(gives_up_s, arrived_s + facts.budget_ms / 1000)
        self.number = number
        self.cost = cost
        self.tenant = facts.tenant
        self.priority = facts.priority
        self.is_late = self.due_s < arrived_s
        self.is_waiting = False

    def facts_at(self, now_s: float) -> Facts:
        """The facts to route by now: of its budget what is left."""
        budget_ms = self.facts.budget_ms
        if budget_ms is None:
            return self.facts
        return replace(self.facts, budget_ms=max(0.0, budget_ms - (now_s - self.arrived_s) * 1000))


class Line:
    """Held requests sorted by a key, equal keys in order of arrival."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Held]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, key: float, held: Held) -> None:
        """Put `held` in its place."""
        insort(self._entries, (key, held.number, held))

    def remove(self, key: float, held: Held) -> None:
        """Take out `held`, which was added with `key`."""
        del self._entries[bisect_left(self._entries, (key, held.number, held))]

    def first(self) -> tuple[float, Held] | None:
        """The least key and whose it is; None when nobody stands here."""
        return (self._entries[0][0], self._entries[0][2]) if self._entries else None

    def last(self) -> Held | None:
        """Who has the greatest key."""
        return self._entries[-1][2] if self._entries else None

    def count_up_to(self, key: float) -> int:
        """How many have that key or less."""
        return bisect_right(self._entries, key, key=_key)


def _key(entry: tuple[float, int, Held]) -> float:
    return entry[0]


def by_order(held: Held) -> tuple[float, int]:
    """Its place among its tenant's, as a key: equals in order of arrival."""
    return held.order_s, held.number


class Band:
    """Requests of one class of one group that all can, or all cannot, make their budget any more.

    The tenant that has had least goes first, within it the request whose budget ends first. `had` (by tenant) is
    handed in, and only ever grows: a tenant's turn kept here may be too early, never too late.
    """

    __slots__ = ("_turns", "count", "lanes")

    def __init__(self) -> None:
        self.count = 0
        self.lanes: dict[str, Line] = {}
        self._turns: list[tuple[Account, str]] = []
        """A heap with each tenant of `lanes` once: what it had when last looked at."""

    def add(self, held: Held, had: Mapping[str, Account]) -> None:
        """Let `held` wait here."""
        tenant = held.tenant
        lane = self.lanes.get(tenant)
        if lane is None:
            lane = self.lanes[tenant] = Line()
            heappush(self._turns, (had[tenant], tenant))
        lane.add(held.order_s, held)
        self.count += 1

    def remove(self, held: Held) -> None:
        """`held` waits here no more."""
        self.lanes[held.tenant].remove(held.order_s, held)
        self.count -= 1

    def first(self, had: Mapping[str, Account]) -> Held | None:
        """Whose turn it is."""
        turns = self._turns
        while turns:
            then, tenant = turns[0]
            found = self.lanes[tenant].first()
            if found is None:
                heappop(turns)
                del self.lanes[tenant]
            elif then != had[tenant]:
                heapreplace(turns, (had[tenant], tenant))
            else:
                return found[1]
        return None

    def ahead_of(self, tenant: str, order_s: float, had: Mapping[str, Account], mine: float) -> int:
        """How many go before a request that comes now: those of its tenant whose budgets end no later, and of
        every other tenant about as many (equal costs taken), one more where it has had no more than `mine`."""
        lane = self.lanes.get(tenant)
        own = lane.count_up_to(order_s) if lane is not None else 0
        others = (
            min(len(line), own + (had[name][0] <= mine)) for name, line in self.lanes.items() if name != tenant
        )
        return own + sum(others)


class Class:
    """The requests of one priority class of one group."""

    __slots__ = ("bands", "in_time", "late")

    def __init__(self) -> None:
        self.in_time = Band()
        self.late = Band()
        self.bands = (self.in_time, self.late)

    @property
    def count(self) -> int:
        """How many wait."""
        return self.in_time.count + self.late.count

    def add(self, held: Held, had: Mapping[str, Account]) -> None:
        """Let `held` wait here."""
        (self.late if held.is_late else self.in_time).add(held, had)

    def remove(self, held: Held) -> None:
        """`held` waits here no more."""
        (self.late if held.is_late else self.in_time).remove(held)

    def first(self, now_s: float, had: Mapping[str, Account]) -> Held | None:
        """Who goes first: one that can still make its budget, else one that cannot."""
        while (held := self.in_time.first(had)) is not None:
            if held.due_s >= now_s:
                return held
            self.in_time.remove(held)
            held.is_late = True
            self.late.add(held, had)
        return self.late.first(had)

    def last_late(self, now_s: float, had: Mapping[str, Account]) -> Held | None:
        """The last of those known to be late; None when none is."""
        self.first(now_s, had)
        lasts = [last for lane in self.late.lanes.values() if (last := lane.last()) is not None]
        return max(lasts, key=by_order, default=None)


class Group:
    """Requests of which one's lack of room is all of them's."""

    __slots__ = ("classes", "count")

    def __init__(self) -> None:
        self.count = 0
        self.classes: dict[int, Class] = {}

    def add(self, held: Held, had: Mapping[str, Account]) -> None:
        """Let `held` wait here."""
        ranked = self.classes.get(held.priority)
        if ranked is None:
            ranked = self.classes[held.priority] = Class()
        ranked.add(held, had)
        self.count += 1

    def remove(self, held: Held) -> None:
        """`held` waits here no more."""
        ranked = self.classes[held.priority]
        ranked.remove(held)
        if not ranked.count:
            del self.classes[held.priority]
        self.count -= 1

    def first(self, now_s: float, had: Mapping[str, Account]) -> Held:
        """Who goes first. Only of a group in which somebody waits."""
        first = self.classes[max(self.classes)].first(now_s, had)
        assert first is not None
        return first


class Drain:
    """How many of a group find room in a second, observed while any of it wait.

    What is declared of the endpoints (`NoRoom.drain_per_s`) is the prior: it cannot know how long these answers
    are, nor how many of the freed slots other edges and other groups take.
    """

    __slots__ = ("_at_s", "_placed", "_waited_s")

    def __init__(self, now_s: float) -> None:
        self._at_s = now_s
        self._placed = self._waited_s = 0.0

    def resume(self, now_s: float) -> None:
        """The first of the group begins to wait."""
        self._fade(now_s)

    def observe(self, now_s: float, placed: int = 0) -> None:
        """Some have waited since the last call, and `placed` of them found room now."""
        kept = self._fade(now_s)
        self._waited_s += _MEMORY_S * (1.0 - kept)
        self._placed += placed

    def per_s(self, declared_per_s: float) -> float:
        """The rate; above 0."""
        belief_s = _BELIEF_S * (1.0 - self._waited_s / _MEMORY_S)
        rate = (self._placed + declared_per_s * belief_s) / (self._waited_s + belief_s)
        return max(rate, 0.001)

    def _fade(self, now_s: float) -> float:
        kept = exp((self._at_s - now_s) / _MEMORY_S)
        self._placed *= kept
        self._waited_s *= kept
        self._at_s = now_s
        return kept
