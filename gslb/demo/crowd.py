"""The crowd: people of many countries who ask at random moments, some impatient, a few against the law."""

from __future__ import annotations

import asyncio
from random import Random

from gslb.demo.clients import Client, Question
from gslb.demo.story import Phase
from gslb.demo.tally import Tally
from gslb.demo.world import COUNTRIES, MODEL, RESIDENT

MOST_OPEN = 60
"""Requests open at once; who comes on top does not ask. One endpoint of Frankfurt has more slots than that, so no
machine is too slow for the promise that nobody is turned away, whichever other region dies."""

_MOST_OPEN_LATE = 24
_LATE_S = 0.1
"""While the event loop is this late only so many may be open: the demo shows where requests go, not how many this
machine can take, and probes have to get their turn. Still more than Singapore has slots."""

PINNED_REGION = "virginia"
_PINNED_EVERY = 15
"""Of the residents' requests every so many insists on a region outside their law."""
_LEAVING_SHARE = 0.04

_TOPICS = (
    "why the sea is salt", "how to bake bread at altitude", "what a load balancer does", "a poem about rain",
    "three ways to sort a list", "the history of tea", "how a bicycle stays upright", "a plan for a small garden",
    "the rules of chess", "how vaccines are tested", "what makes a good map", "a letter to a landlord",
)  # fmt: skip
_MANNERS = (
    "Explain briefly", "Write a few sentences on", "Summarise for a child", "Give me an outline of",
    "Compare two views on", "Tell me what most people get wrong about",
)  # fmt: skip
_CONTEXT = "Keep to what is known, say what is not, and do not repeat the question in your answer. "


class Crowd:
    """Asks as its `phase` says (None: nobody asks). Arrivals are Poisson: exponential gaps, countries by rate."""

    def __init__(self, client: Client, tally: Tally, dice: Random) -> None:
        self.phase: Phase | None = None
        self._client = client
        self._tally = tally
        self._dice = dice
        self._open: set[asyncio.Task[None]] = set()
        self._residents_asked = 0

    @property
    def open(self) -> int:
        """Requests under way."""
        return len(self._open)

    async def ask_on(self) -> None:
        """Ask until cancelled. What is under way then goes on: `finish` or `leave` it."""
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        while True:
            rates_per_s = [0.0] if self.phase is None else self.phase.rates_per_s()
            total_per_s = sum(rates_per_s) or 1.0
            # From the time it was due, not from now: timers that fire late must not thin the crowd out.
            next_s += self._dice.expovariate(total_per_s)
            await asyncio.sleep(max(0.0, next_s - loop.time()))
            most_open = _MOST_OPEN_LATE if loop.time() - next_s > _LATE_S else MOST_OPEN
            if self.phase is not None and len(self._open) < most_open:
                task = loop.create_task(self._ask(self._question(rates_per_s)))
                self._open.add(task)
                task.add_done_callback(self._open.discard)

    async def finish(self) -> None:
        """Wait for every answer that is under way; each has its time limit."""
        while self._open:
            await asyncio.wait(set(self._open))

    async def leave(self) -> None:
        """Hang up on every answer under way; these are not counted."""
        leaving = set(self._open)
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        self._client.close()

    async def _ask(self, question: Question) -> None:
        answer = await self._client.ask(question)
        self._tally.record(question.country, answer, must_be_fenced=question.region is not None)

    def _question(self, rates_per_s: list[float]) -> Question:
        dice = self._dice
        country = dice.choices(COUNTRIES, rates_per_s)[0]
        region = None
        if country.code in RESIDENT:
            self._residents_asked += 1
            if self._residents_asked % _PINNED_EVERY == 0:
                region = PINNED_REGION
        return Question(
            country=country.code,
            address=country.address(dice.randrange(1 << 16)),
            model=MODEL,
            prompt=f"{_CONTEXT * dice.randint(1, 8)}{dice.choice(_MANNERS)} {dice.choice(_TOPICS)}.",
            max_tokens=dice.randint(10, 32),
            leaves_after=dice.randint(2, 8) if dice.random() < _LEAVING_SHARE else None,
            region=region,
        )
