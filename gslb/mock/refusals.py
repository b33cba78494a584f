"""The answers of a vLLM that says no: exact bodies, as recorded from vLLM 0.32."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

Headers = tuple[tuple[bytes, bytes], ...]

REASONS = {
    101: "Switching Protocols",
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    413: "Request Entity Too Large",
    422: "Unprocessable Entity",
    429: "Too Many Requests",
    500: "Internal Server Error",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}
"""Reason phrases of the status codes a vLLM is likely to send."""

ENGINE_DEAD_MESSAGE = "EngineCore encountered an issue. See stack trace (above) for the root cause."
QUEUE_FULL_MESSAGE = (
    "The engine is currently busy and cannot accept new requests. "
    "Please try again later or on a different instance."
)


@dataclass(slots=True)
class Refusal(Exception):
    """A request answered without the engine: status, JSON body, extra headers.

    `has_vary` is False where vLLM's CORS layer does not see the answer (401, and 500 from a broken handler).
    """

    status: int
    body: bytes
    headers: Headers = ()
    has_vary: bool = True


def error_body(message: str, kind: str, param: str | None, code: int) -> bytes:
    """vLLM's error object."""
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


def unauthorized() -> Refusal:
    """No key or a wrong one: `error` is a plain string here."""
    return Refusal(401, b'{"error":"Unauthorized"}', has_vary=False)


def not_found() -> Refusal:
    """An unknown path."""
    return Refusal(404, b'{"detail":"Not Found"}')


def method_not_allowed(allow: str) -> Refusal:
    """A known path, another method."""
    return Refusal(405, b'{"detail":"Method Not Allowed"}', headers=((b"allow", allow.encode()),))


def invalid(message: str, param: str | None = None) -> Refusal:
    """A body that the request's schema refuses; `message` is the one validation error."""
    return Refusal(400, error_body(f"1 validation error:\n  {message}", "Bad Request", param, 400))


def bad_request(message: str, param: str, value: object) -> Refusal:
    """A well-formed body that asks for something impossible."""
    text = f"{message} (parameter={param}, value={value})"
    return Refusal(400, error_body(text, "BadRequestError", param, 400))


def unknown_model(model: str, known: list[str]) -> Refusal:
    """A model name that this server does not have."""
    text = f"The model `{model}` does not exist. Valid aliases: {', '.join(known)}."
    return Refusal(404, error_body(text, "NotFoundError", "model", 404))


def queue_full() -> Refusal:
    """The queue limit is reached. No Retry-After, as recorded."""
    return Refusal(503, error_body(QUEUE_FULL_MESSAGE, "Service Unavailable", None, 503))


def engine_dead() -> Refusal:
    """The engine process is gone."""
    return Refusal(500, error_body(ENGINE_DEAD_MESSAGE, "InternalServerError", None, 500))


def shutting_down() -> Refusal:
    """A new request while the server drains."""
    text = "cannot schedule new futures after shutdown"
    return Refusal(500, error_body(text, "InternalServerError", None, 500), has_vary=False)


def scripted(status: int, retry_after: str | None) -> Refusal:
    """What the `status` fault answers."""
    kind = REASONS.get(status, "Error")
    headers: Headers = () if retry_after is None else ((b"retry-after", retry_after.encode("latin-1")),)
    return Refusal(status, error_body(f"scripted fault: {status}", kind, None, status), headers=headers)


def error_event() -> bytes:
    """The SSE event a stream gets when the engine dies (note the spaces: another serializer writes it)."""
    return (
        b'data: {"error": {"message": "%s", "type": "InternalServerError", "param": null, "code": 500}}\n\n'
        % ENGINE_DEAD_MESSAGE.encode()
    )
