"""Scripted faults: what shall go wrong, and for how many requests."""

from __future__ import annotations

import difflib
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(slots=True)
class Fault:
    """One fault. Members that are not set do nothing; several may be set together.

    On inference requests (POST under the API paths). Events are SSE events, the role-only first one included;
    of an answer that is not streamed the first half of its body stands for all events before the fault:

    - `hang`: accept, never answer. `hang_after_events`, `reset_after_events` (RST), `fin_after_events` (FIN
      without the closing zero chunk): after that many; `is_half_event` sends half of the next event first.
    - `truncate_json`: full headers, half of the body (or half an event), FIN.
    - `error_event`: the first event is the error of a dead engine, then `[DONE]` and a clean end;
      `error_event_after` the same after that many events. Not streamed: the 500 of a dead engine.
    - `slow_headers_ms`: wait before anything. `status` with optional `retry_after`: answer so at once.
    - `bad_chunk`: a chunk size that is no number, after the first event. `garbage`: bytes that are no HTTP.
    - `reset`: RST before a byte.

    On the server: `refuse` (the listener is closed while this fault stands), `stall` (the engine stands
    still: requests run, tokens do not move, `/health` is well), `health_status` (of GET /health),
    `health_hang`, `metrics_status`, `metrics_hang`.
    `count` is how many requests a fault hits before it is gone (None: until cleared).
    """

    hang: bool = False
    hang_after_events: int | None = None
    reset: bool = False
    reset_after_events: int | None = None
    fin_after_events: int | None = None
    is_half_event: bool = False
    truncate_json: bool = False
    error_event: bool = False
    error_event_after: int | None = None
    slow_headers_ms: float = 0.0
    status: int | None = None
    retry_after: str | None = None
    bad_chunk: bool = False
    garbage: bool = False
    refuse: bool = False
    stall: bool = False
    health_status: int | None = None
    health_hang: bool = False
    metrics_status: int | None = None
    metrics_hang: bool = False
    count: int | None = None

    @property
    def hits_requests(self) -> bool:
        """True when an inference request is what this fault is for."""
        if self.hang or self.reset or self.truncate_json or self.error_event or self.bad_chunk or self.garbage:
            return True
        return (
            self.slow_headers_ms > 0
            or self.status is not None
            or self.hang_after_events is not None
            or self.reset_after_events is not None
            or self.fin_after_events is not None
            or self.error_event_after is not None
        )

    @property
    def hits_health(self) -> bool:
        """True when GET /health is what this fault is for."""
        return self.health_hang or self.health_status is not None

    @property
    def hits_metrics(self) -> bool:
        """True when GET /metrics is what this fault is for."""
        return self.metrics_hang or self.metrics_status is not None

    def as_json(self) -> dict[str, Any]:
        """The members that are set, as `parse_faults` reads them."""
        plain = Fault()
        return {key: value for key, value in asdict(self).items() if value != getattr(plain, key)}


NO_FAULT = Fault()


class FaultError(ValueError):
    """A fault description that cannot be understood; the text says which member and why."""


def parse_faults(document: object) -> list[Fault]:
    """Faults from decoded JSON: one object or a list of objects. Raises FaultError."""
    if isinstance(document, list):
        return [_parse_fault(entry) for entry in document]
    return [_parse_fault(document)]


def _parse_fault(entry: object) -> Fault:
    if not isinstance(entry, dict):
        raise FaultError(f'a fault is a JSON object such as {{"hang": true}}, got {entry!r}')
    known = {field.name: str(field.type) for field in fields(Fault)}
    fault = Fault()
    for key, value in entry.items():
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(known)}"
            raise FaultError(f"unknown fault {key!r}{hint}")
        setattr(fault, key, _checked(key, known[key], value))
    if fault == NO_FAULT or not (
        fault.hits_requests or fault.hits_health or fault.hits_metrics or fault.refuse or fault.stall
    ):
        raise FaultError(f"{entry!r} names nothing that goes wrong")
    return fault


def _checked(key: str, kind: str, value: object) -> object:
    if kind.startswith("bool"):
        if not isinstance(value, bool):
            raise FaultError(f"{key}: true or false, got {value!r}")
        return value
    if kind.startswith("str"):
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise FaultError(f"{key}: a text or a number, got {value!r}")
        return str(value)
    is_whole = kind.startswith("int")
    if isinstance(value, bool) or not isinstance(value, int if is_whole else int | float) or not value >= 0:
        raise FaultError(f"{key}: a {'whole ' if is_whole else ''}number of at least 0, got {value!r}")
    if key.endswith("status") and not 200 <= value <= 599:
        raise FaultError(f"{key}: an HTTP status from 200 to 599, got {value!r}")
    if key == "count" and value == 0:
        raise FaultError("count: at least 1, or absent for ever")
    return value


class FaultBook:
    """The faults that stand now, in order; `take_*` finds the first that applies and counts it down."""

    __slots__ = ("standing",)

    def __init__(self) -> None:
        self.standing: list[Fault] = []

    def take_for_request(self) -> Fault:
        """The fault of the next inference request (NO_FAULT if none)."""
        return self._take("hits_requests")

    def take_for_health(self) -> Fault:
        """The fault of the next GET /health (NO_FAULT if none)."""
        return self._take("hits_health")

    def take_for_metrics(self) -> Fault:
        """The fault of the next GET /metrics (NO_FAULT if none)."""
        return self._take("hits_metrics")

    def has(self, name: str) -> bool:
        """True while a fault with boolean member `name` (`refuse`, `stall`) stands."""
        return any(getattr(fault, name) for fault in self.standing)

    def _take(self, question: str) -> Fault:
        for fault in self.standing:
            if getattr(fault, question):
                if fault.count is not None:
                    fault.count -= 1
                    if fault.count <= 0:
                        self.standing.remove(fault)
                return fault
        return NO_FAULT
