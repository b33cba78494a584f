"""A second attempt beside a slow first one, before either has committed: the first to commit answers.

Off unless configured. A hedge makes an engine do work that may be thrown away, so only a share of the requests
under way has one at a time, only requests that stream (silence before an answer that is made whole says nothing),
and only towards a well endpoint with room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gslb.proxy.next_endpoint import elsewhere
from gslb.routing.health import Outcome, State

if TYPE_CHECKING:
    from gslb.proxy.attempt import Attempt
    from gslb.proxy.exchange import Exchange


class Hedging:
    """When to hedge, and how many requests may be hedged at once: `share` of those under way, one always."""

    __slots__ = ("_share", "after_s", "running")

    def __init__(self, after_s: float, share: float) -> None:
        self.after_s = after_s
        self._share = share
        self.running = 0

    def may_begin(self, requests: int) -> bool:
        """True when one more of the `requests` under way may be hedged."""
        return self.running < max(1.0, self._share * requests)


class Race:
    """Two attempts of one exchange that run at once, counted as one hedge until `end`."""

    __slots__ = ("_first", "_hedging", "second")

    def __init__(self, hedging: Hedging, first: Attempt, second: Attempt) -> None:
        self._hedging = hedging
        self._first = first
        self.second = second
        hedging.running += 1

    @property
    def due_s(self) -> float:
        """When the next of the two deadlines passes."""
        return min(self._first.due_s, self.second.due_s)

    def late(self, now_s: float) -> Attempt | None:
        """One whose deadline has passed, if any."""
        return next((attempt for attempt in (self._first, self.second) if attempt.due_s <= now_s), None)

    def other(self, attempt: Attempt) -> Attempt:
        """The one that is not `attempt`."""
        return self.second if attempt is self._first else self._first

    def end(self, kept: Attempt | None) -> None:
        """Over: what is not `kept` is aborted, and nobody is blamed for having been slower."""
        self._hedging.running -= 1
        for attempt in (self._first, self.second):
            if attempt is not kept:
                attempt.close("aborted", Outcome.NEUTRAL)


def race_for(exchange: Exchange, hedging: Hedging | None, slow: Attempt, now_s: float) -> Race | None:
    """A second attempt beside the `slow` one, under way; None where there may be none."""
    if hedging is None or not hedging.may_begin(exchange.generation.door.counters.open_exchanges):
        return None
    decision = elsewhere(exchange, exchange.failures, now_s)
    if decision is None or decision.option.view.state is not State.ADMITTING or not decision.option.has_room:
        return None
    second = exchange.next_attempt(decision)
    if second is None:
        return None
    race = Race(hedging, slow, second)
    race.second.start(now_s)
    return race
