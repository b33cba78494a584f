"""The endpoint health machine.

    unknown ----- first good sign ------> admitting <---- good sign ---- suspect
       |                                    |   \\---- broken connection ---^  |
       |                                    |                                 |
       '-- fall probes or passive_fall -----+----------------v----------------'
           failures in a row                              ejected
                                     probes saw it:  rise good probes -> admitting
                                     traffic saw it: time served      -> probing

    probing: one trial request at a time; good -> admitting, bad -> ejected for twice as long.

Two kinds of evidence are kept apart. A light `/health` proves only that the API process answers, so what
traffic condemned (a hung engine, FC-19) only traffic may acquit; but once `fall` probes in a row fail as well
the illness is one that probes see, and good probes end it. For the same reason a good probe never clears the
count of failed requests. A single broken connection makes an endpoint suspect: it is
used after the well ones and probed at once. Client errors, 429 and clients that left say nothing (FC-21).
The operator's hand (cordon, drain) is not in here: neither overwrites the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum


class State(StrEnum):
    """Where an endpoint stands."""

    UNKNOWN = "unknown"
    ADMITTING = "admitting"
    SUSPECT = "suspect"
    EJECTED = "ejected"
    PROBING = "probing"


class Outcome(Enum):
    """What an attempt said about the endpoint."""

    SUCCESS = "success"
    BROKEN = "broken"
    """Refused, reset, timed out, truncated, not HTTP: the path or the process is ill."""
    SERVER_ERROR = "server_error"
    """An orderly 5xx or an error event: the engine is ill or full, the path is well."""
    NEUTRAL = "neutral"
    """4xx, 429, client left: nobody is to blame."""


SUSPICION = {State.ADMITTING: 0, State.PROBING: 0, State.UNKNOWN: 1, State.SUSPECT: 2, State.EJECTED: 3}
"""Order of use: the least suspicion first. `probing` ranks with the well ones, but for one request only."""

LAST_RESORT = SUSPICION[State.EJECTED]
"""Used only when nothing better passes the fences."""

_MAX_EJECTION_FACTOR = 8


@dataclass(frozen=True, slots=True)
class HealthMarks:
    """Thresholds. Counts are consecutive; `window_s` is how long a success outranks failed probes."""

    fall: int = 3
    rise: int = 2
    passive_fall: int = 3
    ejection_s: float = 10.0
    window_s: float = 6.0


class HealthMachine:
    """One endpoint's health. Every method takes `now_s` and returns True when the state changed."""

    __slots__ = (
        "_ejected_by_traffic", "_ejection_factor", "_marks", "failed_probes", "failed_requests",
        "good_probes", "last_success_s", "reason", "state", "until_s",
    )  # fmt: skip

    def __init__(self, marks: HealthMarks) -> None:
        self._marks = marks
        self.state = State.UNKNOWN
        self.reason = "no probe yet"
        self.good_probes = 0
        self.failed_probes = 0
        self.failed_requests = 0
        self.last_success_s = float("-inf")
        self.until_s = 0.0
        self._ejected_by_traffic = False
        self._ejection_factor = 1

    def set_marks(self, marks: HealthMarks) -> None:
        """New thresholds after a reload; the state stays."""
        self._marks = marks

    def probe_passed(self, now_s: float) -> bool:
        """A probe came back good."""
        self.good_probes += 1
        self.failed_probes = 0
        if self.state is State.EJECTED:
            if self._ejected_by_traffic:
                return self.tick(now_s)
            return self.good_probes >= self._marks.rise and self._move(State.ADMITTING, "probes pass")
        if self.state in (State.UNKNOWN, State.SUSPECT):
            return self._move(State.ADMITTING, "probe passed")
        return False

    def probe_failed(self, now_s: float, why: str) -> bool:
        """A probe failed or timed out; `why` is shown to operators."""
        self.good_probes = 0
        self.failed_probes += 1
        if self.failed_probes < self._marks.fall:
            return False
        if self.state is State.EJECTED:
            self._ejected_by_traffic = False
            return False
        if now_s - self.last_success_s <= self._marks.window_s:
            # Busy is not dead (FC-20): tokens flow, so the probe is slow, not the engine gone.
            return self._move(State.SUSPECT, f"probe: {why}, but requests succeed")
        self._ejected_by_traffic = False
        return self._move(State.EJECTED, f"probe: {why}")

    def observe(self, outcome: Outcome, now_s: float, why: str = "") -> bool:
        """Take in how one attempt ended."""
        if outcome is Outcome.NEUTRAL:
            return False
        if outcome is Outcome.SUCCESS:
            self.failed_requests = 0
            self.last_success_s = now_s
            if self.state is State.EJECTED:
                return False  # an ejected endpoint's old streams may still end well: no proof for new ones
            self._ejection_factor = 1
            return self._move(State.ADMITTING, "request succeeded")
        if self.state is State.EJECTED:
            return False
        self.failed_requests += 1
        if self.state is State.PROBING or self.failed_requests >= self._marks.passive_fall:
            return self._eject_by_traffic(now_s, why)
        if outcome is Outcome.BROKEN and self.state is State.ADMITTING:
            return self._move(State.SUSPECT, why)
        return False

    def tick(self, now_s: float) -> bool:
        """Let time pass: an ejection by traffic that is served becomes a trial."""
        if self.state is State.EJECTED and self._ejected_by_traffic and now_s >= self.until_s:
            return self._move(State.PROBING, "trial after ejection")
        return False

    def _eject_by_traffic(self, now_s: float, why: str) -> bool:
        self._ejected_by_traffic = True
        self.until_s = now_s + self._marks.ejection_s * self._ejection_factor
        self._ejection_factor = min(self._ejection_factor * 2, _MAX_EJECTION_FACTOR)
        return self._move(State.EJECTED, f"requests: {why}")

    def _move(self, state: State, reason: str) -> bool:
        changed = state is not self.state
        if changed:
            self.good_probes = 0
        if state is State.EJECTED:
            self.failed_requests = 0
        self.state = state
        self.reason = reason
        return changed
