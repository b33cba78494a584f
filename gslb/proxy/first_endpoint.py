"""Where a request goes first: as soon as it is there, or when its turn comes after it was held."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gslb.routing.explanation import one_line
from gslb.routing.refusal import NoRoom
from gslb.routing.router import Decision, Refusal
from gslb.types import Facts

if TYPE_CHECKING:
    from gslb.proxy.exchange import Exchange

Choice = Decision | NoRoom | Refusal

MOST_LOST_RACES: Final = 4
"""Another worker may take the last place at an endpoint between decision and ticket; as often is decided again."""


def choose(exchange: Exchange, facts: Facts, now_s: float) -> Choice:
    """What the router says of a request now; where its client asks why, the exchange is told."""
    generation, admitted = exchange.generation, exchange.admitted
    assert admitted is not None
    router, snapshot = generation.router, generation.door.fleet.snapshot
    strangers = generation.strangers(snapshot)
    if not admitted.reading.asks_why:
        return router.route(facts, snapshot, now_s, strangers)
    choice, explanation = router.explain(facts, snapshot, now_s, strangers)
    exchange.explanation = one_line(explanation)
    return choice


def choose_for_newcomer(exchange: Exchange, now_s: float) -> Choice:
    """The same for a request that has just come: those that are held already go before it."""
    facts = exchange.facts
    choice = choose(exchange, facts, now_s)
    door = exchange.generation.door
    if isinstance(choice, Decision) and door.holding.must_wait(exchange, choice):
        door.holding.room_may_have_come()
        return exchange.generation.router.no_room(facts, door.fleet.snapshot, now_s)
    return choice


def choose_again(exchange: Exchange, now_s: float, lost_races: int, home: str) -> Choice:
    """Another worker has taken the place that was decided for, for the `lost_races`th time."""
    if lost_races <= MOST_LOST_RACES:
        return choose_for_newcomer(exchange, now_s)
    router = exchange.generation.router
    if router.rules.holds:
        return router.no_room(exchange.facts, exchange.generation.door.fleet.snapshot, now_s)
    return Refusal("saturated", "every place is taken", None, 1.0, home)


def take_turn(exchange: Exchange, facts: Facts, now_s: float) -> Choice:
    """The same for a held request whose turn it is, by its `facts` as they are now; the place is taken then."""
    for _ in range(MOST_LOST_RACES):
        choice = choose(exchange, facts, now_s)
        if not isinstance(choice, Decision) or exchange.take_place(choice) is not None:
            return choice
    return exchange.generation.router.no_room(facts, exchange.generation.door.fleet.snapshot, now_s)
