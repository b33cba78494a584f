"""When the first token of a request would be made at an engine whose true state is known. For the oracle only.

It looks at everything that counts (the step under way, slots, memory, prompts ahead, true output lengths) and
simplifies three things: nobody else comes in between, the batch stays as large as it is while the queue before the
request is worked off, and prompts that are admitted at different moments are not computed in one step.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from math import ceil, inf
from typing import Any

from gslb.sim.engine import Engine
from gslb.sim.sequence import Sequence

_GRAIN = 1e-6


class Forecast:
    """One engine's forecasts. What does not depend on who asks is kept while the engine stands as it is."""

    __slots__ = ("_changes", "_engine", "_outlook")

    def __init__(self, engine: Engine[Any]) -> None:
        self._engine = engine
        self._outlook = _Outlook(engine)
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
            self._outlook = _Outlook(engine)
        outlook = self._outlook
        if max(arrives_s, outlook.ready_s) > by_s:
            return inf
        outlook = outlook.copy()
        for one in before:
            outlook.admit(one, arrives_s)
        return outlook.admit(request, arrives_s)


class _Outlook:
    """An engine's near future, request by request in the order of its queue, which is worked off to begin with.

    Steps count from `engine.began_s`; step `n` starts at `began_s + n * step_s + extra_s`, where `extra_s` is the
    time of all prompts computed up to then.
    """

    __slots__ = (
        "_decoders", "_ends", "_engine", "_extra_s", "_free_slots", "_free_tokens", "_step_s", "ready_s",
    )  # fmt: skip

    def __init__(self, engine: Engine[Any]) -> None:
        self._engine = engine
        spec = engine.spec
        self._free_slots = spec.slots - engine.running
        self._free_tokens = spec.kv_tokens - engine.kv_tokens
        self._decoders = engine.decoders
        self._step_s = engine.step_of(engine.decoders)
        self._extra_s = 0.0
        self.ready_s = engine.began_s
        """When the prompts admitted so far are computed."""
        self._ends: list[tuple[float, int]] | None = None
        chunks = engine.chunks()
        if chunks:
            self._extra_s = engine.step_s - self._step_s
            self.ready_s = engine.due_s
            for one, tokens in chunks:
                self._compute(one.computed + tokens, one.target)
            for one in engine.prefilling()[len(chunks) :]:
                self._compute(one.computed, one.target)
        for one in engine.queue():
            self.admit(one, engine.due_s)

    def copy(self) -> _Outlook:
        """The same, to go on from."""
        other = _Outlook.__new__(_Outlook)
        other._engine = self._engine
        other._free_slots = self._free_slots
        other._free_tokens = self._free_tokens
        other._decoders = self._decoders
        other._step_s = self._step_s
        other._extra_s = self._extra_s
        other.ready_s = self.ready_s
        other._ends = None if self._ends is None else self._ends.copy()
        return other

    def admit(self, request: Sequence, arrives_s: float) -> float:
        """Let `request` be next, if not before it arrives: when its first token is made."""
        engine = self._engine
        cached = engine.cached_of(request)
        tokens = request.target - cached
        start_s = max(arrives_s, self.ready_s)
        if self._free_slots < 1 or self._free_tokens - self._growth(start_s) < tokens:
            start_s = self._room_s(start_s, tokens)
        if self._decoders and start_s > self.ready_s:
            step = ceil(self._step_at(start_s) - _GRAIN)
            start_s = max(start_s, engine.began_s + step * self._step_s + self._extra_s)
        self.ready_s = start_s
        self._free_slots -= 1
        self._free_tokens -= tokens
        self._compute(cached, request.target)
        self._decoders += 1
        if self._ends is not None:
            heappush(self._ends, (self._step_at(self.ready_s) + request.left, tokens))
        return self.ready_s

    def _step_at(self, at_s: float) -> float:
        if not self._step_s:
            return 0.0
        return max(0.0, (at_s - self._engine.began_s - self._extra_s) / self._step_s)

    def _growth(self, at_s: float) -> float:
        """What the sequences that decode will have added to the memory by then."""
        return self._decoders * self._step_at(at_s)

    def _compute(self, start: int, end: int) -> None:
        """Tokens `start` to `end` of a prompt are computed next."""
        if start == end:
            return
        engine = self._engine
        spec = engine.spec
        work_s = spec.profile.prefill_span_ms(start, end) * engine.slowness / 1000
        decoders = min(self._decoders, spec.slots)
        steps = ceil((end - start) / max(1, spec.step_tokens - decoders))
        self.ready_s += work_s + steps * engine.step_of(decoders)
        self._extra_s += work_s

    def _room_s(self, start_s: float, tokens: int) -> float:
        """When, from `start_s` on, there is a slot and memory for `tokens`: as sequences finish."""
        engine = self._engine
        if self._ends is None:
            self._ends = engine.ends()
            heapify(self._ends)
        ends = self._ends
        while ends and (self._free_slots < 1 or self._free_tokens - self._growth(start_s) < tokens):
            step, held = heappop(ends)
            start_s = max(start_s, engine.began_s + step * self._step_s + self._extra_s)
            self._free_slots += 1
            self._free_tokens += held
            self._decoders = max(0, self._decoders - 1)
        return start_s
