"""How many requests a second an engine can take: what "0.7 of capacity" is a share of."""

from __future__ import annotations

from collections.abc import Sequence

from gslb.sim.setting import EngineSpec


def requests_per_s(spec: EngineSpec, lengths: Sequence[tuple[int, int]], cached_share: float = 0.0) -> float:
    """The rate at which one engine, always full, ends requests of these (prompt, output) tokens.

    Full is a batch of `b = min(slots, kv_tokens / (mean prompt + half the mean output))` sequences. Each step
    takes `decode_step_ms(b)` and ends `b / mean output` of them, for each of which a new prompt is prefilled, but
    for its leading `cached_share`. So

        rate = 1000 b / (mean output * decode_step_ms(b) + b * mean prefill ms)

    Raises ValueError without lengths.
    """
    if not lengths:
        raise ValueError("no lengths: capacity is in requests, and depends on how long they are")
    count = len(lengths)
    prompt = sum(prompt for prompt, _ in lengths) / count
    output = sum(output for _, output in lengths) / count
    prefill_ms = sum(spec.profile.prefill_span_ms(int(p * cached_share), p) for p, _ in lengths) / count
    batch = max(1, min(spec.slots, int(spec.kv_tokens / (prompt + output / 2))))
    return 1000.0 * batch / (output * spec.profile.decode_step_ms(batch) + batch * prefill_ms)
