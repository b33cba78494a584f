"""How long the first token would take at one endpoint: network + queue wait + prefill, in milliseconds; and the
tax, which nobody waits for: what being foreign is charged, and others' time that is wasted.

Below the slot limit a first token waits for decoding steps and for the prompts ahead of it to be prefilled
(`learn` says how long those take); at the limit it also waits for slots to come free, one every
`slot_hold_ms / slots` on average.
"""

from __future__ import annotations

from typing import Final

from gslb.routing.health import State
from gslb.routing.snapshot import EndpointView

FRESH_S: Final = 2.0
"""A sample this young counts in full; from here to `stale_after_s` it gives way to what is usual there."""

_PROBING = State.PROBING
"""Looked up once: a member of an enumeration is dear to look up."""

_FORGOTTEN_AFTER: Final = 10.0
"""After so many times `stale_after_s` more an endpoint's usual load counts for nothing."""

_DOUBTED_SHARE: Final = 0.25
"""Of an endpoint's slots at most so many count as filled by others without anybody having told."""
_SURELY_FREE_BELOW = 1.0 - _DOUBTED_SHARE

_NO_PROGRESS_BASES: Final = 2.0
"""So many times `base_ms` a prompt has its turn before any of it counts as done: it waits for a step under way,
and an engine that has just become slow must not look quick (a region three times as slow: 0.1 points)."""


class Option:
    """One endpoint as one request would find it. All times in ms; `total_ms` includes the tax. `work` is
    what it would have to prefill of the prompt, `ahead` the same of prompts before it."""

    __slots__ = (
        "ahead", "has_room", "network_ms", "prefill_ms", "queue_ms", "tax_ms", "total_ms", "view", "work",
    )  # fmt: skip

    def __init__(
        self,
        view: EndpointView,
        network_ms: float,
        tax_ms: float,
        queue_ms: float,
        work: int,
        has_room: bool,
        ahead: float = 0.0,
    ) -> None:
        self.view = view
        self.network_ms = network_ms
        self.tax_ms = tax_ms
        self.queue_ms = queue_ms
        self.work = work
        self.prefill_ms = prefill_ms = work * view.rate_ms
        self.total_ms = network_ms + queue_ms + prefill_ms + tax_ms
        self.has_room = has_room
        self.ahead = ahead

    @property
    def is_capped(self) -> bool:
        """This edge runs as much there as the operator allows: not even a place in the queue is left."""
        capacity = self.view.endpoint.capacity
        return capacity is not None and self.view.own.requests >= capacity

    @property
    def predicted_ms(self) -> float:
        """Predicted time to first token: the total without the tax, which nobody waits for."""
        return self.total_ms - self.tax_ms

    @property
    def placed_ms(self) -> float:
        """The same once it has a slot, with nobody's prompt ahead: network, decoding steps and prefill."""
        return self.network_ms + max(self.view.base_ms, 0.0) + self.prefill_ms

    @property
    def slots_per_s(self) -> float:
        """How many slots come free there in a second while all are in use."""
        return 1000.0 * (self.view.slots or 1) / self.view.slot_hold_ms


def in_system(view: EndpointView, now_s: float, stale_after_s: float) -> float:
    """Requests at the endpoint: ours exactly, others' by the last sample. As that ages it gives way to what others
    usually have there, since nobody heard from for long is not idle; and much later to nothing, since nobody is
    full for ever because its metrics are gone."""
    others = view.others
    age_s = now_s - view.at_s
    if age_s > FRESH_S:
        if age_s < stale_after_s:
            others += (view.usual_others - others) * (age_s - FRESH_S) / (stale_after_s - FRESH_S)
        else:
            forgotten = (age_s - stale_after_s) / (_FORGOTTEN_AFTER * stale_after_s)
            others = view.usual_others * (1.0 - forgotten) if forgotten < 1.0 else 0.0
    return view.own.requests + others


def _refilled(view: EndpointView, others: float, now_s: float, slots: int) -> float:
    """Slots that others may have filled since the sample, beyond those they had: as many as they gave back.
    Without this all edges go for one free slot as soon as a sample tells of it."""
    if others <= 0.0:
        return 0.0
    turned = others * (now_s - view.at_s) * 1000 / view.slot_hold_ms
    return min(turned, others, _DOUBTED_SHARE * slots)


def _still_ahead(view: EndpointView, now_s: float) -> float:
    """Work of this edge's pending prompts that is not done yet, if they have gone at the usual pace since the
    first of them got its turn.

    When all of it should be done and no first token has come, the pace is not the usual one, and nobody knows how
    much is left: all of it counts again. So an engine that hangs or has become slow does not look idle.
    """
    own = view.own
    pending = own.pending_tokens
    if not pending:
        return 0.0
    busy_ms = (now_s - own.prefill_since_s) * 1000 - _NO_PROGRESS_BASES * view.base_ms
    left = pending - max(busy_ms, 0.0) / view.rate_ms
    return left if left > 0.0 else pending


def predict(
    view: EndpointView,
    network_ms: float,
    tax_ms: float,
    work: int,
    now_s: float,
    stale_after_s: float,
    taxed_work: float = 0.0,
) -> Option:
    """What a request with `work` (see `learn.prefill_work`) left to prefill would find at `view`. What is capped
    never has room. `tax_ms` is the foreign tax, `taxed_work` is charged as far as the endpoint is crowded (see
    `rules.Damping.crowd_tax`)."""
    own = view.own
    ahead = _still_ahead(view, now_s)
    is_fresh = now_s - view.at_s <= FRESH_S
    present = own.requests + view.others if is_fresh else in_system(view, now_s, stale_after_s)
    queue_ms = view.base_ms + ahead * view.drain_ms
    if queue_ms < 0.0:
        queue_ms = 0.0
    slots = view.slots
    has_room = True
    if view.state is _PROBING:
        has_room = own.requests == 0  # a trial is one request
    elif slots is not None and (
        present >= slots
        or (
            present >= _SURELY_FREE_BELOW * slots
            and present + _refilled(view, present - own.requests, now_s, slots) >= slots
        )
    ):
        has_room = False
        queue_ms += max(present - slots + 1, 0.0) * view.slot_hold_ms / slots
    elif view.is_kv_full and now_s - view.at_s <= stale_after_s:
        has_room = False
        queue_ms += view.slot_hold_ms / max(present, 1.0)
    if taxed_work and slots:
        crowd = min(present / slots, 1.0)
        tax_ms += crowd * crowd * taxed_work * view.rate_ms
    return Option(view, network_ms, tax_ms, queue_ms, work, has_room, ahead)
