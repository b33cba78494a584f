"""What a GPU class needs for a model class: the constants of a decoding step and of prefill.

Used twice: as what the router believes of an endpoint before it has learnt better, and as the truth of the
simulator's engines. Times in ms, positions and batches in tokens and requests.
"""

from __future__ import annotations

from dataclasses import dataclass

LONG_FROM_TOKENS = 2048
"""From this position on a prompt's tokens cost more: attention has more to look back at (Splitwise table)."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One decoding step of a batch of `b` lasts `step_ms + step_per_seq_ms * b + step_per_seq2_ms * b * b`; a
    prompt token costs `prefill_ms` up to LONG_FROM_TOKENS, `prefill_long_ms` beyond. A step in which nobody
    decodes costs `prefill_step_ms` beside its prompt tokens."""

    step_ms: float
    step_per_seq_ms: float
    step_per_seq2_ms: float
    prefill_ms: float
    prefill_long_ms: float
    prefill_step_ms: float = 0.0

    def decode_step_ms(self, batch: int) -> float:
        """One step in which `batch` sequences make a token each."""
        return self.step_ms + batch * (self.step_per_seq_ms + batch * self.step_per_seq2_ms)

    def prefill_span_ms(self, start: int, end: int) -> float:
        """Computing the prompt's tokens `start` up to `end` (those before are cached or computed already)."""
        short = min(end, LONG_FROM_TOKENS) - min(start, LONG_FROM_TOKENS)
        return short * self.prefill_ms + (end - start - short) * self.prefill_long_ms


PROFILES: dict[str, Profile] = {
    "h100-70b-tp8": Profile(30.4, 0.22, 0.0014, 0.049, 0.105, 30.4),
    "a100-70b-tp8": Profile(44.8, 0.18, 0.0036, 0.106, 0.182, 44.8),
}
"""Fits to the Splitwise table (Patel et al., ISCA 2024; medians over its repetitions), Llama-2-70B."""
