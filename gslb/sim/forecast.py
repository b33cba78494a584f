"""When the first token of a request would be made at an engine whose true state is known. For the oracle only.

It looks at everything that counts (the step under way, slots, memory, prompts ahead, true output lengths) and
simplifies three things: nobody else comes in between, the batch stays as large as it is while the queue before the
request is worked off, and prompts that are admitted at different moments are not computed in one step.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from math import ceil, inf
from typing import Any, Final

from gslb.sim.engine import Engine
from gslb.sim.sequence import Sequence

_GRAIN: Final = 1e-6


class Forecast:
    """One engine's forecasts. What does not depend on who asks is kept while the engine stands as it is."""

    __slots__ = ("_changes", "_engine", "_outlook")

    def __init__(self, engine: Engine[Any]) -> None:
        self._engine = engine
        self._outlook = _Outlook(engine).begin()
        self._changes = engine.changes

    def first_token_s(
        self, request: Sequence, arrives_s: float, before: Iterable[Sequence] = (), by_s: float = inf
    ) -> float:
        """Simulated time of the first token of `request`, which reaches the engine at `arrives_s` after all of
        `before` (who are on their way there). Infinity when the engine hangs, or when that is later than `by_s`
        anyway."""
        engine = self._engine
        if engine.is_frozen:
            return inf
        if engine.changes != self._changes:
            self._changes = engine.changes
            self._outlook = _Outlook(engine).begin()
        outlook = self._outlook
        if max(arrives_s, outlook.ready_s) > by_s:
            return inf
        outlook = outlook.copy()
        for one in before:
            outlook.admit(one, arrives_s)
        return outlook.admit(request, arrives_s)


class _Outlook:
    """An engine's near future, request by request in the order of its queue, which is worked off to begin with.

    It stands at a moment: `_at_s`, when `_step` steps have ended since `engine.began_s`, and goes on from there in
    steps of `_decoders`. `ready_s`: when the prompts admitted so far are computed.
    """

    __slots__ = (
        "_at_s",
        "_decoders",
        "_ends",
        "_engine",
        "_free_slots",
        "_free_tokens",
        "_new",
        "_step",
        "ready_s",
    )

    def __init__(self, engine: Engine[Any]) -> None:
        self._engine = engine
        spec = engine.spec
        self._free_slots = spec.slots - engine.running
        self._free_tokens = engine.memory.free
        self._decoders = engine.decoders
        self._at_s = self.ready_s = engine.began_s
        self._step = 0.0
        self._ends: list[tuple[float, int]] | None = None
        """Whose last token comes with which step, and what memory they hold: a heap, once it is wanted."""
        self._new: list[tuple[float, int]] = []
        """The same of those that are admitted here, until then."""

    def begin(self) -> _Outlook:
        """Take in who is being computed and who waits."""
        engine = self._engine
        chunks = engine.chunks
        if chunks:
            self._at_s, self._step = engine.due_s, 1.0
            rest = dict(chunks)
            for one in engine.prefilling:
                self._compute(one.computed + rest.get(one, 0), one.target)
                self._joins(one.left, one.target)
        for one in engine.queue():
            self.admit(one, engine.due_s)
        return self

    def copy(self) -> _Outlook:
        """The same, to go on from."""
        other = _Outlook(self._engine)
        other._free_slots = self._free_slots
        other._free_tokens = self._free_tokens
        other._decoders = self._decoders
        other._at_s = self._at_s
        other._step = self._step
        other.ready_s = self.ready_s
        other._ends = None if self._ends is None else self._ends.copy()
        other._new = self._new.copy()
        return other

    def admit(self, request: Sequence, arrives_s: float) -> float:
        """Let `request` be next, if not before it arrives: when its first token is made."""
        engine = self._engine
        cached = engine.cached_of(request)
        tokens = request.target - cached
        self._go_to(arrives_s)
        self._let_end()
        while not self._has_room(tokens) and self._ends:
            self._go_to_step(self._ends[0][0])
            self._let_end()
        self._free_slots -= 1
        self._free_tokens -= tokens
        self._compute(cached, request.target)
        self._joins(request.left, tokens)
        return self.ready_s

    def _has_room(self, tokens: int) -> bool:
        """Whether there is a slot and memory now; who decodes has added a token a step."""
        if self._free_slots > 0 and self._free_tokens - self._decoders * self._step >= tokens + self._decoders:
            return True
        if self._ends is None:
            self._ends = [*self._engine.ends(), *self._new]
            heapify(self._ends)
            self._let_end()
        return self._free_slots > 0 and self._free_tokens - self._decoders * self._step >= tokens + self._decoders

    def _let_end(self) -> None:
        """Those whose last token has been made by now give back what they hold."""
        ends = self._ends
        while ends and ends[0][0] <= self._step + _GRAIN:
            _, held = heappop(ends)
            self._free_slots += 1
            self._free_tokens += held
            self._decoders = max(0, self._decoders - 1)

    def _step_s(self) -> float:
        engine = self._engine
        return engine.step_of(min(self._decoders, engine.spec.slots))

    def _go_to(self, at_s: float) -> None:
        """Forward to the first start of a step at or after `at_s`."""
        if at_s > self._at_s:
            if self._decoders:
                self._go_to_step(self._step + ceil((at_s - self._at_s) / self._step_s() - _GRAIN))
            else:
                self._at_s = at_s

    def _go_to_step(self, step: float) -> None:
        """Forward to the start of a step."""
        if step > self._step:
            self._at_s += (step - self._step) * self._step_s()
            self._step = step

    def _compute(self, start: int, end: int) -> None:
        """Tokens `start` to `end` of a prompt are computed next."""
        if start < end:
            spec = self._engine.spec
            work_s = spec.profile.prefill_span_ms(start, end) * self._engine.slowness / 1000
            steps = ceil((end - start) / max(1, spec.step_tokens - self._decoders))
            self._at_s += work_s + steps * self._step_s()
            self._step += steps
        self.ready_s = self._at_s

    def _joins(self, left: int, tokens: int) -> None:
        """A sequence has its first token; `left` was to be made with that."""
        self._decoders += 1
        end = (self._step + left - 1, tokens)
        if self._ends is None:
            self._new.append(end)
        else:
            heappush(self._ends, end)
