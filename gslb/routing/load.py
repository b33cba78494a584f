"""Own load, counted exactly: tickets opened when an attempt starts and closed once when its stream ends.

Prefill backlog is in no vLLM gauge, so an edge must count its own prompt tokens that have no first token
yet; without that goodput at 0.9 load fell from .99 to .91 in simulation (DESIGN section 7). They are counted whole
until their first token, so since when the first of them has been at it is kept too: `predict` knows from that how
much of them is done.
"""

from __future__ import annotations

from typing import Protocol


class InFlight(Protocol):
    """What this edge has under way at one endpoint: requests, and prompt tokens still to be prefilled.

    `OwnLoad` counts for an edge of one process; `state.shared_memory.SharedLoad` for all its workers together.
    """

    @property
    def requests(self) -> int:
        """Requests from their start to their answer's end."""

    @property
    def pending_tokens(self) -> int:
        """Prompt tokens of those without a first token."""

    @property
    def prefill_since_s(self) -> float:
        """When the first of the pending prompts got its turn: none was before it, or the one before was done.
        Monotonic seconds; says nothing while no tokens are pending."""

    def add(self, requests: int, pending_tokens: int) -> None:
        """Change both counts of this process (negative: less)."""

    def prefilled(self, pending_tokens: int, now_s: float) -> None:
        """A prompt is done that had so many: it is the next one's turn."""

    def open_ticket(self, uncached_tokens: int, capacity: int | None = None, now_s: float = 0.0) -> Ticket | None:
        """Count one more request with `uncached_tokens` of prompt to prefill; None when that would be more than
        `capacity`, and nothing is counted then. `now_s` matters only where there are tokens."""


class OwnLoad:
    """The counts of an edge of one process: plain ints, which a decision reads for every candidate."""

    __slots__ = ("pending_tokens", "prefill_since_s", "requests")

    def __init__(self) -> None:
        self.requests = 0
        self.pending_tokens = 0
        self.prefill_since_s = 0.0

    def add(self, requests: int, pending_tokens: int) -> None:
        """Change both counts."""
        self.requests += requests
        self.pending_tokens += pending_tokens

    def prefilled(self, pending_tokens: int, now_s: float) -> None:
        """A prompt is done that had so many: it is the next one's turn."""
        self.add(0, -pending_tokens)
        self.prefill_since_s = now_s

    def open_ticket(self, uncached_tokens: int, capacity: int | None = None, now_s: float = 0.0) -> Ticket | None:
        """Count one more request; None, and nothing counted, when `capacity` are under way already."""
        if capacity is not None and self.requests >= capacity:
            return None
        if not self.pending_tokens:
            self.prefill_since_s = now_s
        self.add(1, uncached_tokens)
        return Ticket(self, uncached_tokens)


def guests_key(region: str) -> str:
    """The key under which a region's foreign requests are counted; no endpoint's key has a blank."""
    return f"guests {region}"


class Ticket:
    """One attempt's share of an endpoint's own load. Closing twice is harmless; it counts once."""

    __slots__ = ("_guests", "_is_open", "_load", "_pending_tokens")

    def __init__(self, load: InFlight, pending_tokens: int) -> None:
        self._load = load
        self._guests: InFlight | None = None
        self._pending_tokens = pending_tokens
        self._is_open = True

    def as_guest(self, guests: InFlight) -> None:
        """Its request is foreign where it goes: count it there as well."""
        guests.add(1, 0)
        self._guests = guests

    def first_token(self, now_s: float) -> None:
        """The prompt is prefilled: its tokens are no longer pending."""
        if self._pending_tokens:
            self._load.prefilled(self._pending_tokens, now_s)
            self._pending_tokens = 0

    def close(self) -> None:
        """The attempt is over, however it ended."""
        if self._is_open:
            self._is_open = False
            self._load.add(-1, -self._pending_tokens)
            self._pending_tokens = 0
            if self._guests is not None:
                self._guests.add(-1, 0)


class Gate:
    """A region's door for foreign traffic with two marks, so that it does not flap between them."""

    __slots__ = ("_open_below", "_shut_above", "is_shut")

    def __init__(self, shut_above: float, open_below: float) -> None:
        self._shut_above = shut_above
        self._open_below = open_below
        self.is_shut = False

    def update(self, used_share: float) -> bool:
        """Take in the region's used share of capacity (0..1 and above); True when the gate is shut."""
        if self.is_shut:
            self.is_shut = used_share >= self._open_below
        else:
            self.is_shut = used_share > self._shut_above
        return self.is_shut
