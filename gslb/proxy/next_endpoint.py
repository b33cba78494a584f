"""Where a request goes after its first endpoint: after a failure, or beside an attempt that is slow."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gslb.proxy.failure import Failure
from gslb.proxy.generation import Generation
from gslb.routing.router import Decision
from gslb.types import Facts


def next_endpoint(
    generation: Generation, facts: Facts, tried: Collection[str], failures: Iterable[Failure], now_s: float
) -> Decision | None:
    """The router's choice among endpoints that are not `tried`, within attempts and fences; None: none is left."""
    snapshot = generation.door.fleet.snapshot
    router = generation.router
    if len(tried) >= max(generation.failover.max_attempts, router.last_resorts(facts, snapshot)):
        return None
    by_region: dict[str, int] = {}
    for failed in failures:
        by_region[failed.region] = by_region.get(failed.region, 0) + 1
    # What a reload has added since is not this exchange's to use: it keeps its configuration (FC-30).
    strangers = [v.endpoint.key for v in snapshot.endpoints if v.endpoint.key not in generation.pools]
    return router.next_attempt(facts, snapshot, now_s, [*tried, *strangers], by_region)
