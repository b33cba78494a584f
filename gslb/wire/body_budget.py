"""One bound on the request bodies that all connections together hold in memory."""

from __future__ import annotations


class BodyBudget:
    """Bytes of bodies received and not yet let go. `limit_bytes` may be changed while bytes are held."""

    __slots__ = ("held_bytes", "limit_bytes")

    def __init__(self, limit_bytes: float = float("inf")) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0

    def has_room(self, more_bytes: int) -> bool:
        """Would `more_bytes` still fit?"""
        return self.held_bytes + more_bytes <= self.limit_bytes

    def try_hold(self, more_bytes: int) -> bool:
        """Hold `more_bytes`, if they fit."""
        held_bytes = self.held_bytes + more_bytes
        if held_bytes > self.limit_bytes:
            return False
        self.held_bytes = held_bytes
        return True

    def let_go(self, fewer_bytes: int) -> None:
        """So many bytes that were held are gone."""
        self.held_bytes -= fewer_bytes
