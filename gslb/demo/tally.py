"""Counting what became of the clients' requests, by what the clients themselves saw."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Outcome(StrEnum):
    """What became of one request, as its client saw it."""

    OK = "ok"
    FENCED = "fenced"
    """Refused by the residency rule, as it had to be."""
    ABORTED = "aborted"
    """The client left on purpose."""
    CUT = "cut"
    """The answer broke off after its first content."""
    FAILED = "failed"
    """No content, or content that a fence should have stopped."""


@dataclass(slots=True)
class Answer:
    """What came back for one request. Times in seconds since the demo began; `region` as the edge told it.

    `is_whole`: the stream came to its proper end. `has_left`: the client hung up on purpose. `problem` is the
    error's code, or a word for what broke.
    """

    sent_s: float
    first_content_s: float | None = None
    ended_s: float = 0.0
    status: int = 0
    region: str = ""
    is_whole: bool = False
    has_left: bool = False
    problem: str = ""


def judge(answer: Answer, must_be_fenced: bool) -> Outcome:
    """The outcome of a request; `must_be_fenced` when it insists on a region that the law closes to it."""
    if must_be_fenced:
        is_refused = answer.status == 403 and answer.problem == "residency_denied"
        return Outcome.FENCED if is_refused else Outcome.FAILED
    if answer.has_left:
        return Outcome.ABORTED
    if answer.first_content_s is None:
        return Outcome.FAILED
    return Outcome.OK if answer.is_whole else Outcome.CUT


@dataclass(slots=True)
class Outage:
    """The death of one region. Times in seconds since the demo began; `recovered_s` counts from `ended_s` to
    the first content that the region sent after it."""

    region: str
    started_s: float | None = None
    ended_s: float | None = None
    failed_before_first_byte: int = 0
    cut_streams: int = 0
    recovered_s: float | None = None


@dataclass(slots=True)
class Tally:
    """Counts of all requests that have ended. `homes` (country -> region) is the router's own word.

    `flows` counts requests with content by (country, region), `asked` all requests by country, `ttfts`
    lists (seconds since the demo began, milliseconds to the first content).
    """

    homes: Mapping[str, str]
    outage: Outage
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    problems: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    flows: Counter[tuple[str, str]] = field(default_factory=Counter)
    ttfts: list[tuple[float, float]] = field(default_factory=list)

    def record(self, country: str, answer: Answer, must_be_fenced: bool = False) -> Outcome:
        """Count one request that has ended."""
        outcome = judge(answer, must_be_fenced)
        self.outcomes[outcome] += 1
        self.asked[country] += 1
        if outcome is Outcome.FAILED:
            self.problems[answer.problem or "content across a fence"] += 1
        if answer.first_content_s is not None:
            self.flows[country, answer.region] += 1
            self.ttfts.append((answer.first_content_s, (answer.first_content_s - answer.sent_s) * 1000))
        self._record_outage(answer, outcome)
        return outcome

    def _record_outage(self, answer: Answer, outcome: Outcome) -> None:
        outage = self.outage
        if outage.started_s is None or answer.ended_s < outage.started_s:
            return
        if outcome is Outcome.CUT and answer.region == outage.region:
            outage.cut_streams += 1
        if outage.ended_s is None or answer.sent_s <= outage.ended_s:
            outage.failed_before_first_byte += outcome is Outcome.FAILED
        if outage.ended_s is None or answer.first_content_s is None or answer.region != outage.region:
            return
        after_s = answer.first_content_s - outage.ended_s
        if after_s >= 0 and (outage.recovered_s is None or after_s < outage.recovered_s):
            outage.recovered_s = after_s

    @property
    def requests(self) -> int:
        """How many requests have ended."""
        return self.outcomes.total()

    @property
    def spilled(self) -> int:
        """Requests with content from another region than their home."""
        return sum(count for (country, region), count in self.flows.items() if region != self.homes[country])

    def served_by(self, region: str) -> tuple[int, int]:
        """(all, spilled in) requests with content from `region`."""
        here = [(country, count) for (country, by), count in self.flows.items() if by == region]
        return sum(count for _, count in here), sum(count for code, count in here if self.homes[code] != region)

    def ttft_ms(self, quantile: float, since_s: float = 0.0) -> float | None:
        """That quantile (0..1) of the times to first content from `since_s` on, in ms; None without any."""
        return nearest_rank(sorted(ms for at_s, ms in self.ttfts if at_s >= since_s), quantile)


def nearest_rank(ordered: Sequence[float], quantile: float) -> float | None:
    """The smallest value that at least `quantile` (0..1) of `ordered` values do not exceed; None of none."""
    return ordered[max(0, math.ceil(quantile * len(ordered)) - 1)] if ordered else None
