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

Speed: no step touches a sequence. While nobody is in prefill, all steps last alike, so the engine jumps to the
next one that changes anything: the next sequence to finish (they are kept by the number of the step that ends
them), or the memory's end. Somebody who arrives cuts the jump at the next step's start. What costs is therefore a
few heap operations a request, however many tokens it makes.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from math import ceil, inf
from typing import Final, Generic

from gslb.routing.profiles import LONG_FROM_TOKENS
from gslb.sim.kv_memory import KvMemory
from gslb.sim.sequence import Listener, S, Sequence
from gslb.sim.setting import EngineSpec

_GRAIN: Final = 1e-9
"""Share of a step by which sums of times may be off: a step that ends now has ended."""


class Engine(Generic[S]):
    """One endpoint's engine. Whoever drives it calls `advance` when `due_s` has come, which moves with every call.

    `now_s` must never go back between calls.
    """

    __slots__ = (
        "_aborted", "_decode_s", "_finish", "_frozen_s", "_listener", "_order", "_running", "_step", "_steps",
        "_waiting", "began_s", "changes", "chunks", "decoders", "due_s", "finished", "gap_s", "gaps",
        "generation_tokens", "memory", "preemptions", "prefill_ms", "prefilling", "prefix_hits", "prefix_queries",
        "prompt_tokens", "slowness", "spec", "step_s", "waiting",
    )  # fmt: skip

    def __init__(self, spec: EngineSpec, listener: Listener[S]) -> None:
        self.spec = spec
        self._listener = listener
        # who is here
        self._waiting: deque[S] = deque()
        self.waiting = 0
        self._running: dict[S, None] = {}
        self.prefilling: list[S] = []
        """Whose prompts are being computed, in order."""
        self.decoders = 0
        """How many make tokens."""
        self._finish: list[tuple[int, int, S]] = []
        self._order = 0
        self._aborted: list[S] = []
        self.memory = KvMemory(spec.kv_tokens)
        # the steps under way
        self.due_s = inf
        self.began_s = 0.0
        self._step = 0
        self._steps = 0
        self.step_s = 0.0
        self.chunks: list[tuple[S, int]] = []
        """How many tokens of which prompts the step under way computes."""
        profile = spec.profile
        self._decode_s = [profile.prefill_step_ms / 1000]
        """Seconds of a step by how many decode in it, prompts apart."""
        self._decode_s += [profile.decode_step_ms(batch) / 1000 for batch in range(1, spec.slots + 1)]
        self.slowness = 1.0
        self._frozen_s: float | None = None
        self.changes = 0
        """Moves whenever anything is not as it was, but for the time."""
        # counts since the start
        self.prompt_tokens = self.generation_tokens = self.prefix_hits = self.prefix_queries = 0
        self.finished = self.preemptions = 0
        self.gaps = 0
        """Gaps between two tokens of a sequence that lie in one step, and how long they were together."""
        self.gap_s = 0.0
        self.prefill_ms = 0.0
        """What its prompt tokens cost by the profile, steps apart."""

    # --- what it shows -----------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Sequences that hold a slot."""
        return len(self._running)

    @property
    def is_frozen(self) -> bool:
        """Whether it hangs."""
        return self._frozen_s is not None

    def made_in_jump(self, now_s: float) -> int:
        """Tokens made by `now_s` in the jump under way, which no count contains yet; each took `step_s`."""
        return self.decoders * self._steps_done(now_s)

    def work_s(self, now_s: float) -> float:
        """Seconds that all it has made would have taken at its best: every token made in a batch of the size that
        is quickest per token, prompt tokens at the profile's rate. No more than the time there was, but for a
        prompt's share of the step under way."""
        token_s = min(step_s / batch for batch, step_s in enumerate(self._decode_s) if batch)
        return (self.gaps + self.made_in_jump(now_s)) * token_s + self.prefill_ms / 1000

    # What only an oracle sees: `prefilling`, `chunks`, `slowness`, `began_s` (of the jump under way), and these.

    def queue(self) -> list[S]:
        """Who waits, in order."""
        return [one for one in self._waiting if not one.is_gone] if self.waiting else []

    def step_of(self, decoders: int) -> float:
        """Seconds of a step that `decoders` sequences decode in, without prompts."""
        return self._decode_s[decoders] * self.slowness

    def ends(self) -> list[tuple[float, int]]:
        """When each sequence that decodes will be done, in steps from `began_s`, and the memory it holds now."""
        return [
            (end_step - self._step, one.private + self._step - one.since_step + one.pinned * one.block_tokens)
            for end_step, _, one in self._finish
            if one.end_step == end_step and not one.is_gone
        ]

    def cached_of(self, sequence: Sequence) -> int:
        """Tokens of its prompt that an admission would find in the cache now."""
        if not (sequence.blocks and self.spec.has_prefix_cache):
            return 0
        return self.memory.leading(sequence)[0] * sequence.block_tokens

    def members(self) -> list[S]:
        """Everybody who is here."""
        return [one for one in (*self._running, *self._waiting) if not one.is_gone]

    # --- requests ----------------------------------------------------------------------------------

    def fits(self, prompt_tokens: int, output_tokens: int) -> bool:
        """Whether the memory could hold such a request if it were alone. Others must not be submitted."""
        return prompt_tokens + output_tokens <= self.spec.kv_tokens

    def submit(self, sequence: S, now_s: float) -> None:
        """Take in a request (of at least one prompt and one output token, and one that `fits`)."""
        self._waiting.append(sequence)
        self.waiting += 1
        self.changes += 1
        if self._frozen_s is not None:
            return
        if not self._steps:
            self._begin(now_s)
        elif self._steps > 1 and self.waiting == 1 and len(self._running) < self.spec.slots:
            self._cut(now_s)

    def abort(self, sequence: S, now_s: float) -> None:
        """Forget a request: now if it waits, with the step under way if it runs. Nothing more is told of it."""
        if sequence.is_gone:
            return
        sequence.is_gone = True
        self.changes += 1
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
        self.changes += 1
        if self.decoders:
            self._decoded(self._steps)
            finish, step = self._finish, self._step
            while finish and finish[0][0] <= step:
                end_step, _, sequence = heappop(finish)
                # Who was preempted or has gone leaves an entry behind.
                if sequence.end_step == end_step and not sequence.is_gone:
                    self._finish_one(sequence, now_s)
        self._steps = 0
        if self.chunks:
            for sequence, tokens in self.chunks:
                sequence.computed += tokens
                if sequence.computed == sequence.target and not sequence.is_gone:
                    self._prompt_done(sequence, now_s)
            self.chunks.clear()
        if self._aborted:
            for sequence in self._aborted:
                self._remove(sequence)
            self._aborted.clear()
        self._begin(now_s)

    def slow_down(self, factor: float, now_s: float) -> None:
        """From the next step on every step lasts `factor` times as long as the profile says."""
        self.slowness = factor
        self.changes += 1
        if self._frozen_s is None:
            self._cut(now_s)

    def hang(self, now_s: float) -> None:
        """Make no token from here on, but take in what comes."""
        if self._frozen_s is not None:
            return
        done = self._steps_done(now_s)
        if done:
            self._decoded(done)
            self.began_s += done * self.step_s
            self._steps -= done
        self._frozen_s = now_s
        self.due_s = inf

    def recover(self, now_s: float) -> None:
        """Go on where `hang` stopped."""
        if self._frozen_s is None:
            return
        self.changes += 1
        stood_s = now_s - self._frozen_s
        self._frozen_s = None
        if self._steps:
            self.began_s += stood_s
            self.due_s = self.began_s + self._steps * self.step_s
            self._cut(now_s)
        else:
            self._begin(now_s)

    def die(self) -> list[S]:
        """Lose everything, memory and cache included; returns who was here. It may be used again at once."""
        self.changes += 1
        lost = self.members()
        for sequence in lost:
            sequence.is_gone = True
        self._waiting.clear()
        self._running.clear()
        self.prefilling.clear()
        self._finish.clear()
        self._aborted.clear()
        self.chunks.clear()
        self.memory.clear()
        self.waiting = self.decoders = self._steps = 0
        self.due_s = inf
        self._frozen_s = None
        return lost

    def _steps_done(self, now_s: float) -> int:
        """Whole steps of a jump that have ended by now, but for its last, which `advance` ends."""
        if self._steps <= 1 or self._frozen_s is not None:
            return 0
        return min(self._steps - 1, int((now_s - self.began_s) / self.step_s + _GRAIN))

    def _cut(self, now_s: float) -> None:
        """Let the jump end with the step under way."""
        if self._steps > 1:
            steps = max(1, ceil((now_s - self.began_s) / self.step_s - _GRAIN))
            if steps < self._steps:
                self._steps = steps
                self.due_s = self.began_s + steps * self.step_s

    # --- steps -------------------------------------------------------------------------------------

    def _begin(self, now_s: float) -> None:
        """Start the next step, or the next jump of equal ones."""
        has_preempted = False
        memory = self.memory
        while memory.free < self.decoders:
            self._preempt()
            has_preempted = True
        if self.waiting and not has_preempted:
            self._admit()
        self.began_s = now_s
        decoders = self.decoders
        step_s = self._decode_s[decoders]
        if self.prefilling:
            step_s += self._take_chunks() / 1000
            self._steps = 1
        elif decoders:
            finish = self._finish
            while finish[0][2].is_gone or finish[0][2].end_step != finish[0][0]:
                heappop(finish)
            steps, most = finish[0][0] - self._step, memory.free // decoders
            # After a preemption the next step may admit again.
            self._steps = 1 if has_preempted else steps if steps < most else most
        else:
            self.due_s = inf
            return
        self.step_s = step_s = step_s * self.slowness
        self.due_s = now_s + self._steps * step_s

    def _take_chunks(self) -> float:
        """Share the next step's tokens out among prompts, the oldest first; returns what they cost in ms."""
        spec, chunks = self.spec, self.chunks
        profile = spec.profile
        budget = max(1, spec.step_tokens - self.decoders)
        cost_ms = 0.0
        for sequence in self.prefilling:
            start = sequence.computed
            tokens = sequence.target - start
            if tokens > budget:
                tokens = budget
            chunks.append((sequence, tokens))
            if start + tokens <= LONG_FROM_TOKENS:
                cost_ms += tokens * profile.prefill_ms
            else:
                cost_ms += profile.prefill_span_ms(start, start + tokens)
            budget -= tokens
            if not budget:
                break
        self.prefill_ms += cost_ms
        return cost_ms

    def _admit(self) -> None:
        """Give slots to those who wait, as far as slots, memory and this step's tokens go."""
        waiting, spec, memory, prefilling = self._waiting, self.spec, self.memory, self.prefilling
        budget = spec.step_tokens - self.decoders
        for sequence in prefilling:
            budget -= sequence.target - sequence.computed
        while waiting and len(self._running) < spec.slots:
            sequence = waiting[0]
            if sequence.is_gone:
                waiting.popleft()
                continue
            if budget <= 0 and prefilling:
                return
            found = idle = 0
            if sequence.blocks and spec.has_prefix_cache:
                found, idle = memory.leading(sequence)
            cached = found * sequence.block_tokens
            private = sequence.target - cached
            if memory.free - private - idle * sequence.block_tokens < self.decoders:
                return
            waiting.popleft()
            self.waiting -= 1
            if found:
                memory.pin(sequence, found)
                sequence.computed = cached
                if not sequence.has_first:
                    sequence.cached_tokens = cached
                self.prefix_hits += cached
            self.prefix_queries += sequence.target
            sequence.private = private
            memory.free -= private
            if memory.idle_tokens > memory.free:
                memory.shrink()
            self._running[sequence] = None
            prefilling.append(sequence)
            budget -= private

    def _decoded(self, steps: int) -> None:
        """Everybody who decodes has made `steps` tokens."""
        made = self.decoders * steps
        self._step += steps
        self.generation_tokens += made
        self.gaps += made
        self.gap_s += made * self.step_s
        memory = self.memory
        memory.free -= made
        if memory.idle_tokens > memory.free:
            memory.shrink()

    def _prompt_done(self, sequence: S, now_s: float) -> None:
        self.prefilling.remove(sequence)
        if sequence.blocks and self.spec.has_prefix_cache:
            self.memory.keep(sequence)
        self.generation_tokens += 1
        if not sequence.has_first:
            sequence.has_first = True
            self.prompt_tokens += sequence.prompt_tokens
            self._listener.first_token(sequence, now_s)
        step = self._step
        sequence.since_step = step
        sequence.left = left = sequence.left - 1
        sequence.end_step = step + left
        self.decoders += 1
        if left:
            self._order += 1
            heappush(self._finish, (step + left, self._order, sequence))
        else:
            self._finish_one(sequence, now_s)

    def _finish_one(self, sequence: S, now_s: float) -> None:
        if sequence.answer_blocks and self.spec.has_prefix_cache:
            self.memory.keep_answer(sequence)
        self._remove(sequence)
        sequence.is_gone = True
        self.finished += 1
        self._listener.finished(sequence, now_s)

    def _remove(self, sequence: S) -> None:
        """Take a running sequence out and give its memory back (its blocks stay, idle)."""
        del self._running[sequence]
        freed = sequence.private
        if sequence.end_step >= 0:
            made = self._step - sequence.since_step
            freed += made
            sequence.left -= made
            sequence.end_step = -1
            self.decoders -= 1
        else:
            self.prefilling.remove(sequence)
        memory = self.memory
        if sequence.pinned:
            memory.unpin(sequence)
        sequence.private = 0
        memory.free += freed

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
