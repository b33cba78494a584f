"""gslb's own errors as clients see them: one table of codes, two body shapes.

The contract (DESIGN section 4): `{"error":{message,type,param,code}}`, Anthropic's shape on `/v1/messages`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

import orjson

STATUS_BY_CODE: dict[str, int] = {
    "bad_request": 400,
    "invalid_api_key": 401,
    "residency_denied": 403,
    "model_not_found": 404,
    "not_found": 404,
    "method_not_allowed": 405,
    "request_timeout": 408,
    "payload_too_large": 413,
    "unsupported_media_type": 415,
    "expectation_failed": 417,
    "upgrade_required": 426,
    "rate_limit": 429,
    "concurrency_limit": 429,
    "headers_too_large": 431,
    "not_implemented": 501,
    "upstream_error": 502,
    "upstream_auth": 502,
    "no_healthy_region": 503,
    "saturated": 503,
    "latency_budget_unreachable": 503,
    "shutting_down": 503,
    "upstream_timeout": 504,
}

REASONS: dict[int, bytes] = {
    200: b"OK", 400: b"Bad Request", 401: b"Unauthorized", 403: b"Forbidden", 404: b"Not Found",
    405: b"Method Not Allowed", 408: b"Request Timeout", 413: b"Content Too Large",
    415: b"Unsupported Media Type", 417: b"Expectation Failed", 426: b"Upgrade Required",
    429: b"Too Many Requests", 431: b"Request Header Fields Too Large", 501: b"Not Implemented",
    502: b"Bad Gateway", 503: b"Service Unavailable", 504: b"Gateway Timeout",
}  # fmt: skip


class Dialect(Enum):
    """How errors are shaped: by the API family of the path."""

    OPENAI = "openai"
    RESPONSES = "responses"
    ANTHROPIC = "anthropic"


@dataclass(slots=True)
class ApiError(Exception):
    """An answer gslb gives itself. `status` overrides the table (429 for `saturated` when all said 429)."""

    code: str
    message: str
    param: str | None = None
    retry_after_s: float | None = None
    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    is_framing: bool = False
    """The connection's framing can no longer be trusted: answer, then close."""

    def __post_init__(self) -> None:
        self.status = self.status or STATUS_BY_CODE[self.code]


def error_type(status: int) -> str:
    """The `type` member for a status, in OpenAI's vocabulary."""
    if status == 401:
        return "authentication_error"
    if status == 403:
        return "permission_error"
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"


_ANTHROPIC_TYPES = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
    429: "rate_limit_error", 503: "overloaded_error",
}  # fmt: skip


def error_body(error: ApiError, dialect: Dialect) -> bytes:
    """The JSON body of `error` in the caller's dialect."""
    kind = error_type(error.status)
    if dialect is Dialect.ANTHROPIC:
        kind = _ANTHROPIC_TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
        named = {"type": kind, "message": error.message, "param": error.param, "code": error.code}
        return orjson.dumps({"type": "error", "error": named})
    inner = {"message": error.message, "type": kind, "param": error.param, "code": error.code}
    return orjson.dumps({"error": inner})


def error_event(code: str, message: str, dialect: Dialect) -> bytes:
    """One SSE event that tells a stream's reader it failed (FC-09); never followed by `[DONE]`."""
    if dialect is Dialect.ANTHROPIC:
        fault = {"type": "api_error", "message": message}
        return b"event: error\ndata: " + orjson.dumps({"type": "error", "error": fault}) + b"\n\n"
    if dialect is Dialect.RESPONSES:
        flat: dict[str, str | None] = {"type": "error", "code": code, "message": message, "param": None}
        return b"event: error\ndata: " + orjson.dumps(flat) + b"\n\n"
    inner = {"message": message, "type": "server_error", "param": None, "code": code}
    return b"data: " + orjson.dumps({"error": inner}) + b"\n\n"


def retry_after_text(seconds: float) -> bytes:
    """`Retry-After` as RFC 9110 10.2.3 wants it: whole seconds, at least 1, rounded up."""
    return b"%d" % max(1, math.ceil(seconds))
