"""Holding without an order of its own: first come, first served. What `routing.hold` is compared with."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from math import inf

from gslb.routing.hold import HoldQueue
from gslb.routing.refusal import NoRoom
from gslb.routing.waiting import Held, Where
from gslb.types import Facts


class FirstCome(HoldQueue):
    """One line: bounds, groups and early refusal are the hold queue's; there are no classes, tenants have no
    turns, and the late keep their place."""

    def must_wait(self, group: Hashable, _priority: int, key: str) -> bool:
        """True when others of `group` were there first."""
        return super().must_wait(group, 0, key)

    def _made(
        self, facts: Facts, group: Where, cookie: object, now_s: float, no_room: NoRoom, until_s: float
    ) -> Held:
        alike = replace(facts, tenant="", priority=0)
        held = super()._made(alike, group, cookie, now_s, no_room, until_s)
        held.order_s = now_s
        if not self.rules.refuses_late:
            held.due_s, held.is_late = inf, False
        return held
