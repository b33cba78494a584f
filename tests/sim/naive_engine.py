"""The engine's model once more, the slow way: every step visits every sequence, nothing is jumped or summed up.

Written from the rules in `gslb.sim.engine`, not from its code: what the two agree on is probably meant.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gslb.sim.setting import EngineSpec


@dataclass
class Job:
    """One request and what became of it."""

    name: int
    at_s: float
    prompt: int
    output: int
    blocks: tuple[int, ...] = ()
    block_tokens: int = 0
    computed: int = 0
    target: int = 0
    made: int = 0
    kv: int = 0
    held: int = 0
    decodes: bool = False
    first_s: float | None = None
    end_s: float | None = None
    cached: int = 0
    is_gone: bool = False


@dataclass
class NaiveEngine:
    spec: EngineSpec
    waiting: list[Job] = field(default_factory=list)
    running: list[Job] = field(default_factory=list)
    pinned: dict[int, int] = field(default_factory=dict)
    """Block -> users."""
    idle: list[int] = field(default_factory=list)
    """Blocks nobody uses, the oldest first."""
    sizes: dict[int, int] = field(default_factory=dict)
    preemptions: int = 0

    def kv_used(self) -> int:
        return sum(job.kv for job in self.running) + sum(self.sizes[b] for b in self.pinned)

    def idle_tokens(self) -> int:
        return sum(self.sizes[b] for b in self.idle)

    def shrink(self, growth: int) -> None:
        while self.idle and self.kv_used() + growth + self.idle_tokens() > self.spec.kv_tokens:
            self.idle.pop(0)

    def hit(self, job: Job) -> list[int]:
        if not self.spec.has_prefix_cache or not job.blocks:
            return []
        found = []
        for block in job.blocks[: min(job.target - 1, job.prompt) // job.block_tokens]:
            if block not in self.pinned and block not in self.idle:
                break
            found.append(block)
        return found

    def pin(self, block: int, size: int) -> None:
        if block in self.idle:
            self.idle.remove(block)
        self.sizes.setdefault(block, size)
        self.pinned[block] = self.pinned.get(block, 0) + 1

    def leave(self, job: Job) -> None:
        self.running.remove(job)
        job.kv = 0
        for block in reversed(job.blocks[: job.held]):
            self.pinned[block] -= 1
            if not self.pinned[block]:
                del self.pinned[block]
                self.idle.append(block)
        job.held = 0
        job.decodes = False

    def preempt(self) -> None:
        job = self.running[-1]
        self.leave(job)
        job.target = job.prompt + job.made
        job.computed = 0
        self.waiting.insert(0, job)
        self.preemptions += 1

    def admit(self) -> None:
        spec = self.spec
        decoders = sum(job.decodes for job in self.running)
        budget = spec.step_tokens - decoders - sum(j.target - j.computed for j in self.running if not j.decodes)
        while self.waiting and len(self.running) < spec.slots:
            job = self.waiting[0]
            if job.is_gone:
                self.waiting.pop(0)
                continue
            if budget <= 0 and any(not job.decodes for job in self.running):
                return
            hit = self.hit(job)
            cached = len(hit) * job.block_tokens
            private = job.target - cached
            fresh_pins = sum(self.sizes[b] for b in hit if b not in self.pinned)
            if self.kv_used() + fresh_pins + private + decoders > spec.kv_tokens:
                return
            self.waiting.pop(0)
            for block in hit:
                self.pin(block, job.block_tokens)
            job.held = len(hit)
            if job.first_s is None:
                job.cached = cached
            job.computed = cached
            job.kv = private
            self.running.append(job)
            self.shrink(0)
            budget -= private

    def step(self, now_s: float) -> tuple[float, list[tuple[Job, int]]]:
        """Start a step at `now_s`: when it ends (infinity: nothing to do), and the chunks in it."""
        decoders = sum(job.decodes for job in self.running)
        has_preempted = False
        while self.kv_used() + sum(job.decodes for job in self.running) > self.spec.kv_tokens:
            self.preempt()
            has_preempted = True
        if not has_preempted:
            self.admit()
        decoders = sum(job.decodes for job in self.running)
        budget = max(1, self.spec.step_tokens - decoders)
        chunks = []
        for job in self.running:
            if not job.decodes and budget:
                tokens = min(budget, job.target - job.computed)
                chunks.append((job, tokens))
                budget -= tokens
        if not decoders and not chunks:
            return float("inf"), chunks
        profile = self.spec.profile
        ms = profile.decode_step_ms(decoders) if decoders else profile.prefill_step_ms
        ms += sum(profile.prefill_span_ms(job.computed, job.computed + tokens) for job, tokens in chunks)
        self.shrink(decoders)
        return now_s + ms / 1000, chunks

    def end(self, now_s: float, chunks: list[tuple[Job, int]]) -> None:
        stepped = [job for job in self.running if job.decodes]
        for job in stepped:
            job.made += 1
            job.kv += 1
        done = [job for job in stepped if job.made == job.output and not job.is_gone]
        for job in sorted(done, key=lambda job: job.order):  # type: ignore[attr-defined]
            job.end_s = now_s
            self.leave(job)
        for job, tokens in chunks:
            job.computed += tokens
            if job.computed == job.target and not job.is_gone:
                self.prompt_done(job, now_s)
        for job in [job for job in self.running if job.is_gone]:
            self.leave(job)

    decode_order: int = 0

    def prompt_done(self, job: Job, now_s: float) -> None:
        if job.blocks and self.spec.has_prefix_cache:
            full = min(len(job.blocks), job.prompt // job.block_tokens)
            for block in job.blocks[job.held : full]:
                self.pin(block, job.block_tokens)
                job.kv -= job.block_tokens
            job.held = max(job.held, full)
        job.made += 1
        job.decodes = True
        self.decode_order += 1
        job.order = self.decode_order  # type: ignore[attr-defined]
        if job.first_s is None:
            job.first_s = now_s
        if job.made == job.output:
            job.end_s = now_s
            self.leave(job)


def play(spec: EngineSpec, jobs: list[Job], aborts: dict[int, float], until_s: float = 1e9) -> NaiveEngine:
    """Serve `jobs` (in order of time); `aborts` maps names to times."""
    engine = NaiveEngine(spec)
    events = sorted([(job.at_s, 0, job.name) for job in jobs] + [(at_s, 1, name) for name, at_s in aborts.items()])
    by_name = {job.name: job for job in jobs}
    end_s, chunks = float("inf"), []
    while events or end_s < float("inf"):
        if events and events[0][0] < end_s - 1e-9:
            at_s, is_abort, name = events.pop(0)
            if at_s > until_s:
                break
            job = by_name[name]
            if is_abort:
                job.is_gone = job.is_gone or job.end_s is None
            else:
                job.target = job.prompt
                engine.waiting.append(job)
            if end_s == float("inf"):
                end_s, chunks = engine.step(at_s)
        else:
            if end_s > until_s:
                break
            now_s = end_s
            engine.end(now_s, chunks)
            end_s, chunks = engine.step(now_s)
    return engine
