"""Where a request goes after its first endpoint: after a failure, or beside an attempt that is slow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gslb.proxy.failure import Failure
from gslb.routing.router import Decision

if TYPE_CHECKING:
    from gslb.proxy.exchange import Exchange


def after_failure(exchange: Exchange, fault: Failure) -> Decision | None:
    """Where to go after `fault`, within attempts, fences, replay rule and retry budget; None: nowhere."""
    generation = exchange.generation
    now_s = exchange.client.now_s()
    if now_s >= exchange.total_at_s or not fault.may_retry(generation.failover.replay):
        return None
    following = elsewhere(exchange, (*exchange.failures, fault), now_s)
    if following is None or fault.never_sent or generation.retry_budget.try_retry(now_s):
        return following
    return None


def elsewhere(exchange: Exchange, failures: Iterable[Failure], now_s: float) -> Decision | None:
    """The router's choice among endpoints not tried yet, within attempts and fences; None: none is left."""
    facts, generation = exchange.facts, exchange.generation
    snapshot = generation.door.fleet.snapshot
    router = generation.router
    most = max(generation.failover.max_attempts, router.last_resorts(facts, snapshot))
    if len(exchange.tried) >= most:
        return None
    by_region: dict[str, int] = {}
    for failed in failures:
        by_region[failed.region] = by_region.get(failed.region, 0) + 1
    # What a reload has added since is not this exchange's to use: it keeps its configuration (FC-30).
    closed = generation.strangers(snapshot).union(exchange.tried)
    return router.next_attempt(facts, snapshot, now_s, closed, by_region)
