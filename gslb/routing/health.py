"""The endpoint health machine.

    unknown ----- first good sign ------> admitting <---- good sign ---- suspect
       |                                    |   \\\\---- broken connection ---^  |
       |                                    |                                 |
       '---- condemned by probes, by traffic, or by its token counters -------'
                                            v
                                         ejected
                     by probes:    rise good probes              -> admitting
                     by traffic:   time served                   -> probing
                     by progress:  token counters move           -> admitting
                                   time served, and no sample
                                   says still any more           -> probing

    probing: one trial request at a time; good -> admitting, bad -> ejected for twice as long,
             429 -> ejected as long again.

**What condemns.** `fall` probes in a row. `passive_fall` failed requests in a row, or fewer than `min_success`
of the requests of the last `ratio_window_s` served, once there are `ratio_samples` of them: absolute marks, which
hold for a fleet of two as for one of two hundred, where a comparison with the mean would need many. Requests that
run while the token counters stand still (`routing.progress`). A single broken connection makes an endpoint
suspect, and so does the illness of another on its node (a failed GPU's neighbours often fail next): it is used
after the well ones and probed at once.

**What acquits.** Two kinds of evidence are kept apart. A light `/health` proves only that the API process
answers, so what traffic condemned (a hung engine, FC-19) only traffic may acquit, and what its counters condemned
its counters or traffic; but once `fall` probes in a row fail as well the illness is one that probes see, and good
probes end it. For the same reason a good probe never clears the count of failed requests. Requests that succeed
outrank probes that are slow (FC-20: busy is not dead), though not probes whose connection is refused: nobody is
there.

**Who is not to blame.** Client errors and clients that left say nothing (FC-21). A 429 neither counts in a row nor
ends one; in the ratio it counts as not served, for an endpoint that says it to most is of no use.

**How long.** `ejection_s`, doubled (up to eightfold) when a trial fails or an endpoint is out again before it was
in use for as long as it had been out; up to a quarter longer by chance, so that edges do not try it all at once.
Whether traffic may eject at all is also asked of the fleet (`routing.ejection`): one whose loss the others could
not bear is kept as a suspect for as long as it would have been out, whatever probes and single requests say.

**Coming back** is slow: `share` rises from a tenth to 1 within `slow_start_s`, and scales the slots. So does
that of an endpoint that a reload has added; what is there when gslb starts begins with all of it.

The operator's hand (cordon, drain) is not in here: neither overwrites the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, StrEnum
from random import Random
from typing import Final

from gslb.routing.success_ratio import Ends, RecentEnds


class State(StrEnum):
    """Where an endpoint stands."""

    UNKNOWN = "unknown"
    ADMITTING = "admitting"
    SUSPECT = "suspect"
    EJECTED = "ejected"
    PROBING = "probing"


class Cause(StrEnum):
    """What condemned an endpoint that is ejected, or suspect because it could not be spared."""

    PROBES = "probes"
    TRAFFIC = "traffic"
    PROGRESS = "progress"


class Outcome(Enum):
    """What an attempt said about the endpoint."""

    SUCCESS = "success"
    BROKEN = "broken"
    """Refused, reset, timed out, truncated, not HTTP: the path or the process is ill."""
    SERVER_ERROR = "server_error"
    """An orderly 5xx or an error event: the engine is ill or full, the path is well."""
    FULL = "full"
    """429: well, but it served nobody."""
    NEUTRAL = "neutral"
    """Any other 4xx, client left: nobody is to blame."""


SUSPICION = {State.ADMITTING: 0, State.PROBING: 0, State.UNKNOWN: 1, State.SUSPECT: 2, State.EJECTED: 3}
"""Order of use: the least suspicion first. `probing` ranks with the well ones, but for one request only. An
endpoint that probes have ejected is suspected one more than one that still answers them."""

LAST_RESORT = SUSPICION[State.EJECTED]
"""Used only when nothing better passes the fences."""

_MAX_EJECTION_FACTOR: Final = 8
_MOST_JITTER: Final = 0.25
_LEAST_SHARE: Final = 0.1
_ASK_AGAIN_S: Final = 1.0
"""How long a refusal by the fleet holds: in an overload every answer would ask all endpoints anew."""

MayEject = Callable[[float, bool], bool]
"""(now_s, is_for_fullness) -> may traffic eject this endpoint, as far as the rest of the fleet is concerned?"""


@dataclass(frozen=True, slots=True)
class HealthMarks:
    """Thresholds. Counts are consecutive; shares are 0..1; a 0 switches off what `min_success`, `kept_capacity`,
    `stall_s` and `slow_start_s` are for. `window_s` is how long a success outranks failed probes."""

    fall: int = 3
    rise: int = 2
    passive_fall: int = 3
    ejection_s: float = 10.0
    window_s: float = 6.0
    min_success: float = 0.5
    ratio_samples: int = 20
    ratio_window_s: float = 30.0
    kept_capacity: float = 0.5
    stall_s: float = 10.0
    slow_start_s: float = 30.0


class HealthMachine:
    """One endpoint's health. Every method that takes `now_s` returns True when there is news for others: another
    state, or another cause of the same one."""

    __slots__ = (
        "_denied_until_s", "_dice", "_factor", "_is_new", "_marks", "_may_eject", "_out_s", "_returned_s",
        "_still_until_s", "cause", "failed_probes", "failed_requests", "good_probes", "last_success_s", "reason",
        "recent", "share", "state", "until_s",
    )  # fmt: skip

    def __init__(
        self,
        marks: HealthMarks,
        dice: Random | None = None,
        may_eject: MayEject = lambda _now_s, _is_for_fullness: True,
        *,
        is_new: bool = False,
    ) -> None:
        """Without `dice` ejections last exactly as long as the marks say. `is_new`: added by a reload."""
        self._marks = marks
        self._dice = dice
        self._may_eject = may_eject
        self._is_new = is_new
        self.state = State.UNKNOWN
        self.reason = "no probe yet"
        self.cause: Cause | None = None
        self.good_probes = 0
        self.failed_probes = 0
        self.failed_requests = 0
        self.last_success_s = float("-inf")
        self.until_s = 0.0
        self.share = 1.0
        self.recent = RecentEnds(marks.ratio_window_s)
        self._factor = 1
        self._denied_until_s = [float("-inf"), float("-inf")]
        self._out_s = 0.0
        self._returned_s = self._still_until_s = float("-inf")

    def set_marks(self, marks: HealthMarks) -> None:
        """New thresholds after a reload; the state stays."""
        if marks.ratio_window_s != self._marks.ratio_window_s:
            self.recent = RecentEnds(marks.ratio_window_s)
        self._marks = marks

    @property
    def suspicion(self) -> int:
        """How much it is suspected: the order of use, least first (see SUSPICION)."""
        return SUSPICION[self.state] + (self.state is State.EJECTED and self.cause is Cause.PROBES)

    # --- probes -----------------------------------------------------------------------------------

    def probe_passed(self, now_s: float) -> bool:
        """A probe came back good."""
        self.good_probes += 1
        self.failed_probes = 0
        if self.state is State.EJECTED:
            if self.cause is not Cause.PROBES:
                return self.tick(now_s)
            return self.good_probes >= self._marks.rise and self._admit(now_s, "probes pass")
        if self.state is State.UNKNOWN or (self.state is State.SUSPECT and not self._is_kept(now_s)):
            return self._admit(now_s, "probe passed")
        return False

    def probe_failed(self, now_s: float, why: str, is_refused: bool = False) -> bool:
        """A probe failed or timed out; `why` is shown to operators. `is_refused`: there was no connection."""
        self.good_probes = 0
        self.failed_probes += 1
        if self.failed_probes < self._marks.fall:
            return False
        is_busy = not is_refused and now_s - self.last_success_s <= self._marks.window_s
        if is_busy and self.state is not State.EJECTED:
            # Busy is not dead (FC-20): tokens flow, so the probe is slow, not the engine gone.
            return not self._is_kept(now_s) and self._move(State.SUSPECT, f"probe: {why}, but requests succeed")
        return self._move(State.EJECTED, f"probe: {why}", Cause.PROBES)

    # --- traffic ----------------------------------------------------------------------------------

    def observe(self, outcome: Outcome, now_s: float, why: str = "", count: int = 1) -> bool:
        """Take in how one attempt ended, or `count` that ended alike."""
        if outcome is Outcome.NEUTRAL:
            return False
        if outcome is Outcome.SUCCESS:
            self.failed_requests = 0
            self.last_success_s = max(self.last_success_s, now_s)
        if self.state is State.EJECTED:
            return False  # old streams may still end, well or not: no proof for new ones
        if outcome is Outcome.SUCCESS:
            self.recent.add(now_s, good=count)
            if self.state is State.ADMITTING:
                return False
            return not self._is_kept(now_s) and self._admit(now_s, "request succeeded")
        if outcome is Outcome.FULL:
            self.recent.add(now_s, full=count)
            if self.state is State.PROBING:
                return self._eject(now_s, Cause.TRAFFIC, "the trial request was answered 429", grows=False)
            return self._judge_ratio(now_s)
        self.recent.add(now_s, bad=count)
        self.failed_requests += count
        if self.state is State.PROBING:
            return self._eject(now_s, Cause.TRAFFIC, f"requests: the trial failed: {why}")
        if self.failed_requests >= self._marks.passive_fall:
            text = f"requests: {self.failed_requests} in a row failed, the last: {why}"
            return self._condemn(now_s, Cause.TRAFFIC, text)
        if self._judge_ratio(now_s):
            return True
        if outcome is Outcome.BROKEN and self.state is State.ADMITTING:
            return self._move(State.SUSPECT, f"requests: {why}")
        return False

    def suspect(self, why: str) -> bool:
        """Another endpoint's illness makes this one doubtful, if it is in use without a doubt."""
        return self.state is State.ADMITTING and self._move(State.SUSPECT, why)

    def _judge_ratio(self, now_s: float) -> bool:
        least = self._marks.min_success
        ends = self.recent.within(now_s)
        if ends.total < self._marks.ratio_samples or ends.good >= least * ends.total:
            return False
        answered = Ends(ends.good, ends.bad)
        is_ill = answered.total >= self._marks.ratio_samples and answered.good < least * answered.total
        turned_away = f", {ends.full} were answered 429" if ends.full else ""
        text = f"requests: only {ends.good} of the last {ends.total} were served{turned_away}"
        return self._condemn(now_s, Cause.TRAFFIC, text, is_for_fullness=not is_ill)

    # --- forward progress -------------------------------------------------------------------------

    def stalled(self, now_s: float, why: str) -> bool:
        """Requests run, but its token counters have stood still for too long."""
        self._still_until_s = now_s + self._marks.stall_s
        if self.state is State.EJECTED:
            return self.cause is Cause.TRAFFIC and self._move(State.EJECTED, why, Cause.PROGRESS)
        if self.state is State.PROBING:
            return self._eject(now_s, Cause.PROGRESS, why)
        return self._condemn(now_s, Cause.PROGRESS, why)

    def moved(self, now_s: float) -> bool:
        """Its token counters have risen."""
        self._still_until_s = now_s
        return self.cause is Cause.PROGRESS and self._admit(now_s, "its token counters move again")

    def idled(self, now_s: float) -> None:
        """Nothing runs there: nothing can stand still."""
        self._still_until_s = now_s

    # --- time -------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> bool:
        """Let time pass: `share` grows, and an ejection by traffic or progress that is served becomes a trial."""
        if self.share < 1.0:
            since_s, whole_s = now_s - self._returned_s, self._marks.slow_start_s
            self.share = max(_LEAST_SHARE, since_s / whole_s) if since_s < whole_s else 1.0
        is_served = self.cause is not Cause.PROBES and now_s >= max(self.until_s, self._still_until_s)
        if self.state is State.EJECTED and is_served:
            return self._move(State.PROBING, "trial after ejection")
        return False

    # --- moves ------------------------------------------------------------------------------------

    def _is_kept(self, now_s: float) -> bool:
        """Condemned, but kept in use for the sake of capacity, and its time not served."""
        return self.state is State.SUSPECT and self.cause is not None and now_s < self.until_s

    def _condemn(self, now_s: float, cause: Cause, why: str, *, is_for_fullness: bool = False) -> bool:
        """Eject it if the fleet can bear that; else suspect it, unless it is only full."""
        if now_s >= self._denied_until_s[is_for_fullness]:
            if self._may_eject(now_s, is_for_fullness):
                return self._eject(now_s, cause, why)
            self._denied_until_s[is_for_fullness] = now_s + _ASK_AGAIN_S
        if is_for_fullness:
            return False
        self.until_s = now_s + self._marks.ejection_s
        return self._move(State.SUSPECT, f"{why}; still used: the rest would be too little capacity", cause)

    def _eject(self, now_s: float, cause: Cause, why: str, *, grows: bool = True) -> bool:
        if self.state is not State.PROBING and now_s - self._returned_s > self._out_s:
            self._factor = 1
        elif grows:
            self._factor = min(self._factor * 2, _MAX_EJECTION_FACTOR)
        jitter = 1.0 if self._dice is None else 1.0 + _MOST_JITTER * self._dice.random()
        self._out_s = self._marks.ejection_s * self._factor * jitter
        self.until_s = now_s + self._out_s
        return self._move(State.EJECTED, why, cause)

    def _admit(self, now_s: float, reason: str) -> bool:
        if self.state in (State.EJECTED, State.PROBING) or (self._is_new and self.state is State.UNKNOWN):
            self._returned_s = now_s
            self.share = _LEAST_SHARE if self._marks.slow_start_s else 1.0
        self._is_new = False
        return self._move(State.ADMITTING, reason)

    def _move(self, state: State, reason: str, cause: Cause | None = None) -> bool:
        is_news = (state, cause) != (self.state, self.cause)
        if is_news:
            self.good_probes = 0
        if state is State.EJECTED:
            self.failed_requests = 0
            self.recent.clear()
        self.state = state
        self.cause = cause
        self.reason = reason
        return is_news
