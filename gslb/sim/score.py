"""What became of every request, counted as it ends: by home and served region, by reason, by second."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from gslb.sim.journey import Attempt, Journey
from gslb.sim.result import Moment, Tally

_NOWHERE: Final = ""
"""Stands for the served region of what nobody served."""


class Score:
    """Counts of one run. Only what came after the warm-up counts, but for the timeline, which shows all."""

    def __init__(self) -> None:
        self._tallies: dict[tuple[str, str], Tally] = {}
        self.reasons: Counter[str] = Counter()
        self.timeline: list[Moment] = []
        self.moment = Moment(0)
        self._open: set[Journey] = set()
        """What counts and has not ended."""

    def offered(self, journey: Journey) -> None:
        """A client has sent its request."""
        self.moment.offered += 1
        if journey.is_counted:
            self._open.add(journey)
            self._tally(journey.home).offered += 1

    def completed(self, attempt: Attempt, now_s: float) -> None:
        """A whole answer has passed the edge at `now_s`, its first token at `attempt.first_s`."""
        journey = attempt.journey
        ask = journey.ask
        moment = self.moment
        moment.completed += 1
        assert attempt.first_s is not None
        ttft_ms = (attempt.first_s + journey.client_s - ask.at_s) * 1000
        is_good = ttft_ms <= ask.budget_ms
        moment.good += is_good
        if not journey.is_counted:
            return
        self._open.discard(journey)
        home, served = journey.home, attempt.site.region
        tally = self._tallies.get((home, served)) or self._tally(home, served)
        tally.completed += 1
        tally.good += is_good
        tally.spilled += served != home
        tally.crossed += served != journey.edge.home_region
        tally.attempts += journey.attempts
        tally.prompt_tokens += ask.prompt_tokens
        tally.output_tokens += ask.output_tokens
        tally.cached_tokens += attempt.cached_tokens
        tally.ttft.add(ttft_ms)
        tally.end_to_end.add((now_s + journey.client_s - ask.at_s) * 1000)
        if attempt.predicted_ms is not None:
            measured_ms = (attempt.first_s - attempt.sent_s) * 1000
            tally.prediction_error.add(abs(attempt.predicted_ms / measured_ms - 1) * 1000)
        if journey.held_s:
            self._count_held(journey, tally)
        self.reasons[attempt.reason] += 1

    def shed(self, journey: Journey, reason: str) -> None:
        """An edge refused it."""
        self.moment.shed += 1
        if (tally := self._ended_unserved(journey, reason)) is not None:
            tally.shed += 1

    def failed(self, journey: Journey, reason: str) -> None:
        """It got no whole answer."""
        self.moment.failed += 1
        if (tally := self._ended_unserved(journey, reason)) is not None:
            tally.failed += 1

    def _ended_unserved(self, journey: Journey, reason: str) -> Tally | None:
        """Count what refused and failed requests have in common; None when this one came in the warm-up."""
        if not journey.is_counted:
            return None
        self._open.discard(journey)
        tally = self._tally(journey.home)
        tally.attempts += journey.attempts
        self._count_held(journey, tally)
        self.reasons[reason] += 1
        return tally

    def close_second(self, held_now: int, running: dict[str, int]) -> None:
        """The second is over: what is held and runs now."""
        self.moment.held_now = held_now
        self.moment.running = running
        self.timeline.append(self.moment)
        self.moment = Moment(self.moment.at_s + 1)

    def close(self, now_s: float) -> None:
        """The run is over. What is still under way has missed its budget, or may yet meet it."""
        for journey in self._open:
            ttft_s = min(journey.first_s, now_s) + journey.client_s - journey.ask.at_s
            if ttft_s * 1000 > journey.ask.budget_ms:
                self._tally(journey.home).overdue += 1
        self._open.clear()

    # --- sums --------------------------------------------------------------------------------------

    def total(self) -> Tally:
        """Everything; what has not ended is `unfinished`."""
        total = _sum(self._tallies.values())
        total.unfinished = total.unended
        return total

    def by_home(self, regions: Iterable[str]) -> dict[str, Tally]:
        """By the region nearest to the client."""
        sums = {name: _sum(t for (home, _), t in self._tallies.items() if home == name) for name in regions}
        for tally in sums.values():
            tally.unfinished = tally.unended
        return sums

    def by_served(self, regions: Iterable[str]) -> dict[str, Tally]:
        """By the region that answered; these count as offered there."""
        sums = {name: _sum(t for (_, served), t in self._tallies.items() if served == name) for name in regions}
        for tally in sums.values():
            tally.offered = tally.completed
        return sums

    def flows(self) -> Counter[tuple[str, str]]:
        """(home, served) -> completed."""
        return Counter({pair: tally.completed for pair, tally in self._tallies.items() if pair[1] != _NOWHERE})

    def _tally(self, home: str, served: str = _NOWHERE) -> Tally:
        tally = self._tallies.get((home, served))
        if tally is None:
            tally = self._tallies[home, served] = Tally()
        return tally

    @staticmethod
    def _count_held(journey: Journey, tally: Tally) -> None:
        if journey.held_s:
            tally.held += 1
            tally.held_time.add(journey.held_s * 1000)


def _sum(tallies: Iterable[Tally]) -> Tally:
    total = Tally()
    for tally in tallies:
        total.merge(tally)
    return total
