"""Answers in the words of a recorded vLLM 0.32: member for member, in its order.

An `Answer` knows one request and how its API speaks. Streams: `greeting()` at once, `opening()` with the
first token, then a `delta()` per token, `ending()` with the last. Not streamed: `whole()`. Every event is
complete (it ends with an empty line); the server puts each in an HTTP chunk of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from gslb.mock.asks import Ask

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE_COMMENT = b": keep-alive\n\n"

_PLACEHOLDER = "here comes the text"
_PLACEHOLDER_JSON = orjson.dumps(_PLACEHOLDER)


@dataclass(slots=True)
class Framing:
    """What every answer of one request repeats. `request_id` goes behind the API's prefix."""

    request_id: str
    created_s: int
    fingerprint: str
    has_prompt_tokens_details: bool = False


class Answer(Protocol):
    """One API's way to answer one request. `made` counts output tokens so far, texts start at the last call."""

    def greeting(self) -> list[bytes]:
        """Events that go out at once, while the request may still wait."""

    def opening(self) -> list[bytes]:
        """Events before the first token's own."""

    def delta(self, text: str, made: int, /) -> bytes:
        """The event of one more piece of text that is not the last."""

    def ending(self, text: str, made: int, finish_reason: str, /) -> list[bytes]:
        """The last piece of text and everything that follows it."""

    def whole(self, text: str, made: int, finish_reason: str, cached_tokens: int, /) -> bytes:
        """The JSON body of the answer that is not streamed."""


def event(document: dict[str, Any]) -> bytes:
    """One SSE event without a name."""
    return b"data: " + orjson.dumps(document) + b"\n\n"


def usage(ask: Ask, made: int) -> dict[str, Any]:
    """The three counts, in vLLM's order."""
    return {
        "prompt_tokens": ask.prompt_tokens,
        "total_tokens": ask.prompt_tokens + made,
        "completion_tokens": made,
    }


def whole_usage(ask: Ask, framing: Framing, made: int, cached_tokens: int) -> dict[str, Any]:
    """The usage object of an answer that is not streamed."""
    details = None
    if framing.has_prompt_tokens_details:
        details = {"cached_tokens": cached_tokens, "created_cache_tokens": None, "multimodal_tokens": None}
    return {**usage(ask, made), "prompt_tokens_details": details, "completion_tokens_details": None}


class _OpenAiStream:
    """What chat and text completions share: chunks of one object around a list of one choice."""

    prefix = ""
    chunk_object = ""

    def __init__(self, ask: Ask, framing: Framing) -> None:
        self.ask = ask
        self.framing = framing
        self.answer_id = f"{self.prefix}-{framing.request_id}"
        # All deltas of a stream but their text are alike, unless each carries usage: made once, not per token.
        self._mould: tuple[bytes, bytes] | None = None

    def greeting(self) -> list[bytes]:
        return []

    def opening(self) -> list[bytes]:
        return []

    def delta(self, text: str, made: int) -> bytes:
        if self.ask.has_continuous_usage:
            return event(self._chunk([self._choice(text, None)], made))
        if self._mould is None:
            before, _, behind = event(self._chunk([self._choice(_PLACEHOLDER, None)], made)).rpartition(
                _PLACEHOLDER_JSON
            )
            self._mould = before, behind
        return self._mould[0] + orjson.dumps(text) + self._mould[1]

    def ending(self, text: str, made: int, finish_reason: str) -> list[bytes]:
        last = self._chunk([self._choice(text, finish_reason)], made)
        if not self.ask.has_usage:
            last["system_fingerprint"] = self.framing.fingerprint
            return [event(last), DONE]
        totals = self._head([])
        totals["usage"] = usage(self.ask, made)
        totals["system_fingerprint"] = self.framing.fingerprint
        return [event(last), event(totals), DONE]

    def _head(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.answer_id,
            "object": self.chunk_object,
            "created": self.framing.created_s,
            "model": self.ask.model,
            "choices": choices,
        }

    def _chunk(self, choices: list[dict[str, Any]], made: int) -> dict[str, Any]:
        chunk = self._head(choices)
        if self.ask.has_continuous_usage:
            chunk["usage"] = {**usage(self.ask, made), "completion_tokens_details": None}
        return chunk

    def _choice(self, text: str, finish_reason: str | None) -> dict[str, Any]:
        raise NotImplementedError


class ChatAnswer(_OpenAiStream):
    """`/v1/chat/completions`."""

    prefix = "chatcmpl"
    chunk_object = "chat.completion.chunk"

    def opening(self) -> list[bytes]:
        """The role-only chunk."""
        choice = {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        return [event({**self._chunk([choice], 0), "prompt_token_ids": None, "prompt_text": None})]

    def whole(self, text: str, made: int, finish_reason: str, cached_tokens: int) -> bytes:
        message = {
            "role": "assistant",
            "content": text,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": None,
        }
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": finish_reason,
            "stop_reason": None,
            "token_ids": None,
            "routed_experts": None,
        }
        document = {
            **self._head([choice]),
            "object": "chat.completion",
            "service_tier": None,
            "system_fingerprint": self.framing.fingerprint,
            "usage": whole_usage(self.ask, self.framing, made, cached_tokens),
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "prompt_text": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }
        return orjson.dumps(document)

    def _choice(self, text: str, finish_reason: str | None) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": 0,
            "delta": {"content": text},
            "logprobs": None,
            "finish_reason": finish_reason,
        }
        if finish_reason is not None:
            choice["stop_reason"] = None
        choice["token_ids"] = None
        return choice


class CompletionAnswer(_OpenAiStream):
    """`/v1/completions`."""

    prefix = "cmpl"
    chunk_object = "text_completion"

    def whole(self, text: str, made: int, finish_reason: str, cached_tokens: int) -> bytes:
        choice = {
            "index": 0,
            "text": text,
            "logprobs": None,
            "finish_reason": finish_reason,
            "stop_reason": None,
            "token_ids": None,
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "routed_experts": None,
        }
        document = {
            **self._head([choice]),
            "service_tier": None,
            "system_fingerprint": self.framing.fingerprint,
            "usage": whole_usage(self.ask, self.framing, made, cached_tokens),
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }
        return orjson.dumps(document)

    def _choice(self, text: str, finish_reason: str | None) -> dict[str, Any]:
        return {
            "index": 0,
            "text": text,
            "logprobs": None,
            "finish_reason": finish_reason,
            "stop_reason": None,
            "prompt_token_ids": None,
            "token_ids": None,
        }


AnswerMaker = Callable[[Ask, Framing], Answer]
