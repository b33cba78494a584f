"""A second attempt beside a slow first one, before either has committed: the first to commit answers.

Off unless configured. A hedge makes an engine do work that may be thrown away, so only a share of the requests
under way has one at a time, only requests that stream (silence before an answer that is made whole says nothing),
and only towards a well endpoint with room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gslb.proxy.deadlines import NEVER_S
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


class Hedge:
    """One exchange's hedge: its time comes, then two attempts run at once, counted as one hedge until `end`."""

    __slots__ = ("_at_s", "_first", "_hedging", "_second")

    def __init__(self, hedging: Hedging) -> None:
        self._hedging = hedging
        self._at_s = NEVER_S
        self._first: Attempt | None = None
        self._second: Attempt | None = None

    def attempt_begins(self, now_s: float) -> None:
        """An attempt that runs alone begins: it is slow when it has not committed `after_s` from now."""
        self._at_s = now_s + self._hedging.after_s

    def next_due_s(self, deadline_s: float) -> float:
        """When to look next, if an attempt alone would be due at `deadline_s`: of two it is the sooner."""
        first, second = self._first, self._second
        if first is None or second is None:
            return min(deadline_s, self._at_s)
        return min(first.due_s, second.due_s)

    def on_deadline(self, exchange: Exchange, attempt: Attempt, now_s: float) -> None:
        """The deadline armed last has passed; `attempt` runs, perhaps beside another."""
        first, second = self._first, self._second
        if first is not None and second is not None:
            late = first if first.due_s <= now_s else second
            if late.due_s <= now_s:
                late.on_deadline(now_s)  # which ends the race, one way or the other
            else:
                exchange.arm(NEVER_S)
        elif self._at_s <= now_s < attempt.due_s:
            self._at_s = NEVER_S
            self._begin(exchange, attempt, now_s)
            exchange.arm(attempt.due_s)
        else:
            attempt.on_deadline(now_s)

    def _begin(self, exchange: Exchange, slow: Attempt, now_s: float) -> None:
        """Start a second attempt beside the `slow` one, where there may be one."""
        hedging = self._hedging
        if not hedging.may_begin(exchange.generation.door.counters.open_exchanges):
            return
        decision = elsewhere(exchange, exchange.failures, now_s)
        if decision is None or decision.option.view.state is not State.ADMITTING or not decision.option.has_room:
            return
        second = exchange.next_attempt(decision)
        if second is not None:
            hedging.running += 1
            self._first, self._second = slow, second
            second.start(now_s)

    def other(self, attempt: Attempt) -> Attempt | None:
        """The one that runs beside `attempt`, if one does."""
        return self._second if attempt is self._first else self._first

    def end(self, kept: Attempt | None) -> bool:
        """Over: what is not `kept` is aborted, and nobody is blamed for having been slower. True when it is the
        second that is kept."""
        first, second = self._first, self._second
        self._at_s = NEVER_S
        self._first = self._second = None
        if first is None or second is None:
            return False
        self._hedging.running -= 1
        for attempt in (first, second):
            if attempt is not kept:
                attempt.close("aborted", Outcome.NEUTRAL)
        return kept is second
