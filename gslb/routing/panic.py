"""What is relaxed when too little of a fleet is left, and in which order.

1. **Slow start**, where all that is in use is still in it: after an outage of everything a request may use, the
   endpoints that come back first take what their slots allow. Nobody else could spare them.
2. **Suspicion.** A suspect is used once no well one has room; that needs no panic.
3. **Ejection**, the least suspected first: those that still answer probes before those that do not. Once each when
   nothing is left that is not ejected (the last resort); and, as the operator may choose, when less than
   `panic_below` of the capacity is in use and none of it has room.

Never relaxed: fences and the operator's hand, the declared capacity, one trial at a time, and that no request asks
one endpoint twice. All of it is counted over what the request at hand may use: a fleet that is well as a whole may
be gone for a client whom the law allows one region.

The usual rule (Envoy's panic threshold: under one half, health is ignored) is for servers whose load nobody knows:
the fear is that the few left are drowned. Here slots are counted, and what does not fit is held or refused with a
true Retry-After; sent to an ejected endpoint it would cost an attempt and most likely fail. So by default only the
last resort is left of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from gslb.routing.health import State
from gslb.routing.predict import Option, in_system
from gslb.routing.snapshot import EndpointView

_OUT = (State.EJECTED, State.PROBING)


def live_share(views: Sequence[EndpointView]) -> float:
    """Share (0..1) of the slots of `views` that is in use: neither ejected nor on trial. 1 of nothing.

    Unknown slots count as the mean of the known ones.
    """
    known = [view.all_slots for view in views if view.all_slots is not None]
    mean_slots = sum(known) / len(known) if known else 1.0
    total = live = 0.0
    for view in views:
        slots = mean_slots if view.all_slots is None else view.all_slots
        total += slots
        live += slots if view.state not in _OUT else 0.0
    return live / total if total else 1.0


def without_slow_start(seen: Sequence[Option], now_s: float, stale_after_s: float) -> Option | None:
    """The quickest of `seen`, none of which has room, that would have it but for its slow start; None while one of
    them is in use without."""
    for option in seen:
        if option.view.share >= 1.0 and option.view.state not in _OUT:
            return None
    free = [
        option
        for option in seen
        if option.view.state not in _OUT
        and not (option.is_capped or option.view.is_kv_full)
        and option.view.all_slots is not None
        and in_system(option.view, now_s, stale_after_s) < option.view.all_slots
    ]
    return min(free, key=lambda option: option.predicted_ms, default=None)
