"""What a request body asks of the model, or why it is refused: parsing and checks in vLLM's order."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from gslb.mock import refusals
from gslb.mock.settings import MockSettings
from gslb.mock.words import token_count


@dataclass(slots=True)
class Ask:
    """One generation request. `prompt` is what the engine reads (bytes), `document` the decoded body.

    `max_tokens` output tokens are made and end for `finish_reason`; 0 for pooling requests.
    """

    api: str
    model: str
    prompt: bytes
    document: dict[str, Any] = field(default_factory=dict)
    prompt_tokens: int = 1
    max_tokens: int = 0
    finish_reason: str = "length"
    is_stream: bool = False
    has_usage: bool = False
    has_continuous_usage: bool = False


def decode_object(body: bytes, content_type: str) -> dict[str, Any]:
    """The JSON object in `body`. Raises Refusal as vLLM's schema layer does.

    A missing content type is refused too: only `application/json` is taken.
    """
    if content_type.split(";", 1)[0].strip().lower() != "application/json":
        raise refusals.invalid("Unsupported Media Type: Only 'application/json' is allowed")
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise _json_refusal(body) from None
    if not isinstance(document, dict):
        kind = f"<{type(document).__name__}>"
        message = "Input should be a valid dictionary or object to extract fields from"
        raise refusals.invalid(
            f"{{'type': 'model_attributes_type', 'loc': 'body', 'msg': '{message}', 'input': '{kind}'}}",
            "body",
        )
    return document


def _json_refusal(body: bytes) -> refusals.Refusal:
    # orjson's messages and positions differ from the standard library's, and vLLM shows the latter's.
    where, reason = 0, "Expecting value"
    try:
        json.loads(body)
    except json.JSONDecodeError as error:
        where, reason = error.pos, error.msg
    except (UnicodeDecodeError, RecursionError):
        reason = "invalid text"
    loc = f"body.{where}"
    return refusals.invalid(
        f"{{'type': 'json_invalid', 'loc': '{loc}', 'msg': 'JSON decode error', "
        f"'input': '<dict of 0 items>', 'ctx': {{'error': '{reason}'}}}}",
        loc,
    )


def read_ask(api: str, document: dict[str, Any], settings: MockSettings) -> Ask:
    """Check `document` as a request of `api` (a key of READERS). Raises Refusal."""
    prompt, budget_key = READERS[api](document)
    model = served_model(document, settings)
    ask = Ask(api=api, model=model, prompt=prompt, document=document)
    # Prompts given as token ids are coded in four bytes each, so this holds for them as well.
    ask.prompt_tokens = token_count(prompt)
    _read_sampling(ask)
    if budget_key:
        _read_budget(ask, budget_key, settings)
    _check_context(ask, settings.max_model_len)
    return ask


def served_model(document: dict[str, Any], settings: MockSettings) -> str:
    """The model that answers: an adapter under its own name, else the first name, whatever alias was asked.

    Raises Refusal for a name that is neither. No name means the first.
    """
    name = document.get("model")
    if name is None or name in settings.models:
        return settings.models[0]
    if isinstance(name, str) and name in settings.loras:
        return name
    raise refusals.unknown_model(str(name), [*settings.models, *settings.loras])


def _read_sampling(ask: Ask) -> None:
    temperature = ask.document.get("temperature")
    if isinstance(temperature, int | float) and temperature < 0:
        value = float(temperature)
        raise refusals.bad_request(f"temperature must be non-negative, got {value}.", "temperature", value)
    n = ask.document.get("n")
    if n is not None and n != 1:
        raise refusals.bad_request(f"this mock makes one choice, n={n} is not possible.", "n", n)
    ask.is_stream = ask.document.get("stream") is True
    options = ask.document.get("stream_options")
    if isinstance(options, dict):
        ask.has_usage = options.get("include_usage") is True
        ask.has_continuous_usage = ask.has_usage and options.get("continuous_usage_stats") is True


def _read_budget(ask: Ask, key: str, settings: MockSettings) -> None:
    value = ask.document.get(key)
    if key == "max_tokens" and ask.api == "chat":
        value = ask.document.get("max_completion_tokens", value)
    if value is None:
        room = settings.max_model_len - ask.prompt_tokens
        ask.max_tokens, ask.finish_reason = max(1, min(settings.default_max_tokens, room)), "stop"
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise refusals.invalid(
            f"{{'type': 'int_type', 'loc': 'body.{key}', 'msg': 'Input should be a valid integer', "
            f"'input': {value!r}}}",
            f"body.{key}",
        )
    if value < 1:
        raise refusals.bad_request(f"{key} must be at least 1, got {value}.", key, value)
    if value > settings.max_model_len:
        raise refusals.bad_request(
            f"{key}={value} cannot be greater than max_model_len={settings.max_model_len}. "
            "Please request fewer output tokens.",
            key,
            value,
        )
    ask.max_tokens = value


def _check_context(ask: Ask, max_model_len: int) -> None:
    limit = f"This model's maximum context length is {max_model_len} tokens. However, "
    if ask.prompt_tokens > max_model_len:
        # vLLM cuts the prompt one past the limit before it counts: the number says "at least".
        least = max_model_len + 1
        raise refusals.bad_request(
            f"{limit}your prompt contains at least {least} input tokens, which exceeds this limit even "
            "without any output tokens. Please reduce the length of the input prompt.",
            "input_tokens",
            least,
        )
    if ask.prompt_tokens + ask.max_tokens > max_model_len:
        raise refusals.bad_request(
            f"{limit}{ask.max_tokens} output tokens were requested for a prompt of {ask.prompt_tokens}. "
            "Please reduce either.",
            "input_tokens",
            ask.prompt_tokens,
        )


def _required(document: dict[str, Any], key: str) -> Any:
    if key not in document:
        loc = f"body.{key}"
        raise refusals.invalid(
            f"{{'type': 'missing', 'loc': '{loc}', 'msg': 'Field required', "
            f"'input': '<dict of {len(document)} items>'}}",
            loc,
        )
    return document[key]


def _wrong_type(key: str, wanted: str, value: object) -> refusals.Refusal:
    loc = f"body.{key}"
    return refusals.invalid(
        f"{{'type': '{wanted}_type', 'loc': '{loc}', 'msg': 'Input should be a valid {wanted}', "
        f"'input': '<{type(value).__name__}>'}}",
        loc,
    )


def messages_prompt(messages: object, key: str = "messages") -> bytes:
    """Messages through the mock's chat template: equal beginnings give equal beginnings."""
    if not isinstance(messages, list):
        raise _wrong_type(key, "list", messages)
    parts = []
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise _wrong_type(f"{key}.{index}", "dictionary", message)
        parts.append(f"<{message.get('role', '')}>".encode())
        parts.append(_content_bytes(message.get("content")))
    return b"".join(parts) + b"<assistant>"


def _content_bytes(content: object) -> bytes:
    if isinstance(content, str):
        return content.encode()
    if isinstance(content, list):
        texts = (part.get("text") if isinstance(part, dict) else None for part in content)
        return b"".join(
            text.encode() if isinstance(text, str) else orjson.dumps(part)
            for text, part in zip(texts, content, strict=True)
        )
    return b"" if content is None else orjson.dumps(content)


def text_prompt(prompt: object, key: str = "prompt") -> bytes:
    """A prompt as text or token ids; a list of one prompt is that prompt. Raises Refusal for more."""
    if isinstance(prompt, str):
        return prompt.encode()
    if not isinstance(prompt, list) or not prompt:
        raise _wrong_type(key, "string", prompt)
    if all(isinstance(token, int) and 0 <= token < 1 << 32 for token in prompt):
        return b"".join(token.to_bytes(4, "big") for token in prompt)
    if len(prompt) > 1:
        raise refusals.bad_request(f"this mock takes one prompt, got {len(prompt)}.", key, len(prompt))
    return text_prompt(prompt[0], key)


def _read_chat(document: dict[str, Any]) -> tuple[bytes, str]:
    prompt = messages_prompt(_required(document, "messages"))
    tools = document.get("tools")
    return (orjson.dumps(tools) + prompt if tools else prompt), "max_tokens"


def _read_completion(document: dict[str, Any]) -> tuple[bytes, str]:
    return text_prompt(_required(document, "prompt")), "max_tokens"


def _read_responses(document: dict[str, Any]) -> tuple[bytes, str]:
    asked = _required(document, "input")
    if isinstance(asked, str):
        asked = [{"role": "user", "content": asked}]
    head = _content_bytes(document.get("instructions"))
    return head + messages_prompt(asked, "input"), "max_output_tokens"


def _read_messages(document: dict[str, Any]) -> tuple[bytes, str]:
    messages = _required(document, "messages")
    _required(document, "max_tokens")
    return _content_bytes(document.get("system")) + messages_prompt(messages), "max_tokens"


def _read_embeddings(document: dict[str, Any]) -> tuple[bytes, str]:
    asked = _required(document, "input")
    texts = asked if isinstance(asked, list) and not all(isinstance(item, int) for item in asked) else [asked]
    return b"".join(text_prompt(text, "input") for text in texts), ""


def _read_score(document: dict[str, Any]) -> tuple[bytes, str]:
    return orjson.dumps([_required(document, "text_1"), _required(document, "text_2")]), ""


def _read_rerank(document: dict[str, Any]) -> tuple[bytes, str]:
    query, documents = _required(document, "query"), _required(document, "documents")
    if not isinstance(documents, list):
        raise _wrong_type("documents", "list", documents)
    return orjson.dumps([query, documents]), ""


READERS: dict[str, Callable[[dict[str, Any]], tuple[bytes, str]]] = {
    "chat": _read_chat,
    "completion": _read_completion,
    "responses": _read_responses,
    "messages": _read_messages,
    "embeddings": _read_embeddings,
    "score": _read_score,
    "rerank": _read_rerank,
}
"""By API: decoded body -> (prompt bytes, name of the member that bounds the output; empty for pooling)."""
