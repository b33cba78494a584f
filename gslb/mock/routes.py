"""Which path is what: the APIs that make tokens, and the paths that only state facts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import orjson

from gslb.mock import answers_plain, faults, metrics, refusals
from gslb.mock.answers import Answer, AnswerMaker, ChatAnswer, CompletionAnswer, Framing
from gslb.mock.answers_named import MessagesAnswer, ResponsesAnswer
from gslb.mock.asks import Ask, decode_object, served_model
from gslb.mock.http1 import JSON_TYPE
from gslb.mock.refusals import Refusal
from gslb.mock.settings import VLLM_VERSION, MockSettings

if TYPE_CHECKING:
    from gslb.mock.connection import RequestRecord
    from gslb.mock.vllm import MockVllm

APIS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completion",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
    "/v1/embeddings": "embeddings",
    "/v1/score": "score",
    "/score": "score",
    "/v1/rerank": "rerank",
    "/rerank": "rerank",
}
"""Paths that give work to the engine -> API."""

ANSWERS: dict[str, AnswerMaker] = {
    "chat": ChatAnswer,
    "completion": CompletionAnswer,
    "responses": ResponsesAnswer,
    "messages": MessagesAnswer,
}

Plain = tuple[bytes | None, bytes]
"""Content type (None: no such header) and body of a 200."""


def api_of(path: str, settings: MockSettings) -> str | None:
    """The API at `path`, or None. Pooling paths do not exist on a server of a generating model."""
    api = APIS.get(path)
    return None if api is None or (api not in ANSWERS and not settings.has_pooling) else api


def answer_for(ask: Ask, framing: Framing) -> Answer | None:
    """How `ask` is answered; None for pooling."""
    maker = ANSWERS.get(ask.api)
    return None if maker is None else maker(ask, framing)


def answer_plain(server: MockVllm, record: RequestRecord, path: str) -> Plain:
    """The answer of a path without engine work. Raises Refusal (404, 405, 400)."""
    methods = PLAIN.get(path)
    if methods is None:
        raise refusals.not_found()
    handler = methods.get(record.method)
    if handler is None:
        raise refusals.method_not_allowed(", ".join(methods))
    return handler(server, record)


def as_anthropic(refusal: Refusal) -> Refusal:
    """`refusal` in the error shape of `/v1/messages`; schema errors stay in vLLM's own shape."""
    error = orjson.loads(refusal.body).get("error")
    if not isinstance(error, dict) or error.get("type") == "Bad Request":
        return refusal
    body = {"type": "error", "error": {"type": error["type"], "message": error["message"]}}
    return Refusal(refusal.status, orjson.dumps(body), refusal.headers, refusal.has_vary)


def _document(record: RequestRecord, server: MockVllm) -> dict[str, object]:
    document = decode_object(record.body, record.header("content-type") or "")
    served_model(document, server.settings)
    return document


def _empty(_server: MockVllm, _record: RequestRecord) -> Plain:
    return None, b""


def _models(server: MockVllm, _record: RequestRecord) -> Plain:
    return JSON_TYPE, answers_plain.models(server.settings, int(server.unix_s()))


def _version(_server: MockVllm, _record: RequestRecord) -> Plain:
    return JSON_TYPE, orjson.dumps({"version": VLLM_VERSION})


def _load(server: MockVllm, _record: RequestRecord) -> Plain:
    # Zero for ever unless vLLM was told to track it: a trap worth keeping.
    is_tracked = server.settings.has_load_tracking
    load = server.driver.running + server.driver.waiting if is_tracked else 0
    return JSON_TYPE, orjson.dumps({"server_load": load})


def _sleeping(_server: MockVllm, _record: RequestRecord) -> Plain:
    return JSON_TYPE, b'{"is_sleeping":false}'


def _metrics(server: MockVllm, _record: RequestRecord) -> Plain:
    return metrics.CONTENT_TYPE, server.metrics_text()


def _tokenize(server: MockVllm, record: RequestRecord) -> Plain:
    return JSON_TYPE, answers_plain.tokenize(_document(record, server), server.settings)


def _detokenize(server: MockVllm, record: RequestRecord) -> Plain:
    return JSON_TYPE, answers_plain.detokenize(_document(record, server))


def _count_tokens(server: MockVllm, record: RequestRecord) -> Plain:
    return JSON_TYPE, answers_plain.count_tokens(_document(record, server))


def _show_faults(server: MockVllm, _record: RequestRecord) -> Plain:
    return JSON_TYPE, orjson.dumps({"faults": [fault.as_json() for fault in server.faults]})


def _set_faults(server: MockVllm, record: RequestRecord) -> Plain:
    try:
        server.set_faults(*faults.parse_faults(orjson.loads(record.body)))
    except (faults.FaultError, orjson.JSONDecodeError) as error:
        raise Refusal(400, refusals.error_body(str(error), "BadRequestError", None, 400)) from None
    return _show_faults(server, record)


def _clear_faults(server: MockVllm, record: RequestRecord) -> Plain:
    server.set_faults()
    return _show_faults(server, record)


def _state(server: MockVllm, _record: RequestRecord) -> Plain:
    return JSON_TYPE, orjson.dumps(server.state())


PLAIN: dict[str, dict[str, Callable[[MockVllm, RequestRecord], Plain]]] = {
    "/health": {"GET": _empty},
    "/ping": {"GET": _empty, "POST": _empty},
    "/version": {"GET": _version},
    "/metrics": {"GET": _metrics},
    "/load": {"GET": _load},
    "/is_sleeping": {"GET": _sleeping},
    "/v1/models": {"GET": _models},
    "/tokenize": {"POST": _tokenize},
    "/detokenize": {"POST": _detokenize},
    "/v1/messages/count_tokens": {"POST": _count_tokens},
    "/mock/faults": {"GET": _show_faults, "POST": _set_faults, "DELETE": _clear_faults},
    "/mock/state": {"GET": _state},
}
"""Path -> method -> handler. `/mock/*` is the mock's own: no vLLM has it."""
