"""The paths that may pass the door, and what kind of request each carries. All others are 404.

An engine's `/metrics`, `/pause` or `/sleep` must not be reachable through the door (DESIGN section 4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

from gslb.errors import ApiError, Dialect


@dataclass(frozen=True, slots=True)
class Route:
    """One passed path: its error dialect and body kind (`json`, `multipart`, `models`: served
    here, or `realtime`: a WebSocket)."""

    kind: str
    dialect: Dialect = Dialect.OPENAI


_JSON = Route("json")
ROUTES: dict[bytes, Route] = {
    b"/v1/chat/completions": _JSON,
    b"/v1/completions": _JSON,
    b"/v1/responses": Route("json", Dialect.RESPONSES),
    b"/v1/messages": Route("json", Dialect.ANTHROPIC),
    b"/v1/embeddings": _JSON,
    b"/v1/score": _JSON,
    b"/v1/rerank": _JSON,
    b"/v1/audio/speech": _JSON,
    b"/v1/audio/transcriptions": Route("multipart"),
    b"/v1/audio/translations": Route("multipart"),
    b"/tokenize": _JSON,
    b"/detokenize": _JSON,
}
_MODELS = Route("models")
_MODELS_PATH: Final = b"/v1/models"
REALTIME_PATH: Final = b"/v1/realtime"
_REALTIME = Route("realtime")


def find_route(method: bytes, path: bytes) -> Route:
    """The route of `path` (no query). Raises ApiError `not_found` or `method_not_allowed` (with Allow)."""
    route = ROUTES.get(path)
    if route is not None:
        if method == b"POST":
            return route
        raise _wrong_method(method, b"POST")
    if path == _MODELS_PATH or path.startswith(_MODELS_PATH + b"/"):
        if method in (b"GET", b"HEAD"):
            return _MODELS
        raise _wrong_method(method, b"GET, HEAD")
    if path == REALTIME_PATH:
        if method == b"GET":
            return _REALTIME
        raise _wrong_method(method, b"GET")
    raise ApiError("not_found", "this path is not served here; the README lists those that are")


def dialect_of(path: bytes) -> Dialect:
    """The error dialect of any path, known or not."""
    route = ROUTES.get(path)
    return route.dialect if route else Dialect.OPENAI


def model_id_of(path: bytes) -> str | None:
    """The id in `/v1/models/{id}` (percent-decoded; ids may contain slashes), None for the list itself."""
    rest = path[len(_MODELS_PATH) :].strip(b"/")
    return unquote_to_bytes(rest).decode("utf-8", "replace") if rest else None


def _wrong_method(method: bytes, allow: bytes) -> ApiError:
    name = method.decode("ascii", "replace")[:20]
    return ApiError("method_not_allowed", f"{name} is not allowed here", headers=[(b"Allow", allow)])
