"""What is written down of an exchange: counts and one access-log line, when it ends. No content, no key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gslb.wire.openai import NO_USAGE, read_usage

if TYPE_CHECKING:
    from gslb.proxy.attempt import Attempt
    from gslb.proxy.exchange import Exchange

OTHER: Final = "other"

LogValues = tuple[
    float, bytes, str, str | None, str, bytes, bytes, str | None, bool, int, str, str, str, str, int,
    float | None, float | None, float, float, int, int, int | None, int | None, str,
]  # fmt: skip
"""What is noted of an exchange when it ends, made into a line later (see `AccessLog`)."""


def note_served(exchange: Exchange, attempt: Attempt) -> None:
    """Who answers is known, or who would have: where, why there, and what was predicted."""
    decision = attempt.decision
    exchange.served_region = decision.region
    exchange.served_endpoint = attempt.key
    is_moved = exchange.failures and decision.region != decision.home
    exchange.reason = "failover" if is_moved else decision.reason
    # What went before is measured with the first token, so it belongs to what is told of the whole.
    exchange.predicted_ms = (attempt.began_s - exchange.started_s) * 1000 + decision.edge_ttft_ms


def write_record(exchange: Exchange, outcome: str, now_s: float) -> None:
    """Count and log a finished exchange. `outcome` is one of the access log's (DESIGN section 4)."""
    door = exchange.generation.door
    counters = door.counters
    region = exchange.served_region or "none"
    model = _bounded_model(exchange)
    counters.requests[(region, model, outcome)] += 1
    duration_s = now_s - exchange.started_s
    counters.request_seconds.observe(duration_s)
    relay = exchange.relay
    usage = NO_USAGE if relay is None else read_usage(relay.tail)
    prompt_tokens, completion_tokens, _ = usage
    if prompt_tokens:
        counters.tokens[(region, model, "prompt")] += prompt_tokens
    if completion_tokens:
        counters.tokens[(region, model, "completion")] += completion_tokens
    if prompt_tokens and exchange.admitted is not None and exchange.admitted.facts is not None:
        facts, key = exchange.admitted.facts, exchange.served_endpoint
        door.affinity.answered(key, facts, exchange.expected_cached, usage, now_s)
    ttft_s = exchange.ttft_s
    if ttft_s is not None and relay is not None and relay.is_event_stream:
        counters.ttft_seconds[(region, model)].observe(ttft_s)
        if exchange.predicted_ms is not None:
            counters.prediction_error_seconds.observe(ttft_s - exchange.predicted_ms / 1000)
    if exchange.served_region and exchange.home and exchange.served_region != exchange.home:
        counters.spillover[(exchange.home, exchange.served_region, exchange.reason)] += 1
    if exchange.fence is not None:
        counters.fenced[exchange.fence] += 1
    if door.access_log.is_on:
        door.access_log.write(_values(exchange, outcome, duration_s, prompt_tokens, completion_tokens))


def _bounded_model(exchange: Exchange) -> str:
    """The model as a label: only names the fleet has, so that clients cannot make up series (FC-38)."""
    if exchange.admitted is None or exchange.admitted.facts is None:
        return "none"
    name = exchange.admitted.facts.model
    return name if name in exchange.generation.door.fleet.known_models else OTHER


def _values(
    exchange: Exchange, outcome: str, duration_s: float, prompt_tokens: int | None, completion_tokens: int | None
) -> LogValues:
    admitted = exchange.admitted
    facts = admitted.facts if admitted else None
    client = exchange.client
    head = exchange.head
    return (
        exchange.generation.door.wall_s(), exchange.request_id, client.address, client.place.country,
        admitted.reading.rights.name if admitted else "", head.method, head.path, facts.model if facts else None,
        facts.is_stream if facts else False, exchange.status, outcome, exchange.home, exchange.served_region,
        exchange.served_endpoint, exchange.attempts, exchange.predicted_ms, exchange.ttft_s, duration_s,
        exchange.held_s, len(head.target) + exchange.bytes_in, exchange.bytes_out, prompt_tokens,
        completion_tokens, exchange.reason,
    )  # fmt: skip


def log_record(values: LogValues) -> dict[str, object]:
    """One access-log record (members as in DESIGN section 4), from what was noted when the exchange ended."""
    (
        wall_s, request_id, client, country, tenant, method, path, model, is_stream, status, outcome, home,
        region, endpoint, attempts, predicted_ms, ttft_s, duration_s, held_s, bytes_in, bytes_out, prompt_tokens,
        completion_tokens, reason,
    ) = values  # fmt: skip
    return {
        "ts": _rounded(wall_s, 1000.0),
        "request_id": request_id.decode("ascii"),
        "client": client,
        "country": country,
        "tenant": tenant or None,
        "method": method.decode("ascii", "replace")[:20],
        "path": path.decode("ascii", "replace")[:128],
        "model": model,
        "stream": is_stream,
        "status": status,
        "outcome": outcome,
        "home": home or None,
        "region": region or None,
        "endpoint": endpoint or None,
        "attempts": attempts,
        "predicted_ttft_ms": None if predicted_ms is None else _rounded(predicted_ms, 10.0),
        "ttft_ms": None if ttft_s is None else _rounded(ttft_s * 1000, 10.0),
        "duration_ms": _rounded(duration_s * 1000, 10.0),
        "held_ms": _rounded(held_s * 1000, 10.0) if held_s else 0.0,
        "bytes_in": bytes_in,
        "bytes_out": bytes_out,
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "reason": reason,
    }


def _rounded(number: float, per_unit: float) -> float:
    """`number` (not below 0) to 1/`per_unit`. `round` goes by way of decimal digits, at ten times the price."""
    return float(int(number * per_unit + 0.5)) / per_unit
