"""How long the first token would take at one endpoint: network + queue wait + prefill, in milliseconds.

The terms and their constants come from DESIGN sections 2 and 7: below the slot limit a first token waits for
the prompts ahead of it to be prefilled; at the limit it also waits for slots to come free, one every
`slot_hold_ms / slots` on average.
"""

from __future__ import annotations

from gslb.routing.health import State
from gslb.routing.view import EndpointView

FRESH_S = 2.0
"""A sample this young counts in full; from here to `stale_after_s` it fades to nothing."""


class Option:
    """One endpoint as one request would find it. All times in ms; `total_ms` includes the foreign tax."""

    __slots__ = ("has_room", "network_ms", "prefill_ms", "queue_ms", "tax_ms", "total_ms", "view")

    def __init__(
        self,
        view: EndpointView,
        network_ms: float,
        tax_ms: float,
        queue_ms: float,
        prefill_ms: float,
        has_room: bool,
    ) -> None:
        self.view = view
        self.network_ms = network_ms
        self.tax_ms = tax_ms
        self.queue_ms = queue_ms
        self.prefill_ms = prefill_ms
        self.total_ms = network_ms + queue_ms + prefill_ms + tax_ms
        self.has_room = has_room

    @property
    def is_capped(self) -> bool:
        """This edge runs as much there as the operator allows: not even a place in the queue is left."""
        capacity = self.view.endpoint.capacity
        return capacity is not None and self.view.own.requests >= capacity

    @property
    def predicted_ms(self) -> float:
        """Predicted time to first token: the total without the tax, which nobody waits for."""
        return self.total_ms - self.tax_ms


def in_system(view: EndpointView, now_s: float, stale_after_s: float) -> float:
    """Requests at the endpoint: ours exactly, others' by the last sample, faded by its age."""
    others = view.others
    if others:
        age_s = now_s - view.at_s
        if age_s > FRESH_S:
            others *= max(0.0, 1.0 - (age_s - FRESH_S) / max(stale_after_s - FRESH_S, 0.001))
    return view.own.requests + others


def predict(
    view: EndpointView,
    network_ms: float,
    tax_ms: float,
    prompt_tokens: int,
    now_s: float,
    stale_after_s: float,
) -> Option:
    """What a request of `prompt_tokens` (uncached) would find at `view`. What is capped never has room."""
    endpoint = view.endpoint
    rate_ms = endpoint.prefill_ms_per_token
    own = view.own
    queue_ms = own.pending_tokens * rate_ms
    slots = view.slots
    has_room = True
    if view.state is State.PROBING:
        has_room = own.requests == 0  # a trial is one request
    elif slots is not None and (present := in_system(view, now_s, stale_after_s)) >= slots:
        has_room = False
        queue_ms += (present - slots + 1) * endpoint.slot_hold_ms / slots
    elif view.is_kv_full and now_s - view.at_s <= stale_after_s:
        has_room = False
        queue_ms += endpoint.slot_hold_ms / max(in_system(view, now_s, stale_after_s), 1.0)
    return Option(view, network_ms, tax_ms, queue_ms, prompt_tokens * rate_ms, has_room)
