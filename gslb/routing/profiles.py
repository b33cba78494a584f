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
    "h100-70b-tp8": Profile(30.4, 0.22, 0.0014, 0.049, 0.120, 30.4),
    "h100-70b-tp4": Profile(29.57, 0.134, 0.0034, 0.074, 0.130, 29.57),
    "h100-70b-tp2": Profile(37.49, 0.226, 0.0071, 0.115, 0.176, 37.49),
    "a100-70b-tp8": Profile(44.8, 0.18, 0.0036, 0.106, 0.204, 44.8),
    "a100-70b-tp4": Profile(44.73, 0.089, 0.0054, 0.171, 0.296, 44.73),
    "a100-70b-tp2": Profile(59.31, 0.322, 0.0026, 0.297, 0.385, 59.31),
    "h100-pcap-70b-tp8": Profile(30.37, 0.219, 0.0014, 0.072, 0.154, 30.37),
    "h100-pcap-70b-tp4": Profile(29.57, 0.134, 0.0034, 0.106, 0.166, 29.57),
    "h100-pcap-70b-tp2": Profile(37.49, 0.226, 0.0071, 0.162, 0.225, 37.49),
    "h100-176b-tp8": Profile(36.55, 0.179, 0.0038, 0.094, 0.217, 36.55),
    "a100-176b-tp8": Profile(49.44, 0.338, 0.0061, 0.236, 0.454, 49.44),
    "h100-pcap-176b-tp8": Profile(36.55, 0.179, 0.0038, 0.134, 0.278, 36.55),
}
"""Fits to the Splitwise table (Patel et al., ISCA 2024; medians over its repetitions): Llama-2-70B and
BLOOM-176B in half precision on 2, 4 or 8 GPUs of 80 GB (`tp`); `pcap` are H100s under a power cap.

Steps are fitted to the time per token at 512 prompt tokens and batches of 1 to 64 (TP2: to 32; its row of 64 is no
measurement): at worst 3.7 % off. A step without decoders reads the same weights, so it costs `step_ms` too; given
that, the prefill rates are fitted to single prompts of 512 to 8,192 tokens: median error 1 to 4 %, at worst 15 %
(TP2), 4 % and 6 % for the first and the fourth. Shorter prompts are said to be too quick, by 37 % at 128 tokens on
the first (such a step has a floor of its own); where anybody decodes that does not show. The table's batches of
512-token prompts cost what one prompt of as many tokens costs: there it is the tokens of a step, not positions in
a prompt, that make the later ones dear; a step of 16 and more such prompts really lasts about twice as long.
"""
