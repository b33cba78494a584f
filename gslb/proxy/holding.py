"""Requests held at the edge until somebody has room: what `routing.hold` decides, done when it happens.

Places come free by events of this process: an attempt ends, a new snapshot of the fleet is published. They are
taken once per turn of the loop, however many events there were. What tells nobody (places that other workers give
back, load samples that fade with age, waiting that has lasted too long) is looked for regularly, but only while
something is held.

Each worker holds what its own clients ask. A place that comes free in one would always go to what that one holds,
and another, which happens to have nothing under way, would wait for ever. So a worker takes no place at once while
another's requests wait much longer, and looks half as often: whoever waits longest looks before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from itertools import chain
from math import ceil
from typing import TYPE_CHECKING, Final, Protocol, cast

from gslb.config.schema_fleet import Routing
from gslb.config.settings import Settings
from gslb.proxy.first_endpoint import take_turn
from gslb.routing.hold import Held, HoldQueue, HoldRules
from gslb.routing.refusal import NoRoom, Refusal
from gslb.routing.router import Decision

if TYPE_CHECKING:
    from gslb.proxy.exchange import Exchange

_LOOK_S: Final = 0.05
_LOOK_WITH_OTHERS_S: Final = 0.02
_MUCH_LONGER_S: Final = 0.25
"""A place left to another worker lies idle until that looks: too dear where answers take milliseconds."""
_MOST_AT_ONCE: Final = 64
"""Requests that one turn of the loop lets go: some 10 ms, in which no token of the others moves."""


def hold_rules(settings: Settings, processes: int) -> HoldRules:
    """The queue's bounds from the configuration, for one of `processes` that share the edge's."""
    return hold_of(settings.config.routing, processes)


def hold_of(routing: Routing, processes: int) -> HoldRules:
    """The same from the configuration's `routing` alone."""
    return HoldRules(
        max_requests=ceil(routing.hold.max_requests / processes),
        max_wait_s=routing.hold.max_wait,
        refuses_late=routing.over_budget == "refuse",
    )


class OtherWorkers(Protocol):
    """What the workers of one edge tell each other of the requests they hold."""

    def tell(self, since_s: float) -> None:
        """When the one came that this worker holds longest; inf when it holds none."""

    def since_s(self) -> float:
        """The same of all other workers."""


class Holding:
    """What this process holds. The cookie of each held request is its exchange."""

    def __init__(self, loop: asyncio.AbstractEventLoop, others: OtherWorkers | None = None) -> None:
        self.queue = HoldQueue(HoldRules(max_requests=0))
        """Its rules are those of the configuration in force."""
        self._loop = loop
        self._others = others
        self._look_s = _LOOK_S if others is None else _LOOK_WITH_OTHERS_S
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False
        self._freed: set[str] = set()
        """Endpoints where room may have come since the last look."""
        self._is_anywhere = False
        """Room may have come at others as well."""
        self._has_stood_back = False

    def must_wait(self, exchange: Exchange, decision: Decision) -> bool:
        """True when others were there first, though there may be room."""
        queue, key = self.queue, decision.option.view.endpoint.key
        return len(queue) > 0 and queue.must_wait(_group(exchange), exchange.facts.priority, key)

    def hold(self, exchange: Exchange, no_room: NoRoom) -> Decision | Refusal | None:
        """Hold the exchange's request until `Exchange.released` is called; or say why not, or where it goes."""
        now_s = exchange.client.now_s()
        held = self.queue.add(exchange.facts, _group(exchange), exchange, now_s, no_room, exchange.total_at_s)
        if not isinstance(held, Held):
            return held
        exchange.held = held
        self._tell_others()
        if self._timer is None:
            self._timer = self._loop.call_later(self._look_s, self._look_regularly)
        if self.queue.next_due_s() <= now_s:
            self._look_soon()  # somebody had to go for it
        return None

    def room_may_have_come(self, key: str | None = None) -> None:
        """A place may be free, at the endpoint `key` or anywhere: look soon, once."""
        if not len(self.queue):
            return
        if key is None:
            self._is_anywhere = True
        else:
            self._freed.add(key)
        if not self._is_due and not self._others_wait_longer():
            self._look_soon()

    def leave(self, exchange: Exchange) -> None:
        """The exchange's request does not wait any more, whatever for."""
        held, exchange.held = exchange.held, None
        if held is not None:
            self.queue.remove(held)
            exchange.held_s = self._loop.time() - held.arrived_s
            self._tell_others()

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- what happens ------------------------------------------------------------------------------

    def _tell_others(self) -> None:
        if self._others is not None:
            self._others.tell(self.queue.since_s())

    def _others_wait_longer(self) -> bool:
        return self._others is not None and self._others.since_s() + _MUCH_LONGER_S < self.queue.since_s()

    def _look_soon(self) -> None:
        self._is_due = True
        self._loop.call_soon(self._look)

    def _look_regularly(self) -> None:
        self._timer = None
        if len(self.queue):
            self._timer = self._loop.call_later(self._look_s, self._look_regularly)
            self._has_stood_back = not self._has_stood_back and self._others_wait_longer()
            if not self._has_stood_back:
                self._is_anywhere = True
                self._look()

    def _look(self) -> None:
        self._is_due = False
        now_s = self._loop.time()
        left = _MOST_AT_ONCE
        freed, self._freed = None if self._is_anywhere else self._freed, set()
        self._is_anywhere = False
        for held, choice in chain(self.queue.overdue(now_s), self.queue.release(now_s, self._place, freed)):
            exchange = _exchange_of(held)
            self.leave(exchange)
            try:
                exchange.released(choice)
            except Exception as error:  # a fault of one must not cost the others their turn
                self._loop.call_exception_handler({"message": "a held request failed", "exception": error})
            left -= 1
            if not left:
                self._is_anywhere = True
                self._look_soon()
                return

    def _place(self, held: Held) -> Decision | NoRoom | Refusal:
        now_s = self._loop.time()
        return take_turn(_exchange_of(held), held.facts_at(now_s), now_s)


def _exchange_of(held: Held) -> Exchange:
    return cast("Exchange", held.cookie)


def _group(exchange: Exchange) -> Hashable:
    """Requests of one group of one configuration: a later one may have other fences."""
    generation = exchange.generation
    return id(generation), generation.router.group_of(exchange.facts, generation.door.fleet.snapshot)
