"""What a request body asks, read without keeping it: model, stream, and how long the prompt is about."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

from gslb.errors import ApiError

_BYTES_PER_TOKEN: Final = 4
"""English prose in common BPE vocabularies; other scripts have more tokens a character, but more bytes too."""
_PER_MESSAGE_TOKENS: Final = 4
MAX_MODEL_CHARS: Final = 256
_MAX_LEVELS: Final = 8
"""Prompts nest no deeper (lists of messages of parts); what does is not counted."""


class BodyFacts:
    """What a body asks: `prompt_tokens` is an estimate, `tree` the parsed body (None: a form), not to be kept."""

    __slots__ = ("is_stream", "model", "prompt_tokens", "tree")

    def __init__(
        self, model: str, is_stream: bool, prompt_tokens: int, tree: Mapping[str, Any] | None = None
    ) -> None:
        self.model = model
        self.is_stream = is_stream
        self.prompt_tokens = prompt_tokens
        self.tree = tree


def read_json_facts(body: bytes) -> BodyFacts:
    """Facts of a JSON body. Raises ApiError `bad_request` naming what is wrong, never quoting content."""
    try:
        tree = orjson.loads(body)
    except orjson.JSONDecodeError as fault:
        raise ApiError("bad_request", f"the request body is no valid JSON (at byte {fault.pos})") from None
    if not isinstance(tree, dict):
        raise ApiError("bad_request", "the request body must be a JSON object")
    model = tree.get("model")
    if model is None:
        raise ApiError("bad_request", "the request names no model", param="model")
    if not isinstance(model, str) or not model or len(model) > MAX_MODEL_CHARS:
        raise ApiError("bad_request", "model must be a non-empty string of at most 256 characters", param="model")
    return BodyFacts(model, tree.get("stream") is True, _prompt_tokens(tree), tree)


def _prompt_tokens(tree: Mapping[str, Any]) -> int:
    messages = tree.get("messages")
    if isinstance(messages, list):
        tokens = 0
        for message in messages:
            content = message.get("content") if isinstance(message, dict) else None
            tokens += _PER_MESSAGE_TOKENS + (_text_tokens(content) if content else 0)
            if content is None and isinstance(message, dict) and "tool_calls" in message:
                tokens += _json_tokens(message["tool_calls"])
        if (system := tree.get("system")) is not None:
            tokens += _text_tokens(system)
        if (tools := tree.get("tools")) is not None:
            tokens += _json_tokens(tools)
        return tokens
    for name in ("prompt", "input", "text_1", "query"):
        if (value := tree.get(name)) is not None:
            return _text_tokens(value)
    return 0


def _text_tokens(value: Any, levels: int = _MAX_LEVELS) -> int:
    """Tokens of a string, a list of token ids, or nested lists and parts of those; pictures count nothing."""
    if isinstance(value, str):
        length = len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
        return length // _BYTES_PER_TOKEN + 1
    if not levels:
        return 0
    if isinstance(value, list):
        if value and isinstance(value[0], int):
            return len(value)
        return sum(_text_tokens(part, levels - 1) for part in value)
    if isinstance(value, dict):
        inner = value.get("text", value.get("content"))
        return _text_tokens(inner, levels - 1) if inner is not None else 0
    return 0


def _json_tokens(value: Any) -> int:
    """Tokens of what a chat template writes as JSON: tools, and calls of them."""
    try:
        return len(orjson.dumps(value)) // _BYTES_PER_TOKEN
    except TypeError:  # nested deeper than orjson writes: no tools
        return 0


# --- model alias: rewrite one value, touch nothing else ------------------------------------------

# Possessive: a string of megabytes must not leave a way back at every byte.
_JSON_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_TOKEN = re.compile(rb"[ \t\r\n]*(" + _JSON_STRING + rb"|[{}\[\],:]|[^ \t\r\n{}\[\],:\"]+)")


def replace_model(body: bytes, model: str) -> bytes:
    """`body` with the value of its top-level `model` replaced, every other byte as it was.

    `body` must have passed `read_json_facts`. When the key occurs twice each value is replaced, so that
    whichever the engine reads is the one that was routed.
    """
    value = orjson.dumps(model)
    pieces: list[bytes] = []
    done = position = depth = 0
    wants_key = False
    pending = False
    while (match := _TOKEN.match(body, position)) is not None:
        token = match[1]
        position = match.end()
        if token in (b"{", b"["):
            depth += 1
            wants_key = depth == 1
        elif token in (b"}", b"]"):
            depth -= 1
        elif depth == 1 and token == b",":
            wants_key = True
        elif depth == 1 and wants_key and token[:1] == b'"':
            pending = orjson.loads(token) == "model"
            wants_key = False
        elif depth == 1 and pending and token != b":":
            pieces += (body[done : match.start(1)], value)
            done = position
            pending = False
    pieces.append(body[done:])
    return b"".join(pieces)


# --- multipart (audio) -----------------------------------------------------------------------------

_BOUNDARY = re.compile(rb'boundary="?([0-9A-Za-z\'()+_,\-./:=? ]{1,70})"?', re.IGNORECASE)
_NAME = re.compile(rb'name="?([^";\r\n]*)"?', re.IGNORECASE)


def read_multipart_facts(body: bytes, content_type: bytes) -> BodyFacts:
    """Facts of a multipart form: its `model` and `stream` fields. Raises ApiError `bad_request`."""
    boundary = _BOUNDARY.search(content_type)
    if boundary is None:
        raise ApiError("bad_request", "the multipart body has no boundary in its Content-Type")
    fields: dict[bytes, bytes] = {}
    for part in body.split(b"--" + boundary[1])[1:-1]:
        head, blank, value = part.partition(b"\r\n\r\n")
        name = _NAME.search(head.partition(b"form-data")[2])
        if blank and name is not None and name[1] in (b"model", b"stream"):
            fields[name[1]] = value.removesuffix(b"\r\n")
    model = fields.get(b"model", b"")
    if not model or len(model) > MAX_MODEL_CHARS:
        raise ApiError("bad_request", "the form names no model", param="model")
    return BodyFacts(model.decode("utf-8", "replace"), fields.get(b"stream") == b"true", 0)


# --- /v1/models ------------------------------------------------------------------------------------


def merge_models(
    cards: Iterable[Mapping[str, Any]], aliases: Mapping[str, str], only: frozenset[str] | None = None
) -> list[dict[str, Any]]:
    """One entry per model id over all endpoints, sorted by id; unknown members are kept.

    Conflicting `max_model_len`: the smallest (what every region can serve); `created`: the earliest, so that
    it is stable. Aliases appear under their own id. `only` limits ids to what a tenant may use.
    """
    merged: dict[str, dict[str, Any]] = {}
    for card in cards:
        name = str(card["id"])
        entry = merged.get(name)
        if entry is None:
            merged[name] = _complete(card)
            continue
        for member, value in card.items():
            known = entry.get(member)
            if member in ("max_model_len", "created") and isinstance(value, int):
                entry[member] = min(known, value) if isinstance(known, int) and known > 0 else value
            elif known is None:
                entry[member] = value
    for alias, target in aliases.items():
        if target in merged and alias not in merged:
            merged[alias] = {**merged[target], "id": alias}
    return [merged[name] for name in sorted(merged) if only is None or name in only]


def _complete(card: Mapping[str, Any]) -> dict[str, Any]:
    entry = dict(card)
    entry["object"] = "model"
    if not isinstance(entry.get("created"), int):
        entry["created"] = 0
    entry.setdefault("owned_by", "vllm")
    return entry


# --- usage ------------------------------------------------------------------------------------------

_USAGE_KEY = b'"usage"'
_VLLM_USAGE = re.compile(
    rb'"usage":\{"prompt_tokens":([0-9]{1,12}),"total_tokens":[0-9]{1,12},"completion_tokens":([0-9]{1,12})'
    rb'(?:,"prompt_tokens_details":\{"cached_tokens":([0-9]{1,12})|(?!,"prompt_tokens_details":\{))[,}]'
)
"""As vLLM writes it (vllm-captures), found in one step; every other order takes several."""
_BACKSLASH = 0x5C
_OBJECT = re.compile(rb"\s*:\s*(\{(?:[^{}]++|\{[^{}]*+\})*+\})")
"""A usage has no text in it, and its details go one level deep."""
_OPENS = re.compile(rb"\s*:\s*\{")
_NUMBER = re.compile(rb"\s*:\s*([0-9]{1,12})(?![0-9])")

Usage = tuple[int | None, int | None, int | None]
NO_USAGE: Usage = (None, None, None)


def read_usage(tail: bytes) -> Usage:
    """(prompt tokens, completion tokens, those of the prompt that were cached) from the last `usage` object in the
    end of an answer; None for what it does not tell.

    Inside a JSON string the quotes would be escaped, so an answer's text cannot pose as usage.
    """
    position = len(tail)
    while (position := tail.rfind(_USAGE_KEY, 0, position)) >= 0:
        if position and tail[position - 1] == _BACKSLASH:
            continue
        if (known := _VLLM_USAGE.match(tail, position)) is not None:
            cached = known[3]
            return int(known[1]), int(known[2]), None if cached is None else int(cached)
        if (found := _OBJECT.match(tail, position + len(_USAGE_KEY))) is not None:
            usage = found[1]
            return (
                _count(usage, b'"prompt_tokens"', b'"input_tokens"'),
                _count(usage, b'"completion_tokens"', b'"output_tokens"'),
                _count(usage, b'"cached_tokens"'),
            )
        if _OPENS.match(tail, position + len(_USAGE_KEY)) is not None:
            return NO_USAGE  # cut
    return NO_USAGE


def _count(usage: bytes, *names: bytes) -> int | None:
    for name in names:
        at = usage.find(name)
        if at >= 0:
            number = _NUMBER.match(usage, at + len(name))
            return int(number[1]) if number else None
    return None
