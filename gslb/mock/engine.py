"""A continuous-batching engine without a clock: time comes in as an argument, tokens come out.

The model is vLLM's scheduler at the grain a router can see:

- `slots` sequences run at once; the rest wait, first come first served. A slot that frees is refilled at
  once.
- The engine works in steps. In one step every sequence past its prefill makes one token, and what is left of
  `max_batched_tokens` goes to prompts, oldest first (chunked prefill). A step's tokens appear at its end.
- A step lasts `prefill_ms_per_token * prompt tokens computed in it`, plus, if anyone decodes,
  `itl_ms + itl_per_seq_ms * (batch - 1)`, `batch` being the sequences that take part. So prompts delay each
  other and the decoders, and a lone request's first token takes its uncached tokens times the prefill rate.
- The prefix cache is a bounded LRU of chained block hashes, looked up when a sequence gets its slot, filled
  when its prefill is done. The last prompt token is always computed, as in vLLM.
- KV use counts whole blocks per running sequence (shared prefixes count for each). A prompt that does not fit
  waits at the head; growth while decoding is not preempted, use is capped at 1 in what is reported.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gslb.mock.settings import MockSettings
from gslb.mock.stats import EngineStats

STEPS_PER_ADVANCE = 256
"""The most steps one `advance` takes, so that an engine of zero-length steps lets its driver breathe."""


class QueueFull(Exception):
    """The waiting queue is at its limit: the request was not accepted (the server answers 503)."""


class Token(NamedTuple):
    """One token of one sequence: `made` counts it in (1 for the first), `finish_reason` is set on the last.

    `cached_tokens` is how much of the prompt came from the prefix cache. Work without output tokens
    (embeddings, scores) ends with one Token of `made` 0.
    """

    work_id: int
    made: int
    cached_tokens: int
    finish_reason: str | None


@dataclass(slots=True)
class Work:
    """What a request asks of the engine. `blocks` are chained hashes of its full prompt blocks.

    `output_tokens` are made, then it ends with `finish_reason`; 0 is work that ends with its prefill
    (embeddings, scores). `prompt_tokens` is at least 1.
    """

    work_id: int
    prompt_tokens: int
    output_tokens: int
    blocks: Sequence[int] = ()
    finish_reason: str = "length"


class _Sequence:
    """One accepted request on its way through the engine."""

    __slots__ = (
        "admitted_s", "cached", "computed_left", "first_s", "generated", "kv_blocks", "last_s", "step_tokens",
        "submitted_s", "work",
    )  # fmt: skip

    def __init__(self, work: Work, now_s: float) -> None:
        self.work = work
        self.submitted_s = now_s
        self.admitted_s = now_s
        self.first_s = now_s
        self.last_s = now_s
        self.cached = 0
        self.computed_left = 0
        self.generated = 0
        self.kv_blocks = 0
        self.step_tokens = 0


class PrefixCache:
    """A bounded set of block hashes, least recently used out first."""

    __slots__ = ("_blocks", "capacity")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def leading(self, blocks: Sequence[int]) -> int:
        """How many blocks from the start are cached; those count as used now."""
        found = 0
        for block in blocks:
            if block not in self._blocks:
                break
            self._blocks.move_to_end(block)
            found += 1
        return found

    def add(self, blocks: Sequence[int]) -> None:
        """Keep `blocks`; of a chain longer than the cache, its beginning."""
        for block in reversed(blocks[: self.capacity]):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self.capacity:
            self._blocks.popitem(last=False)


class Engine:
    """The engine. Drive it: `submit`, then `advance` whenever `next_event_s()` has come.

    `now_s` must never go back between calls. Nothing here blocks or reads a clock.
    """

    def __init__(self, settings: MockSettings) -> None:
        scale_s = settings.time_scale / 1e3
        self.slots = settings.slots
        self.queue_limit = settings.queue_limit
        self.block_size = settings.block_size
        self.kv_blocks = settings.kv_blocks
        self.max_batched_tokens = settings.max_batched_tokens
        self._prefill_s = settings.prefill_ms_per_token * scale_s
        self._itl_s = settings.itl_ms * scale_s
        self._itl_per_seq_s = settings.itl_per_seq_ms * scale_s
        self.stats = EngineStats()
        self.cache = PrefixCache(settings.kv_blocks)
        self._waiting: OrderedDict[int, _Sequence] = OrderedDict()
        self._running: OrderedDict[int, _Sequence] = OrderedDict()
        self._step: list[_Sequence] = []
        self._step_end_s: float | None = None
        self._kv_used = 0
        self._frozen_s: float | None = None

    @property
    def running(self) -> int:
        """Sequences that hold a slot."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests without a slot yet."""
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        """Share of the KV cache that running sequences hold, 0..1."""
        return min(1.0, self._kv_used / self.kv_blocks)

    def submit(self, work: Work, now_s: float) -> None:
        """Accept a request. Raises QueueFull at the queue limit, ValueError for no prompt or a used id."""
        if work.prompt_tokens < 1 or work.output_tokens < 0:
            raise ValueError(f"work {work.work_id}: at least 1 prompt token and 0 output tokens are needed")
        if work.work_id in self._waiting or work.work_id in self._running:
            raise ValueError(f"work id {work.work_id} is already in the engine")
        is_admissible = not self._waiting and len(self._running) < self.slots
        if not is_admissible and self.queue_limit is not None and len(self._waiting) >= self.queue_limit:
            self.stats.rejected += 1
            raise QueueFull(f"{len(self._waiting)} requests wait already")
        self._waiting[work.work_id] = _Sequence(work, now_s)
        self._admit(now_s)
        self._ensure_step(now_s)

    def abort(self, work_id: int, now_s: float) -> bool:
        """Drop a request wherever it is; its slot is free at once. False if it is not here (any more).

        As in vLLM, `request_success_total` does not count it, under no reason.
        """
        if self._waiting.pop(work_id, None) is not None:
            self._admit(now_s)
            self._ensure_step(now_s)
            return True
        sequence = self._running.pop(work_id, None)
        if sequence is None:
            return False
        self._kv_used -= sequence.kv_blocks
        if sequence in self._step:
            self._step.remove(sequence)
        if not self._step:
            self._step_end_s = None
        self._admit(now_s)
        self._ensure_step(now_s)
        return True

    def next_event_s(self) -> float | None:
        """When `advance` has something to do; None while idle or frozen."""
        return None if self._frozen_s is not None else self._step_end_s

    def advance(self, now_s: float) -> list[Token]:
        """Take every step that ends by `now_s` (at most STEPS_PER_ADVANCE); their tokens in order."""
        tokens: list[Token] = []
        if self._frozen_s is not None:
            return tokens
        for _ in range(STEPS_PER_ADVANCE):
            end_s = self._step_end_s
            if end_s is None or end_s > now_s:
                break
            self._finish_step(end_s, tokens)
        return tokens

    def freeze(self, now_s: float) -> None:
        """Stand still: requests are accepted and counted, but no token is made (a hung engine)."""
        if self._frozen_s is None:
            self._frozen_s = now_s

    def thaw(self, now_s: float) -> None:
        """Go on where `freeze` stopped; the frozen time is not caught up."""
        if self._frozen_s is not None and self._step_end_s is not None:
            self._step_end_s += max(0.0, now_s - self._frozen_s)
        self._frozen_s = None

    def _admit(self, now_s: float) -> None:
        while self._waiting and len(self._running) < self.slots:
            sequence = next(iter(self._waiting.values()))
            work = sequence.work
            needed = -(-work.prompt_tokens // self.block_size)
            if self._running and self._kv_used + needed > self.kv_blocks:
                return
            del self._waiting[work.work_id]
            self._running[work.work_id] = sequence
            sequence.admitted_s = now_s
            # vLLM never takes a whole prompt from the cache: the last token is computed for its logits.
            reusable = (work.prompt_tokens - 1) // self.block_size
            sequence.cached = self.cache.leading(work.blocks[:reusable]) * self.block_size
            sequence.computed_left = work.prompt_tokens - sequence.cached
            sequence.kv_blocks = needed
            self._kv_used += needed
            self.stats.prefix_queries += work.prompt_tokens
            self.stats.prefix_hits += sequence.cached

    def _ensure_step(self, now_s: float) -> None:
        if self._step_end_s is not None or not self._running:
            return
        self._step = []
        decoding = sum(1 for sequence in self._running.values() if sequence.computed_left == 0)
        budget = max(1, self.max_batched_tokens - decoding)
        prefilled = 0
        for sequence in self._running.values():
            if sequence.computed_left == 0:
                sequence.step_tokens = 0
            elif budget > 0:
                sequence.step_tokens = min(budget, sequence.computed_left)
                budget -= sequence.step_tokens
                prefilled += sequence.step_tokens
            else:
                continue
            self._step.append(sequence)
        duration_s = self._prefill_s * prefilled
        if decoding:
            duration_s += self._itl_s + self._itl_per_seq_s * (len(self._step) - 1)
        self._step_end_s = now_s + duration_s

    def _finish_step(self, end_s: float, tokens: list[Token]) -> None:
        stepped, self._step, self._step_end_s = self._step, [], None
        computed = 0
        for sequence in stepped:
            if sequence.computed_left:
                sequence.computed_left -= sequence.step_tokens
                computed += sequence.step_tokens
                if sequence.computed_left:
                    continue
                self.cache.add(sequence.work.blocks)
            else:
                computed += 1
            tokens.append(self._make_token(sequence, end_s))
        self.stats.step_tokens.observe(computed)
        self._admit(end_s)
        self._ensure_step(end_s)

    def _make_token(self, sequence: _Sequence, now_s: float) -> Token:
        stats, work = self.stats, sequence.work
        is_first = sequence.generated == 0
        made = min(1, work.output_tokens)
        sequence.generated += made
        stats.generation_tokens += made
        if is_first:
            sequence.first_s = now_s
            stats.prompt_tokens += work.prompt_tokens
            stats.prompt_tokens_cached += sequence.cached
            stats.ttft_s.observe(now_s - sequence.submitted_s)
        else:
            stats.itl_s.observe(now_s - sequence.last_s)
        sequence.last_s = now_s
        held = -(-(work.prompt_tokens + sequence.generated) // self.block_size)
        self._kv_used += held - sequence.kv_blocks
        sequence.kv_blocks = held
        if sequence.generated < work.output_tokens:
            return Token(work.work_id, sequence.generated, sequence.cached, None)
        del self._running[work.work_id]
        self._kv_used -= sequence.kv_blocks
        self._count_finished(sequence, now_s)
        return Token(work.work_id, sequence.generated, sequence.cached, work.finish_reason)

    def _count_finished(self, sequence: _Sequence, now_s: float) -> None:
        stats, work = self.stats, sequence.work
        stats.success[work.finish_reason] += 1
        stats.e2e_s.observe(now_s - sequence.submitted_s)
        stats.queue_s.observe(sequence.admitted_s - sequence.submitted_s)
        stats.inference_s.observe(now_s - sequence.admitted_s)
        stats.prefill_s.observe(sequence.first_s - sequence.admitted_s)
        stats.decode_s.observe(now_s - sequence.first_s)
        if sequence.generated > 1:
            stats.tpot_s.observe((now_s - sequence.first_s) / (sequence.generated - 1))
        stats.request_prompt_tokens.observe(work.prompt_tokens)
        stats.request_generation_tokens.observe(sequence.generated)
        stats.request_max_tokens.observe(work.output_tokens)
        stats.request_n.observe(1)
        stats.prefill_computed_tokens.observe(work.prompt_tokens - sequence.cached)
