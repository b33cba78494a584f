"""A continuous-batching engine on simulated time, at the grain that a first token depends on.

The model is vLLM's scheduler:

- `slots` sequences run at once, the rest wait, first come first served.
- The engine works in steps. In a step every sequence whose prompt is computed makes one token; what is left of
  `step_tokens` goes to prompts, oldest first (chunked prefill). A step's tokens appear at its end, and newcomers
  join at the next step's start.
- A step that decodes `b` sequences lasts `profile.decode_step_ms(b)`, one that only computes prompts
  `profile.prefill_step_ms` (the weights are read once a step whoever it serves); to either comes
  `prefill_span_ms` of each chunk.
- Running sequences and cached prompt blocks share `kv_tokens`. Blocks nobody uses are thrown out first; then the
  newest sequence is sent back to the head of the queue and computed anew (its tokens made so far count as prompt).
- A prompt's whole blocks are kept when it is computed; the last prompt token is always computed, as in vLLM.
  Memory is counted in tokens, not in blocks: half a block a sequence is lost to the difference.

Speed: no step touches a sequence. While nobody is in prefill, all steps last alike, so the engine jumps to the next
one that changes anything: the next sequence to finish (they are kept by the number of the step that ends them), or
the memory's end. Somebody who arrives cuts the jump at the next step's start. What costs is therefore a few heap
operations a request, however many tokens it makes.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from math import ceil, inf
from typing import Protocol

from gslb.sim.prefix_cache import PrefixCache
from gslb.sim.setting import EngineSpec

_GRAIN = 1e-9
"""Share of a step by which sums of times may be off: a step that ends now has ended."""


class Listener(Protocol):
    """Who is told what becomes of a sequence. Called while the engine advances: it must not call back into it."""

    def first_token(self, sequence: Sequence, now_s: float) -> None:
        """The prompt is computed and the first token made."""

    def finished(self, sequence: Sequence, now_s: float) -> None:
        """The last token is made (after `first_token`, perhaps at the same moment)."""


class Sequence:
    """One request in an engine. `owner` is whoever wants to know; `cached_tokens` is what the first admission found
    in the prefix cache."""

    __slots__ = (
        "block_tokens", "blocks", "cached_tokens", "computed", "end_step", "has_first", "is_gone", "left", "owner",
        "pinned", "private", "prompt_tokens", "since_step", "submitted_s", "target",
    )  # fmt: skip

    def __init__(
        self, owner: object, prompt_tokens: int, output_tokens: int, blocks: tuple[int, ...] = (), block_tokens: int = 0
    ) -> None:
        self.owner = owner
        self.prompt_tokens = prompt_tokens
        self.left = output_tokens
        """Tokens still to make, as of `since_step`."""
        self.blocks = blocks
        self.block_tokens = block_tokens
        self.submitted_s = 0.0
        self.target = prompt_tokens
        """Tokens to compute before the next one can be made: the prompt, after a preemption also what was made."""
        self.computed = 0
        self.cached_tokens = 0
        self.private = 0
        """KV tokens of its own, as of `since_step`."""
        self.pinned = 0
        """Leading blocks it holds in the cache."""
        self.since_step = 0
        """The engine's step count when it began to decode."""
        self.end_step = -1
        """The step that makes its last token; negative while it does not decode."""
        self.has_first = False
        self.is_gone = False


class Engine:
    """One endpoint's engine. Whoever drives it calls `advance` when `due_s` has come, which moves with every call.

    `now_s` must never go back between calls.
    """

    __slots__ = (
        "_aborted", "_began_s", "_cache", "_chunks", "_decoders", "_finish", "_frozen_s", "_listener",
        "_order", "_prefilling", "_private", "_running", "_slowness", "_step", "_step_s", "_steps", "_waiting",
        "busy_s", "due_s", "finished", "generation_tokens", "preemptions", "prefix_hits", "prefix_queries",
        "prompt_tokens", "spec", "waiting",
    )  # fmt: skip

    def __init__(self, spec: EngineSpec, listener: Listener) -> None:
        self.spec = spec
        self._listener = listener
        # who is here
        self._waiting: deque[Sequence] = deque()
        self.waiting = 0
        self._running: dict[Sequence, None] = {}
        self._prefilling: list[Sequence] = []
        self._decoders = 0
        self._finish: list[tuple[int, int, Sequence]] = []
        self._order = 0
        self._aborted: list[Sequence] = []
        # memory
        self._cache = PrefixCache()
        self._private = 0
        # the steps under way
        self.due_s = inf
        self._began_s = 0.0
        self._step = 0
        self._steps = 0
        self._step_s = 0.0
        self._chunks: list[tuple[Sequence, int]] = []
        self._slowness = 1.0
        self._frozen_s: float | None = None
        # counts since the start
        self.busy_s = 0.0
        self.prompt_tokens = self.generation_tokens = self.prefix_hits = self.prefix_queries = 0
        self.finished = self.preemptions = 0

    # --- what it shows -----------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Sequences that hold a slot."""
        return len(self._running)

    @property
    def decoders(self) -> int:
        """Those of them that make tokens."""
        return self._decoders

    @property
    def is_frozen(self) -> bool:
        """Whether it hangs."""
        return self._frozen_s is not None

    @property
    def kv_tokens(self) -> int:
        """KV memory held by running sequences, as of the last change."""
        return self._private + self._cache.pinned_tokens

    @property
    def cached_tokens(self) -> int:
        """KV memory held by blocks that nobody uses now."""
        return self._cache.idle_tokens

    def generated_by(self, now_s: float) -> int:
        """Tokens made in all, those of the jump under way included."""
        return self.generation_tokens + self._decoders * self._steps_done(now_s)

    def kv_usage(self, now_s: float) -> float:
        """Share of the KV memory that running sequences hold, 0..1."""
        held = self.kv_tokens + self._decoders * self._steps_done(now_s)
        return min(1.0, held / self.spec.kv_tokens)

    def members(self) -> list[Sequence]:
        """Everybody who is here."""
        return [one for one in (*self._running, *self._waiting) if not one.is_gone]

    # --- requests ----------------------------------------------------------------------------------

    def fits(self, prompt_tokens: int, output_tokens: int) -> bool:
        """Whether the memory could hold such a request if it were alone. Others must not be submitted."""
        return prompt_tokens + output_tokens <= self.spec.kv_tokens

    def submit(self, sequence: Sequence, now_s: float) -> None:
        """Take in a request (of at least one prompt and one output token, and one that `fits`)."""
        sequence.submitted_s = now_s
        self._waiting.append(sequence)
        self.waiting += 1
        if self._frozen_s is not None:
            return
        if not self._steps:
            self._begin(now_s)
        elif self._steps > 1 and self.waiting == 1 and len(self._running) < self.spec.slots:
            self._cut(now_s)

    def abort(self, sequence: Sequence, now_s: float) -> None:
        """Forget a request: now if it waits, at the end of the step under way if it runs. It is not heard of again."""
        if sequence.is_gone:
            return
        sequence.is_gone = True
        if sequence in self._running:
            self._aborted.append(sequence)
        else:
            self.waiting -= 1
        if self._frozen_s is None:
            self._cut(now_s)  # even one that waits may have kept others out

    # --- time --------------------------------------------------------------------------------------

    def advance(self, now_s: float) -> None:
        """Do what is due at `now_s`, which is `due_s`."""
        if now_s < self.due_s or not self._steps:
            return
        self._end(now_s)
        self._begin(now_s)

    def slow_down(self, factor: float, now_s: float) -> None:
        """From the next step on every step lasts `factor` times as long as the profile says."""
        self._slowness = factor
        if self._frozen_s is None:
            self._cut(now_s)

    def hang(self, now_s: float) -> None:
        """Make no token from here on, but take in what comes."""
        if self._frozen_s is None:
            self._frozen_s = now_s
            self._steps_before_hang(now_s)

    def recover(self, now_s: float) -> None:
        """Go on where `hang` stopped."""
        if self._frozen_s is None:
            return
        stood_s = now_s - self._frozen_s
        self._frozen_s = None
        if self._steps:
            self._began_s += stood_s
            self.due_s = self._began_s + self._steps * self._step_s
            self._cut(now_s)
        else:
            self._begin(now_s)

    def die(self, now_s: float) -> list[Sequence]:
        """Lose everything, memory and cache included; returns who was here. It may be used again at once."""
        if self._frozen_s is None:
            self._count_busy(now_s)
        lost = self.members()
        for sequence in lost:
            sequence.is_gone = True
        self._waiting.clear()
        self._running.clear()
        self._prefilling.clear()
        self._finish.clear()
        self._aborted.clear()
        self._chunks.clear()
        self._cache.clear()
        self.waiting = self._decoders = self._private = self._steps = 0
        self.due_s = inf
        self._frozen_s = None
        return lost

    def settle(self, now_s: float) -> None:
        """The run ends: count the busy time of the steps under way."""
        if self._frozen_s is None:
            self._count_busy(now_s)

    def _count_busy(self, now_s: float) -> None:
        if self._steps:
            self.busy_s += max(0.0, now_s - self._began_s)
            self._began_s = now_s

    def _steps_before_hang(self, now_s: float) -> None:
        """Take what the jump has done by now, so that nothing moves while it hangs."""
        done = self._steps_done_moving(now_s)
        if done:
            self._apply(done)
            self.busy_s += done * self._step_s
            self._began_s += done * self._step_s
            self._steps -= done
        self.due_s = inf

    def _steps_done(self, now_s: float) -> int:
        return 0 if self._frozen_s is not None else self._steps_done_moving(now_s)

    def _steps_done_moving(self, now_s: float) -> int:
        """Whole steps of a jump that have ended by now, but for its last, which `advance` ends."""
        if self._steps <= 1:
            return 0
        return min(self._steps - 1, int((now_s - self._began_s) / self._step_s + _GRAIN))

    def _cut(self, now_s: float) -> None:
        """Let the jump end with the step under way."""
        if self._steps > 1:
            steps = max(1, ceil((now_s - self._began_s) / self._step_s - _GRAIN))
            if steps < self._steps:
                self._steps = steps
                self.due_s = self._began_s + steps * self._step_s

    # --- steps -------------------------------------------------------------------------------------

    def _apply(self, steps: int) -> None:
        """Everybody who decodes has made `steps` tokens."""
        made = self._decoders * steps
        self._step += steps
        self._private += made
        self.generation_tokens += made
        cache = self._cache
        if cache.idle_tokens:
            cache.shrink(self.spec.kv_tokens - self._private - cache.pinned_tokens)

    def _end(self, now_s: float) -> None:
        self.busy_s += now_s - self._began_s
        if self._decoders:
            self._apply(self._steps)
            finish, step = self._finish, self._step
            while finish and finish[0][0] <= step:
                end_step, _, sequence = heappop(finish)
                # Who was preempted or has gone leaves an entry behind.
                if sequence.end_step == end_step and not sequence.is_gone:
                    self._finish_one(sequence, now_s)
        self._steps = 0
        if self._chunks:
            for sequence, tokens in self._chunks:
                sequence.computed += tokens
                if sequence.computed == sequence.target and not sequence.is_gone:
                    self._prompt_done(sequence, now_s)
            self._chunks.clear()
        if self._aborted:
            for sequence in self._aborted:
                self._remove(sequence)
            self._aborted.clear()

    def _prompt_done(self, sequence: Sequence, now_s: float) -> None:
        self._prefilling.remove(sequence)
        block_tokens = sequence.block_tokens
        if sequence.blocks and self.spec.has_prefix_cache:
            full = min(len(sequence.blocks), sequence.prompt_tokens // block_tokens)
            held = sequence.pinned
            if full > held:
                self._cache.pin(sequence.blocks, held, full, block_tokens)
                moved = (full - held) * block_tokens
                sequence.pinned = full
                sequence.private -= moved
                self._private -= moved
        sequence.left -= 1
        self.generation_tokens += 1
        if not sequence.has_first:
            sequence.has_first = True
            self.prompt_tokens += sequence.prompt_tokens
            self._listener.first_token(sequence, now_s)
        sequence.since_step = self._step
        sequence.end_step = self._step + sequence.left
        self._decoders += 1
        if sequence.left:
            self._order += 1
            heappush(self._finish, (sequence.end_step, self._order, sequence))
        else:
            self._finish_one(sequence, now_s)

    def _finish_one(self, sequence: Sequence, now_s: float) -> None:
        self._remove(sequence)
        sequence.is_gone = True
        self.finished += 1
        self._listener.finished(sequence, now_s)

    def _remove(self, sequence: Sequence) -> None:
        """Take a running sequence out and give its memory back (its blocks stay, idle)."""
        del self._running[sequence]
        private = sequence.private
        if sequence.end_step >= 0:
            made = self._step - sequence.since_step
            private += made
            sequence.left -= made
            sequence.end_step = -1
            self._decoders -= 1
        else:
            self._prefilling.remove(sequence)
        self._private -= private
        if sequence.pinned:
            self._cache.unpin(sequence.blocks, sequence.pinned)
            sequence.pinned = 0
        sequence.private = 0

    def _preempt(self) -> None:
        """Send the newest sequence back to the head of the queue."""
        sequence = next(reversed(self._running))
        if sequence.end_step >= 0:
            # One token came with the prompt's end, then one each step: all must be computed again.
            sequence.target += 1 + self._step - sequence.since_step
        self._remove(sequence)
        sequence.computed = 0
        self._waiting.appendleft(sequence)
        self.waiting += 1
        self.preemptions += 1

    def _admit(self) -> None:
        """Give slots to those who wait, as far as slots, memory and this step's tokens go."""
        waiting, spec, cache = self._waiting, self.spec, self._cache
        budget = spec.step_tokens - self._decoders - sum(s.target - s.computed for s in self._prefilling)
        while waiting and len(self._running) < spec.slots:
            sequence = waiting[0]
            if sequence.is_gone:
                waiting.popleft()
                continue
            if budget <= 0 and self._prefilling:
                return
            hit = idle = 0
            if sequence.blocks and spec.has_prefix_cache:
                reusable = min(sequence.target - 1, sequence.prompt_tokens) // sequence.block_tokens
                hit, idle = cache.leading(sequence.blocks, reusable)
            cached = hit * sequence.block_tokens
            private = sequence.target - cached
            room = spec.kv_tokens - self._private - cache.pinned_tokens - idle * sequence.block_tokens - private
            if room < self._decoders:
                return
            waiting.popleft()
            self.waiting -= 1
            if hit:
                cache.pin(sequence.blocks, 0, hit, sequence.block_tokens)
                sequence.pinned = hit
            self.prefix_hits += cached
            self.prefix_queries += sequence.target
            if not sequence.has_first:
                sequence.cached_tokens = cached
            sequence.computed = cached
            sequence.private = private
            self._private += private
            if cache.idle_tokens > room:
                cache.shrink(room)
            self._running[sequence] = None
            self._prefilling.append(sequence)
            budget -= private

    def _begin(self, now_s: float) -> None:
        """Start the next step, or the next jump of equal ones."""
        spec = self.spec
        room = spec.kv_tokens - self._private - self._cache.pinned_tokens
        has_preempted = False
        while room < self._decoders:
            self._preempt()
            has_preempted = True
            room = spec.kv_tokens - self._private - self._cache.pinned_tokens
        if self.waiting and not has_preempted:
            self._admit()
        decoders = self._decoders
        profile = spec.profile
        self._began_s = now_s
        if self._prefilling:
            step_ms = profile.decode_step_ms(decoders) if decoders else profile.prefill_step_ms
            budget = max(1, spec.step_tokens - decoders)
            for sequence in self._prefilling:
                start = sequence.computed
                tokens = min(budget, sequence.target - start)
                self._chunks.append((sequence, tokens))
                step_ms += profile.prefill_span_ms(start, start + tokens)
                budget -= tokens
                if not budget:
                    break
            self._steps = 1
        elif decoders:
            step_ms = profile.decode_step_ms(decoders)
            finish = self._finish
            while finish[0][2].is_gone or finish[0][2].end_step != finish[0][0]:
                heappop(finish)
            room = spec.kv_tokens - self._private - self._cache.pinned_tokens
            # After a preemption the next step may admit again.
            self._steps = 1 if has_preempted else min(finish[0][0] - self._step, room // decoders)
        else:
            self.due_s = inf
            return
        self._step_s = step_ms * self._slowness / 1000
        self.due_s = now_s + self._steps * self._step_s
