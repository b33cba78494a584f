"""When who asks for how much: Poisson, bursts, and conversations whose prompts grow.

Every process is a generator of `Ask` in order of time that holds no more than what is under way. Chance is given
by dice; equal dice, equal asks. Rates follow the crowds: how much each edge's clients ask changes from phase to
phase (`sim.clients`), and a process crosses the border of two phases without a seam, since it is run on a clock
that counts expected arrivals instead of seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from heapq import heappop, heappush, merge
from random import Random
from typing import Final

from gslb.sim.clients import Client, Crowd, Phase
from gslb.sim.lengths import Lengths, Lognormal
from gslb.sim.setting import Ask
from gslb.types import UNKNOWN_PLACE

Gaps = Callable[[Random], float]
"""Draws the gap between two arrivals, 1 on average."""

_LEAD_SPANS: Final = 6.0
"""Conversations begin so many mean spans before the run, so that it starts in the middle of things..."""
_RAMP_SPANS: Final = 1.0
"""...and come in one after another for so long: all at once would find every cache cold, and not recover."""
_SAMPLED: Final = 3000
_MOST_BLOCKS = 1 << 20
_MOST_CONVERSATIONS = 1 << 40


def poisson_gaps(dice: Random) -> float:
    """Arrivals that know nothing of each other."""
    return dice.expovariate(1.0)


def gamma_gaps(cv: float) -> Gaps:
    """Arrivals in bursts when `cv`, the coefficient of variation of the gaps, is above 1 (1: Poisson)."""
    shape = 1.0 / (cv * cv)

    def draw(dice: Random) -> float:
        return dice.gammavariate(shape, 1.0 / shape)

    return draw


@dataclass(frozen=True, slots=True)
class Demand:
    """What all processes share. `rate_per_s` is of all crowds together, on average."""

    crowds: Sequence[Crowd]
    rate_per_s: float
    duration_s: float
    budget_ms: float


def singles(demand: Demand, lengths: Lengths, gaps: Gaps, dice: Random) -> Iterator[Ask]:
    """Requests that have nothing to do with each other; each crowd is a process of its own."""
    streams = [_singles_of(crowd, demand, lengths, gaps, Random(dice.getrandbits(64))) for crowd in demand.crowds]
    return merge(*streams, key=_at_s)


def _singles_of(crowd: Crowd, demand: Demand, lengths: Lengths, gaps: Gaps, dice: Random) -> Iterator[Ask]:
    for at_s, phase in arrivals(crowd, 0.0, demand.duration_s, demand.rate_per_s, gaps, dice):
        client = crowd.pick(phase, dice.random())
        prompt, output = lengths(dice)
        yield Ask(at_s, client.place, crowd.edge, prompt, output, demand.budget_ms)


def arrivals(
    crowd: Crowd, start_s: float, end_s: float, rate_per_s: float, gaps: Gaps, dice: Random
) -> Iterator[tuple[float, Phase]]:
    """Times at which somebody of `crowd` asks, and the phase it is in. `rate_per_s` is that of all crowds."""
    at_s, wait = start_s, gaps(dice)
    for phase in crowd.phases(start_s, end_s):
        rate = rate_per_s * phase.share
        while rate > 0 and at_s + wait / rate < phase.until_s:
            at_s += wait / rate
            yield at_s, phase
            wait = gaps(dice)
        wait -= (phase.until_s - at_s) * rate
        at_s = phase.until_s


def _at_s(ask: Ask) -> float:
    return ask.at_s


@dataclass(frozen=True, slots=True)
class Talk:
    """What conversations are like. Every prompt is what was said before (one of `systems` system prompts of
    `system_tokens`, then all questions and answers) and the next question; the first one brings `opening` tokens
    of its own. After an answer, which takes `token_s` a token, its reader thinks for `think_s` on average
    (exponential); a conversation has `turns` on average (geometric) and ends before it outgrows `most_tokens`."""

    question: Lognormal
    answer: Lognormal
    turns: float
    think_s: float
    opening: Lognormal | None = None
    systems: int = 1
    system_tokens: int = 0
    most_tokens: int = 32_768
    block_tokens: int = 128
    token_s: float = 0.04

    @property
    def span_s(self) -> float:
        """How long a conversation lasts, about."""
        return self.turns * (self.think_s + self.answer.mean * self.token_s)


_Due = tuple[float, int, Ask, Iterator[Ask]]
"""A conversation's next turn: when, its number, the request, and all after it."""


def conversations(demand: Demand, talk: Talk, dice: Random) -> Iterator[Ask]:
    """Requests of conversations. Some are in the middle of theirs when the run begins; they come in during its
    first `talk.span_s`, in which the rate grows to `rate_per_s`."""
    mean_turns = len(typical_lengths(talk)) / _SAMPLED
    count = len(demand.crowds)
    streams = [
        _conversations_of(crowd, range(index, _MOST_CONVERSATIONS, count), mean_turns, demand, talk, Random(seed))
        for index, (crowd, seed) in enumerate((crowd, dice.getrandbits(64)) for crowd in demand.crowds)
    ]
    return merge(*streams, key=_at_s)


def _conversations_of(
    crowd: Crowd, numbers: range, mean_turns: float, demand: Demand, talk: Talk, dice: Random
) -> Iterator[Ask]:
    due: list[_Due] = []
    start_s, end_s = -_LEAD_SPANS * talk.span_s, demand.duration_s
    starts = arrivals(crowd, start_s, end_s, demand.rate_per_s / mean_turns, poisson_gaps, dice)
    for number, (at_s, phase) in zip(numbers, starts, strict=False):
        yield from _turns_until(at_s, due)
        client = crowd.pick(phase, dice.random())
        turns = _turns(number, client, at_s, demand.budget_ms, talk, dice)
        if at_s < 0:
            turns = _joining(turns, dice.random() * _RAMP_SPANS * talk.span_s)
        _schedule(turns, number, due)
    yield from _turns_until(end_s, due)


def _joining(turns: Iterator[Ask], from_s: float) -> Iterator[Ask]:
    """The turns of a conversation that is seen only from `from_s` on."""
    return (ask for ask in turns if ask.at_s >= from_s)


def _schedule(turns: Iterator[Ask], number: int, due: list[_Due]) -> None:
    """Put in the next turn of a conversation, if it has one."""
    ask = next(turns, None)
    if ask is not None:
        heappush(due, (ask.at_s, number, ask, turns))


def _turns_until(end_s: float, due: list[_Due]) -> Iterator[Ask]:
    """What falls due before `end_s`, in order."""
    while due and due[0][0] < end_s:
        _, number, ask, turns = heappop(due)
        yield ask
        _schedule(turns, number, due)


def _turns(number: int, client: Client, at_s: float, budget_ms: float, talk: Talk, dice: Random) -> Iterator[Ask]:
    """The requests of one conversation, at least one."""
    system = int(dice.random() * talk.systems)
    said = talk.system_tokens + (talk.opening.draw(dice) if talk.opening is not None else 0)
    blocks: tuple[int, ...] = ()
    while True:
        prompt = min(said + talk.question.draw(dice), talk.most_tokens)
        answer = talk.answer.draw(dice)
        blocks = _longer(blocks, number, system, prompt, talk)
        said = prompt + answer
        # The last token of an answer is in no engine's memory: nothing was computed from it.
        spoken = _longer(blocks, number, system, said - 1, talk)
        yield Ask(
            at_s, client.place, client.edge, prompt, answer, budget_ms, blocks, talk.block_tokens, session=number,
            answer_blocks=spoken[len(blocks) :],
        )  # fmt: skip
        blocks = spoken
        if said >= talk.most_tokens or dice.random() * talk.turns < 1.0:
            return
        at_s += answer * talk.token_s + dice.expovariate(1.0) * talk.think_s


def _longer(blocks: tuple[int, ...], number: int, system: int, prompt_tokens: int, talk: Talk) -> tuple[int, ...]:
    """`blocks` continued to all whole blocks of a prompt. Those of the system prompt are the same in every
    conversation that has it, the others are this one's alone."""
    shared = talk.system_tokens // talk.block_tokens
    added = range(len(blocks), prompt_tokens // talk.block_tokens)
    return blocks + tuple(
        -1 - system * _MOST_BLOCKS - index if index < shared else number * _MOST_BLOCKS + index for index in added
    )


@cache
def typical_lengths(talk: Talk) -> Sequence[tuple[int, int]]:
    """(prompt, output) tokens of the requests of some conversations, always the same ones, for reckoning a fleet's
    capacity and how many requests a conversation has."""
    dice = Random(0)
    nobody = Client(UNKNOWN_PLACE, "", 1.0)
    whole = replace(talk, block_tokens=talk.most_tokens + 1)  # no blocks: nobody looks at them
    talks = (_turns(number, nobody, 0.0, 0.0, whole, dice) for number in range(_SAMPLED))
    return [(ask.prompt_tokens, ask.output_tokens) for turns in talks for ask in turns]
