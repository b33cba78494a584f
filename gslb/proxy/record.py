"""What is written down of an exchange when it ends: counts and one access-log line. No content, no key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gslb.wire.openai import read_usage

if TYPE_CHECKING:
    from gslb.proxy.exchange import Exchange

OTHER = "other"


def write_record(exchange: Exchange, outcome: str, now_s: float) -> None:
    """Count and log a finished exchange. `outcome` is one of the access log's (DESIGN section 4)."""
    door = exchange.generation.door
    counters = door.counters
    region = exchange.served_region or "none"
    model = _bounded_model(exchange)
    counters.requests[(region, model, outcome)] += 1
    duration_s = now_s - exchange.started_s
    counters.request_seconds.observe(duration_s)
    prompt_tokens, completion_tokens = read_usage(b"".join(exchange.tail)) if exchange.tail else (None, None)
    if prompt_tokens:
        counters.tokens[(region, model, "prompt")] += prompt_tokens
    if completion_tokens:
        counters.tokens[(region, model, "completion")] += completion_tokens
    ttft_s = exchange.ttft_s
    if ttft_s is not None and exchange.is_event_stream:
        counters.ttft_seconds[(region, model)].observe(ttft_s)
        if exchange.predicted_ms is not None:
            counters.prediction_error_seconds.observe(ttft_s - exchange.predicted_ms / 1000)
    if exchange.served_region and exchange.home and exchange.served_region != exchange.home:
        counters.spillover[(exchange.home, exchange.served_region, exchange.reason)] += 1
    if exchange.fence is not None:
        counters.fenced[exchange.fence] += 1
    if door.access_log.is_on:
        door.access_log.write(_line(exchange, outcome, duration_s, prompt_tokens, completion_tokens))


def _bounded_model(exchange: Exchange) -> str:
    """The model as a label: only names the fleet has, so that clients cannot make up series (FC-38)."""
    if exchange.admitted is None or exchange.admitted.facts is None:
        return "none"
    name = exchange.admitted.facts.model
    return name if name in exchange.generation.door.fleet.known_models else OTHER


def _line(
    exchange: Exchange, outcome: str, duration_s: float, prompt_tokens: int | None, completion_tokens: int | None
) -> dict[str, object]:
    admitted = exchange.admitted
    facts = admitted.facts if admitted else None
    head = exchange.head
    predicted_ms = exchange.predicted_ms
    return {
        "ts": round(exchange.generation.door.wall_s(), 3),
        "request_id": exchange.request_id.decode("ascii"),
        "client": exchange.client.address,
        "country": exchange.client.place.country,
        "tenant": admitted.rights.name or None if admitted else None,
        "method": head.method.decode("ascii", "replace")[:20],
        "path": head.path.decode("ascii", "replace")[:128],
        "model": facts.model if facts else None,
        "stream": facts.is_stream if facts else False,
        "status": exchange.status,
        "outcome": outcome,
        "home": exchange.home or None,
        "region": exchange.served_region or None,
        "endpoint": exchange.served_endpoint or None,
        "attempts": exchange.attempts,
        "predicted_ttft_ms": None if predicted_ms is None else round(predicted_ms, 1),
        "ttft_ms": None if exchange.ttft_s is None else round(exchange.ttft_s * 1000, 1),
        "duration_ms": round(duration_s * 1000, 1),
        "held_ms": 0.0,
        "bytes_in": len(exchange.head.target) + exchange.bytes_in,
        "bytes_out": exchange.bytes_out,
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "reason": exchange.reason,
    }
