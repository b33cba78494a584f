"""One knowledge of the fleet for several processes: the supervisor's view is the truth, the workers' follow it.

The supervisor's view hears the observer and every worker's outcomes, and tells what has changed of an endpoint. A
worker's view takes that over: the health of an endpoint is judged in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from gslb.routing.health import HealthMarks, Outcome, State
from gslb.routing.load import InFlight
from gslb.routing.view import FleetView, Known
from gslb.types import ForcedState, LoadSample

_LOAD_MEMBERS = tuple(member.name for member in fields(LoadSample))
_SUCCESS_EVERY_S = 1.0
"""A well endpoint's successes are told this often: what the health machine needs is when the last one was."""


class LeadingView(FleetView):
    """The supervisor's view: tells by `on_change` whatever the workers should hear."""

    def outcome(self, key: str, outcome: Outcome, now_s: float, why: str = "") -> bool:
        """As in FleetView; also a row of failures that begins or ends is a change, for whose end workers look."""
        health = record.health if (record := self._records.get(key)) else None
        failed_before = health.failed_requests if health else 0
        changed = super().outcome(key, outcome, now_s, why)
        if health is not None and health.failed_requests != failed_before:
            self._on_change(key)
        return changed


class FollowingView(FleetView):
    """A worker's view. `tell` takes (key, outcome, monotonic seconds, why) to the supervisor."""

    def __init__(
        self,
        marks: HealthMarks,
        own_load_of: Callable[[str], InFlight],
        tell: Callable[[str, Outcome, float, str], None],
    ) -> None:
        super().__init__(marks, own_load_of=own_load_of)
        self._tell = tell
        self._heard: dict[str, dict[str, Any]] = {}

    def hear(self, told: Mapping[str, dict[str, Any]], *, is_all: bool = False) -> None:
        """Take over what `told_of` or `changes` said, by endpoint key; `is_all`: this is all there is to know."""
        if is_all:
            self._heard = {}
        for key, members in told.items():
            heard = self._heard.setdefault(key, {})
            heard.update(members)
            self.take_over(key, known_from(heard))

    def outcome(self, key: str, outcome: Outcome, now_s: float, why: str = "") -> bool:
        """Tell the supervisor. Always False: what follows from it, a probe at once included, is decided there."""
        record = self._records.get(key)
        if record is None or outcome is Outcome.NEUTRAL:
            return False
        health = record.health
        if outcome is Outcome.SUCCESS:
            is_well = health.state is State.ADMITTING and not health.failed_requests
            if is_well and now_s - health.last_success_s < _SUCCESS_EVERY_S:
                return False
            health.last_success_s = now_s
        self._tell(key, outcome, now_s, why)
        return False


def told_of(known: Known) -> dict[str, Any]:
    """`known` as JSON."""
    return {
        "state": known.state.value,
        "reason": known.reason,
        "failed_requests": known.failed_requests,
        "load": None if known.load is None else {name: getattr(known.load, name) for name in _LOAD_MEMBERS},
        "models": None if known.models is None else sorted(known.models),
        "model_cards": known.model_cards,
        "forced": known.forced.value,
        "rtt_ms": known.rtt_ms,
        "learnt_slots": known.learnt_slots,
    }


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """What of `now` differs: a scrape moves the load alone, and a list of models may be long."""
    return {name: value for name, value in now.items() if name not in before or before[name] != value}


def known_from(told: dict[str, Any]) -> Known:
    """What `told_of` said."""
    load, models = told["load"], told["models"]
    return Known(
        state=State(told["state"]),
        reason=told["reason"],
        failed_requests=told["failed_requests"],
        load=None if load is None else LoadSample(**load),
        models=None if models is None else frozenset(models),
        model_cards=tuple(told["model_cards"]),
        forced=ForcedState(told["forced"]),
        rtt_ms=told["rtt_ms"],
        learnt_slots=told["learnt_slots"],
    )
