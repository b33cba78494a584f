"""One knowledge of the fleet for several processes: the supervisor's view is the truth, the workers' follow it.

The supervisor's view hears the observer and every worker's outcomes, and tells what has changed of an endpoint. A
worker's view takes that over: the health of an endpoint is judged in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from gslb.routing.health import Cause, HealthMarks, Outcome, State
from gslb.routing.learn import Moments
from gslb.routing.load import InFlight
from gslb.routing.snapshot import Known, Record
from gslb.routing.view import FleetView
from gslb.types import ForcedState, LoadSample

_COUNTED = (Outcome.SUCCESS, Outcome.FULL)
_LOAD_MEMBERS = tuple(member.name for member in fields(LoadSample))


class LeadingView(FleetView):
    """The supervisor's view: tells by `on_change` whatever the workers should hear."""

    def outcome(self, key: str, outcome: Outcome, now_s: float, why: str = "", count: int = 1) -> bool:
        """As in FleetView; also a row of failures that begins or ends is a change, for whose end workers look."""
        health = record.health if (record := self._records.get(key)) else None
        failed_before = health.failed_requests if health else 0
        changed = super().outcome(key, outcome, now_s, why, count)
        if health is not None and health.failed_requests != failed_before:
            self._on_change(key)
        return changed


class FollowingView(FleetView):
    """A worker's view. `tell` takes (key, outcome, monotonic seconds, why, how many) to the supervisor.

    What is of no hurry, the successes and 429s of a well endpoint, is counted and told when `tell_counts` is
    called, or before a failure of the same endpoint: as the supervisor judges one, it knows all that went before
    it in this process.
    """

    def __init__(
        self,
        marks: HealthMarks,
        own_load_of: Callable[[str], InFlight],
        tell: Callable[[str, Outcome, float, str, int], None],
    ) -> None:
        super().__init__(marks, own_load_of=own_load_of)
        self._tell = tell
        self._heard: dict[str, dict[str, Any]] = {}
        self._untold: dict[tuple[str, Outcome], tuple[int, float]] = {}

    def hear(self, told: Mapping[str, dict[str, Any]], *, is_all: bool = False) -> None:
        """Take over what `told_of` or `changes` said, by endpoint key; `is_all`: this is all there is to know."""
        if is_all:
            self._heard = {}
        for key, members in told.items():
            heard = self._heard.setdefault(key, {})
            heard.update(members)
            self.take_over(key, known_from(heard))

    def outcome(self, key: str, outcome: Outcome, now_s: float, why: str = "", count: int = 1) -> bool:
        """Tell the supervisor. Always False: what follows from it, a probe at once included, is decided there."""
        record = self._records.get(key)
        if record is None or outcome is Outcome.NEUTRAL:
            return False
        is_well = record.health.state is State.ADMITTING and not record.health.failed_requests
        if is_well and outcome in _COUNTED:
            before, _ = self._untold.get((key, outcome), (0, now_s))
            self._untold[key, outcome] = (before + count, now_s)
            return False
        for counted in _COUNTED:
            self._tell_counted(key, counted)
        self._tell(key, outcome, now_s, why, count)
        return False

    def tell_counts(self) -> None:
        """Tell what has been counted since the last call, all successes first: whether an endpoint that turns
        most away may leave depends on whether others serve. Call once a second."""
        for outcome in _COUNTED:
            for key in [key for key, counted in self._untold if counted is outcome]:
                self._tell_counted(key, outcome)

    def take_seen(self) -> dict[str, list[float]]:
        """What first tokens and answers have taught since the last call, by endpoint key: the supervisor's to
        learn from. Call once a second."""
        told: dict[str, list[float]] = {}
        for key, record in self._records.items():
            if not record.seen.is_empty:
                told[key] = record.seen.told()
                record.seen = Moments()
        return told

    def _learn(self, _record: Record) -> bool:
        return False  # a header may tell a worker of load, but what was seen is the supervisor's to learn from

    def _tell_counted(self, key: str, outcome: Outcome) -> None:
        untold = self._untold.pop((key, outcome), None)
        if untold is not None:
            count, last_s = untold
            self._tell(key, outcome, last_s, "", count)


def told_of(known: Known) -> dict[str, Any]:
    """`known` as JSON."""
    return {
        "state": known.state.value,
        "cause": None if known.cause is None else known.cause.value,
        "reason": known.reason,
        "failed_requests": known.failed_requests,
        "share": known.share,
        "load": None if known.load is None else {name: getattr(known.load, name) for name in _LOAD_MEMBERS},
        "models": None if known.models is None else sorted(known.models),
        "model_cards": known.model_cards,
        "forced": known.forced.value,
        "rtt_ms": known.rtt_ms,
        "learnt_slots": known.learnt_slots,
        "usual_others": known.usual_others,
        "beliefs": known.beliefs,
    }


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """What of `now` differs: a scrape moves the load alone, and a list of models may be long."""
    return {name: value for name, value in now.items() if name not in before or before[name] != value}


def known_from(told: dict[str, Any]) -> Known:
    """What `told_of` said."""
    load, models, cause = told["load"], told["models"], told["cause"]
    return Known(
        state=State(told["state"]),
        cause=None if cause is None else Cause(cause),
        reason=told["reason"],
        failed_requests=told["failed_requests"],
        share=told["share"],
        load=None if load is None else LoadSample(**load),
        models=None if models is None else frozenset(models),
        model_cards=tuple(told["model_cards"]),
        forced=ForcedState(told["forced"]),
        rtt_ms=told["rtt_ms"],
        learnt_slots=told["learnt_slots"],
        usual_others=told["usual_others"],
        beliefs=tuple(told["beliefs"]),
    )
