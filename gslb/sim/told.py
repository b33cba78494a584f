"""What a call of the core came to, as JSON that can be compared: every number of a decision, no free text.

Reasons why an endpoint is ill are an upstream's words, which recordings do not keep.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from gslb.routing.router import Decision

_FREE_TEXT = ("why", "message")


def told(result: object) -> Any:
    """`result` as JSON. Of what is neither a decision, a refusal nor plain only the kind is told."""
    if result is None or isinstance(result, bool | int | float | str):
        return result.value if isinstance(result, Enum) else result
    if isinstance(result, Decision):
        return _decision(result)
    if isinstance(result, Enum):
        return result.value
    if isinstance(result, tuple | list):
        return [told(member) for member in result]
    if is_dataclass(result) and not isinstance(result, type):
        members = {member.name: told(getattr(result, member.name)) for member in fields(result)}
        return {type(result).__name__: {name: what for name, what in members.items() if name not in _FREE_TEXT}}
    # A recorded part is a subclass made for the occasion.
    return {"kind": type(result).__name__.removeprefix("Recorded")}


def _decision(decision: Decision) -> dict[str, Any]:
    option = decision.option
    numbers = {
        name: value
        for name in type(option).__slots__
        if isinstance(value := getattr(option, name), bool | int | float)
    }
    return {
        "Decision": {
            "endpoint": option.view.endpoint.key, "region": decision.region, "home": decision.home,
            "reason": decision.reason, "predicted_ms": decision.predicted_ms,
            "edge_ttft_ms": decision.edge_ttft_ms, **numbers,
        }
    }  # fmt: skip
