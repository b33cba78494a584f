"""A recorded trace replayed at the rate that is wanted, with people made up to send it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import accumulate
from math import ceil, inf
from random import Random

from gslb.sim.clients import Client, Crowd, point_of
from gslb.sim.setting import Ask
from gslb.sim.traces import Row

OpenRows = Callable[[], Iterator[Row]]
"""Starts reading a trace from its beginning."""

_SAME_TICK_S = 0.01
_LEAST_TICK_S = 0.5
_SAMPLED = 4000
_MOST_COPIES = 500
_COPY = 1 << 44


@dataclass(frozen=True, slots=True)
class Survey:
    """What one look at a whole trace tells. `tick_s` is how coarse its times are: 0 when they are fine, else the
    least step between two of them. `lengths` are (prompt, output) tokens of some rows, each as likely as any."""

    count: int
    span_s: float
    tick_s: float
    lengths: Sequence[tuple[int, int]]

    @property
    def rate_per_s(self) -> float:
        """Mean requests per second."""
        return self.count / self.span_s


def survey(rows: Iterable[Row]) -> Survey:
    """Look at every row once, in memory that does not grow with them. Raises ValueError when all have one time.

    Times are coarse when no two that differ (by more than 10 ms) are closer than half a second: Mooncake's
    conversations come in steps of 3 s, BurstGPT's in steps of 1 s.
    """
    dice = Random(0)
    lengths: list[tuple[int, int]] = []
    count, last_s, least_gap_s = 0, 0.0, inf
    for row in rows:
        gap_s = row.at_s - last_s
        if gap_s > _SAME_TICK_S:
            least_gap_s = min(least_gap_s, gap_s)
        last_s = row.at_s
        count += 1
        if len(lengths) < _SAMPLED:
            lengths.append((row.prompt_tokens, row.output_tokens))
        elif (place := int(dice.random() * count)) < _SAMPLED:
            lengths[place] = row.prompt_tokens, row.output_tokens
    if not last_s:
        raise ValueError("all requests of the trace have the same time: nothing tells how fast they came")
    tick_s = least_gap_s if _LEAST_TICK_S <= least_gap_s < inf else 0.0
    return Survey(count, last_s + tick_s, tick_s, lengths)


def spread(rows: Iterable[Row], tick_s: float) -> Iterator[Row]:
    """Rows that share a tick of `tick_s` laid out over it at random, always in the same way, in order of time.

    Without that every replay would show bursts that nobody ever sent.
    """
    if not tick_s:
        yield from rows
        return
    dice = Random(0)
    held: list[Row] = []
    for row in rows:
        if held and row.at_s - held[0].at_s > _SAME_TICK_S:
            yield from _laid_out(held, tick_s, dice)
            held = []
        held.append(row)
    yield from _laid_out(held, tick_s, dice)


def _laid_out(held: Sequence[Row], tick_s: float, dice: Random) -> Sequence[Row]:
    start_s = held[0].at_s if held else 0.0
    for row, offset_s in zip(held, sorted(dice.random() * tick_s for _ in held), strict=True):
        row.at_s = start_s + offset_s
    return held


@dataclass(frozen=True, slots=True)
class Replay:
    """How a trace is replayed: at `rate_per_s` for `duration_s`, from a point that the dice choose, and on at its
    beginning when its end is reached. `is_superposed`: by copies laid over each other, not by faster time."""

    open_rows: OpenRows
    survey: Survey
    rate_per_s: float
    duration_s: float
    budget_ms: float
    is_superposed: bool = False

    @property
    def factor(self) -> float:
        """How many times as much is asked as in the trace."""
        return self.rate_per_s / self.survey.rate_per_s

    @property
    def longest_s(self) -> float:
        """After this the trace has been used up."""
        return self.survey.span_s if self.is_superposed else self.survey.span_s / self.factor


def replayed(replay: Replay, crowds: Sequence[Crowd], dice: Random) -> Iterator[Ask]:
    """The requests of one run. Raises ValueError when superposing would take more than 500 copies."""
    people = _People([client for crowd in crowds for client in crowd.clients], dice.getrandbits(64))
    if not replay.is_superposed:
        rows = _from(replay, dice.random() * replay.survey.span_s, replay.factor)
        return _asks(rows, replay, people, 0)
    copies = max(1, ceil(replay.factor))
    if copies > _MOST_COPIES:
        raise ValueError(f"{copies} copies of the trace are needed for this rate: use `scale: compress`")
    share, salt = replay.factor / copies, dice.getrandbits(64)
    starts = [dice.random() * replay.survey.span_s for _ in range(copies)]
    streams = [
        _asks(_thinned(_from(replay, start_s, 1.0), share, salt + copy), replay, people, copy)
        for copy, start_s in enumerate(starts)
    ]
    return merge(*streams, key=lambda ask: ask.at_s)


def _from(replay: Replay, start_s: float, factor: float) -> Iterator[tuple[float, Row]]:
    """(seconds of the run, row) from `start_s` of the trace on and around, `factor` times as fast."""
    span_s = replay.survey.span_s
    for turn_s in (-start_s, span_s - start_s):
        for row in spread(replay.open_rows(), replay.survey.tick_s):
            at_s = (row.at_s + turn_s) / factor
            if at_s >= replay.duration_s or at_s * factor >= span_s:
                return
            if at_s >= 0:
                yield at_s, row


def _thinned(rows: Iterator[tuple[float, Row]], share: float, salt: int) -> Iterator[tuple[float, Row]]:
    """About `share` of the rows: whole conversations where they are known."""
    for number, (at_s, row) in enumerate(rows):
        if point_of(number if row.client is None else row.client, salt) < share:
            yield at_s, row


def _asks(rows: Iterator[tuple[float, Row]], replay: Replay, people: _People, copy: int) -> Iterator[Ask]:
    """`copy` keeps apart what two copies of a row must not share: prefixes and conversations."""
    apart = copy * _COPY
    for number, (at_s, row) in enumerate(rows):
        client = people.of((number if row.client is None else row.client) + apart)
        blocks = tuple(block + apart for block in row.blocks) if apart else row.blocks
        session = None if row.session is None else row.session + apart
        yield Ask(
            at_s, client.place, client.edge, row.prompt_tokens, row.output_tokens, replay.budget_ms, blocks,
            row.block_tokens, session,
        )  # fmt: skip


class _People:
    """Gives every conversation a client of its own, by shares, and always the same one."""

    def __init__(self, clients: Sequence[Client], salt: int) -> None:
        self._clients = clients
        self._salt = salt
        self._cumulative = list(accumulate(client.share for client in clients))

    def of(self, number: int) -> Client:
        """The client of conversation `number`."""
        point = point_of(number, self._salt) * self._cumulative[-1]
        return self._clients[min(bisect_left(self._cumulative, point), len(self._clients) - 1)]
