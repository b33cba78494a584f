"""Requests held at the edge until somebody has room: what `routing.hold` decides, done when it happens.

Places come free by events of this process: an attempt ends, a new snapshot of the fleet is published. They are
taken once per turn of the loop, however many events there were. What tells nobody (places that other workers give
back, load samples that fade with age, waiting that has lasted too long) is looked for every 50 ms, but only while
something is held.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from itertools import chain
from math import ceil
from typing import TYPE_CHECKING

from gslb.config.settings import Settings
from gslb.routing.hold import Held, HoldQueue, HoldRules
from gslb.routing.refusal import NoRoom, Refusal
from gslb.routing.router import Decision
from gslb.types import Facts

if TYPE_CHECKING:
    from gslb.proxy.exchange import Exchange

TICK_S = 0.05
_MOST_AT_ONCE = 64
"""Requests that one turn of the loop lets go: some 10 ms, in which no token of the others moves."""


def hold_rules(settings: Settings, processes: int) -> HoldRules:
    """The queue's bounds from the configuration, for one of `processes` that share the edge's."""
    routing = settings.config.routing
    return HoldRules(
        max_requests=ceil(routing.hold.max_requests / processes),
        max_wait_s=routing.hold.max_wait,
        refuses_late=routing.over_budget == "refuse",
    )


class Holding:
    """What this process holds. The cookie of each held request is its exchange."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.queue = HoldQueue(HoldRules(max_requests=0))
        """Its rules are those of the configuration in force."""
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False

    def must_wait(self, exchange: Exchange, facts: Facts) -> bool:
        """True when others were there first, though there may be room."""
        queue = self.queue
        return len(queue) > 0 and queue.must_wait(_group(exchange, facts), facts.priority)

    def hold(self, exchange: Exchange, facts: Facts, no_room: NoRoom) -> Held | Refusal:
        """Hold the exchange's request until `Exchange.released` is called; or say why not."""
        now_s = exchange.client.now_s()
        held = self.queue.add(facts, _group(exchange, facts), exchange, now_s, no_room, exchange.total_at_s)
        if isinstance(held, Held):
            self._mind_time()
            if self.queue.next_due_s() <= now_s:
                self.room_may_have_come()  # somebody had to go for it
        return held

    def room_may_have_come(self) -> None:
        """A place may be free: look soon, once."""
        if len(self.queue) and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._look)

    def leave(self, held: Held) -> None:
        """`held` does not wait any more, whatever for. Harmless when it was let go before."""
        self.queue.remove(held)

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- what happens ------------------------------------------------------------------------------

    def _mind_time(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if len(self.queue):
            self._look()
            self._mind_time()

    def _look(self) -> None:
        self._is_due = False
        now_s = self._loop.time()
        left = _MOST_AT_ONCE
        for held, choice in chain(self.queue.overdue(now_s), self.queue.release(now_s, self._place)):
            exchange = _exchange_of(held)
            try:
                exchange.released(choice)
            except Exception as error:  # a fault of one must not cost the others their turn
                self._loop.call_exception_handler({"message": "a held request failed", "exception": error})
            left -= 1
            if not left:
                self.room_may_have_come()
                return

    def _place(self, held: Held) -> Decision | NoRoom | Refusal:
        exchange = _exchange_of(held)
        return exchange.place(held.facts_at(self._loop.time()))


def _exchange_of(held: Held) -> Exchange:
    exchange: Exchange = held.cookie  # type: ignore[assignment]
    return exchange


def _group(exchange: Exchange, facts: Facts) -> Hashable:
    """Requests of one group of one configuration: a later one may have other fences."""
    generation = exchange.generation
    return id(generation), generation.router.group_of(facts, generation.door.fleet.snapshot)
