"""Holding at the edge: who waits when nobody has room, who goes first, who is told early that waiting is no use.

A request that is held is in no engine's queue: it goes to whoever has room first, in an order that an engine does
not keep, and it costs nothing when its client leaves. The order:

1. The priority class (`Facts.priority`), the higher first, strictly. Who has waited `ageing_s` rises to the next
   higher class of those that wait, and again after as long: below k higher classes a request stands in the highest
   after k * ageing_s, so that a steady stream of more important ones delays it by no more than that. (What is late
   stays behind what is not, and is refused in the end where nothing else is left over for it.)
2. Those that can still make their budget before those that cannot: the late last, not dropped.
3. Fairness among tenants by deficit: next is the one that was served least while it had requests waiting, counted
   in prompt tokens and a constant a request. While two tenants both have requests that could go, what they are
   served differs by no more than one request's cost of each. The account is one per tenant, over all groups (as in
   start-time fair queueing, Goyal 1996); deficit round robin's ring per queue would give a tenant a share in each
   group. Who had nothing waiting starts level with who is served now: idling saves up nothing.
4. Within a tenant the one whose budget ends first (equal budgets: in order of arrival); without budget its time
   ends when it gives up waiting.

Groups: `Router.group_of`, and in each those apart that wait for the same endpoint (`NoRoom.waits_for`). One that
finds no room closes its group for the rest of a release and no other, so that a full model or region blocks nobody
else, and a release costs a routing decision per placed request and one more per group, however many wait.

How to use it: `add` a newcomer when the router has no room, and also, with `Router.no_room`, when it has but
`must_wait` says that others come first; then `release` at once. Call `release` whenever room may have come,
routing by `Held.facts_at`, and `overdue` at `next_due_s`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Final

from gslb.routing.decision import Decision
from gslb.routing.refusal import NoRoom, Refusal, refuse_hopeless, refuse_waiting
from gslb.routing.waiting import Account, Drain, Group, Held, Line, Where, by_order
from gslb.types import Facts

__all__ = ["REQUEST_COST", "Held", "HoldQueue", "HoldRules"]

REQUEST_COST: Final = 1000
"""What a request counts for beside its prompt, in prompt tokens: it holds a slot, however short its prompt."""
_MOST_DRAINS: Final = 256


@dataclass(frozen=True, slots=True)
class HoldRules:
    """Bounds of holding. `refuses_late`: refuse at once what is predicted to miss its budget, and what is held
    once it has missed it; otherwise the late are served last.

    `doubt` is the share by which a first token may take longer than predicted once its request is placed. In
    overload all who are served have waited as long as they could, and without doubt half of them are too late.
    Simulated (512 slots, budget 1 s, predictions 20 % off), goodput at 1.1 and 1.5 x capacity was .82 and .47
    without (.93 and .69 is what the slots allow), .91 and .64 with a doubt of 0.25.
    """

    max_requests: int = 1000
    max_wait_s: float = 30.0
    refuses_late: bool = False
    ageing_s: float = 10.0
    doubt: float = 0.25


class HoldQueue:
    """Requests that wait for room. Every operation is O(log n) in those that wait (and linear in the number of
    groups, classes and tenants, which the configuration bounds)."""

    def __init__(self, rules: HoldRules) -> None:
        self.rules = rules
        """May be replaced while requests wait; what is held keeps the time it was given."""
        self._groups: dict[Where, Group] = {}
        self._drains: dict[Where, Drain] = {}
        self._had: dict[str, Account] = {}
        self._level = 0.0
        """What the tenant served last had had by then: where a tenant starts that had nothing waiting."""
        self._waiting: dict[int, Counter[str]] = {}
        """Class -> tenant -> how many wait."""
        self._ends = Line()
        self._ageing = Line()
        self._displaced: list[Held] = []
        self._held: OrderedDict[int, Held] = OrderedDict()
        """In order of arrival, by number."""
        self._number = 0

    def __len__(self) -> int:
        return len(self._held)

    def since_s(self) -> float:
        """When the one came that is held longest; inf when none is."""
        for held in self._held.values():
            return held.arrived_s
        return inf

    def depths(self) -> dict[int, int]:
        """How many wait by the class they stand in now."""
        return {priority: tenants.total() for priority, tenants in self._waiting.items()}

    # --- coming ------------------------------------------------------------------------------------

    def must_wait(self, group: Hashable, priority: int, key: str) -> bool:
        """True when others of `group`, of that class or a higher one, were there first: who wait for any slot, or
        for one at the endpoint `key`."""
        waiting = (self._groups.get((group, waits_for)) for waits_for in (None, key))
        return any(one is not None and max(one.classes) >= priority for one in waiting)

    def add(
        self, facts: Facts, group: Hashable, cookie: object, now_s: float, no_room: NoRoom, until_s: float = inf
    ) -> Held | Decision | Refusal:
        """Hold a request that found no room, no longer than `until_s`; or say why not, or where it goes instead.

        A full queue takes it only at the cost of another: of a lower class, or late when this one is not, or of a
        tenant that has at least two more waiting. `overdue` then tells who had to go.
        """
        rules, instead = self.rules, no_room.instead
        held = self._made(facts, (group, no_room.waits_for), cookie, now_s, no_room, until_s)
        wait_s = self._wait_s(held, now_s)
        is_hopeless = rules.refuses_late and held.due_s < now_s + wait_s
        is_full = len(self) >= rules.max_requests
        if instead is not None and (wait_s * 1000 > no_room.worth_ms or is_hopeless or is_full):
            key = instead.option.view.endpoint.key
            if not self.must_wait(group, facts.priority, key):
                return instead
            # Others wait for what it would take: it stands behind them.
            behind = NoRoom(no_room.home, instead.option.placed_ms, no_room.drain_per_s)
            return self.add(facts, group, cookie, now_s, behind, until_s)
        if is_hopeless:
            return self._refuse(held, wait_s, is_late=True)
        if is_full:
            last = self._to_displace(held, now_s)
            if last is None:
                return self._refuse(held, wait_s)
            self.remove(last)
            self._displaced.append(last)
        self._number += 1
        self._put(held, now_s)
        return held

    def _made(
        self, facts: Facts, group: Where, cookie: object, now_s: float, no_room: NoRoom, until_s: float
    ) -> Held:
        """The request as it would stand here."""
        rules = self.rules
        return Held(
            facts, group, cookie, no_room, no_room.least_ms * (1.0 + rules.doubt), now_s,
            min(now_s + rules.max_wait_s, until_s), self._number, facts.prompt_tokens + REQUEST_COST,
        )  # fmt: skip

    def _to_displace(self, newcomer: Held, now_s: float) -> Held | None:
        """Who goes for `newcomer` when the queue is full: of the lowest class one that is late, or else the last
        of the tenant with most; None when that would be no better."""
        lowest = min(self._waiting, default=newcomer.priority + 1)
        if newcomer.priority < lowest:
            return None
        classes = [ranked for group in self._groups.values() if (ranked := group.classes.get(lowest)) is not None]
        if not newcomer.is_late:
            late = [last for ranked in classes if (last := ranked.last_late(now_s, self._had)) is not None]
            if late:
                return max(late, key=by_order)
        tenants = self._waiting[lowest]
        tenant, count = tenants.most_common(1)[0]
        if newcomer.priority == lowest and count < tenants[newcomer.tenant] + 2:
            return None
        lanes = [
            lane for ranked in classes for band in ranked.bands if (lane := band.lanes.get(tenant)) is not None
        ]
        return max((last for lane in lanes if (last := lane.last()) is not None), key=by_order)

    def _put(self, held: Held, now_s: float) -> None:
        rules = self.rules
        tenant = held.tenant
        if not any(tenant in tenants for tenants in self._waiting.values()):
            self._had[tenant] = (self._cost_had(tenant), held.number)
        group = self._groups.get(held.group)
        if group is None:
            group = self._groups[held.group] = Group()
            self._drain(held.group, now_s).resume(now_s)
        held.ends_s = min(held.gives_up_s, held.due_s) if rules.refuses_late else held.gives_up_s
        held.ages_s = held.arrived_s + rules.ageing_s
        held.is_waiting = True
        group.add(held, self._had)
        self._ends.add(held.ends_s, held)
        self._ageing.add(held.ages_s, held)
        self._count_in(held)
        self._held[held.number] = held

    # --- going -------------------------------------------------------------------------------------

    def release(
        self,
        now_s: float,
        place: Callable[[Held], Decision | NoRoom | Refusal],
        freed: Collection[str] | None = None,
    ) -> Iterator[tuple[Held, Decision | Refusal]]:
        """Who may go now, in order, each with what `place` said of it. `place` decides, or finds no room: then
        none of that group is asked again. Between two results the caller does what was decided, so that the next
        decision sees it; requests may come, leave and be refused meanwhile.

        `freed`: the endpoints where room may have come; who waits for another one is not asked. None: anywhere.
        """
        self._age(now_s)
        closed: set[Hashable] = set()
        if freed is not None:
            closed.update(line for line in self._groups if line[1] is not None and line[1] not in freed)
        while (held := self._first(now_s, closed)) is not None:
            choice = self._or_instead(held, place(held), now_s)
            if isinstance(choice, NoRoom):
                closed.add(held.group)
                continue
            if isinstance(choice, Decision):
                self._drain(held.group, now_s).observe(now_s, placed=1)
                cost, since = self._had[held.tenant]
                self._level = max(self._level, cost)
                self._had[held.tenant] = (cost + held.cost, since)
            self.remove(held)
            yield held, choice

    def _or_instead(
        self, held: Held, choice: Decision | NoRoom | Refusal, now_s: float
    ) -> Decision | NoRoom | Refusal:
        """`choice`, or what to do instead of waiting for one endpoint: for who waits for any slot, since there is
        one, and for who has waited for that endpoint without slots coming free there as they should."""
        if not isinstance(choice, NoRoom) or choice.instead is None:
            return choice
        if held.group[1] is None:
            return choice.instead
        drain = self._drain(held.group, now_s)
        drain.observe(now_s)
        return choice if 1000 / drain.per_s(choice.drain_per_s) <= choice.worth_ms else choice.instead

    def overdue(self, now_s: float) -> Iterator[tuple[Held, Refusal]]:
        """Who has waited as long as it may, or missed its budget where that is refused, or was displaced."""
        while self._displaced:
            held = self._displaced.pop()
            yield held, self._refuse(held, self._wait_s(held, now_s))
        while (first := self._ends.first()) is not None and first[0] <= now_s:
            held = first[1]
            self.remove(held)
            yield held, self._refuse(held, self._wait_s(held, now_s), is_late=held.ends_s < held.gives_up_s)

    def next_due_s(self) -> float:
        """When `overdue` has something to tell: inf when nothing waits, -inf when somebody was displaced."""
        if self._displaced:
            return -inf
        first = self._ends.first()
        return inf if first is None else first[0]

    def remove(self, held: Held) -> None:
        """`held` waits no more: its client has left, say. Harmless when it does not wait."""
        if not held.is_waiting:
            if held in self._displaced:
                self._displaced.remove(held)
            return
        held.is_waiting = False
        group = self._groups[held.group]
        group.remove(held)
        if not group.count:
            del self._groups[held.group]
        self._ends.remove(held.ends_s, held)
        self._ageing.remove(held.ages_s, held)
        self._count_out(held)
        del self._held[held.number]
        if not self._held:
            self._had.clear()
            self._level = 0.0

    # --- order -------------------------------------------------------------------------------------

    def _first(self, now_s: float, closed: set[Hashable]) -> Held | None:
        heads = [group.first(now_s, self._had) for key, group in self._groups.items() if key not in closed]
        return min(heads, key=self._rank) if len(heads) > 1 else heads[0] if heads else None

    def _rank(self, held: Held) -> tuple[int, bool, Account, float, int]:
        return -held.priority, held.is_late, self._had[held.tenant], held.order_s, held.number

    def _cost_had(self, tenant: str) -> float:
        """What `tenant` has had, as far as it counts for what comes now."""
        return max(self._had[tenant][0], self._level) if tenant in self._had else self._level

    def _age(self, now_s: float) -> None:
        while (first := self._ageing.first()) is not None and first[0] <= now_s:
            held = first[1]
            self._ageing.remove(held.ages_s, held)
            held.ages_s += self.rules.ageing_s
            self._ageing.add(held.ages_s, held)
            higher = min((priority for priority in self._waiting if priority > held.priority), default=None)
            if higher is not None:
                group = self._groups[held.group]
                group.remove(held)
                self._count_out(held)
                held.priority = higher
                group.add(held, self._had)
                self._count_in(held)

    def _count_in(self, held: Held) -> None:
        tenants = self._waiting.get(held.priority)
        if tenants is None:
            tenants = self._waiting[held.priority] = Counter()
        tenants[held.tenant] += 1

    def _count_out(self, held: Held) -> None:
        tenants = self._waiting[held.priority]
        tenants[held.tenant] -= 1
        if not tenants[held.tenant]:
            del tenants[held.tenant]
            if not tenants:
                del self._waiting[held.priority]

    # --- how long it would take -----------------------------------------------------------------------

    def _refuse(self, held: Held, wait_s: float, *, is_late: bool = False) -> Refusal:
        home, longest_s = held.no_room.home, self.rules.max_wait_s
        if is_late and held.facts.budget_ms is not None:
            return refuse_hopeless(wait_s, held.needs_ms, held.facts.budget_ms, longest_s, home)
        return refuse_waiting(min(wait_s, longest_s), home)

    def _wait_s(self, held: Held, now_s: float) -> float:
        """How long one like `held` would wait if it came now: a slot for each one ahead of it, and its own."""
        drain = self._drain(held.group, now_s)
        ahead = 0
        group = self._groups.get(held.group)
        if group is not None:
            drain.observe(now_s)
            priority, tenant = held.facts.priority, held.tenant
            ahead = sum(ranked.count for one, ranked in group.classes.items() if one > priority)
            if (ranked := group.classes.get(priority)) is not None:
                order_s = held.order_s - held.arrived_s + now_s
                ahead += ranked.in_time.ahead_of(tenant, order_s, self._had, self._cost_had(tenant))
        return (ahead + 1) / drain.per_s(held.no_room.drain_per_s)

    def _drain(self, group: Where, now_s: float) -> Drain:
        drain = self._drains.get(group)
        if drain is None:
            if len(self._drains) >= _MOST_DRAINS:
                del self._drains[next(iter(self._drains))]
            drain = self._drains[group] = Drain(now_s)
        return drain
