"""Answers of the APIs whose stream events carry names: OpenAI Responses and Anthropic Messages.

The Responses stream and the Messages body are as recorded from vLLM 0.32. The Messages stream was not
recorded; it follows Anthropic's published event order, ended by the `[DONE]` that vLLM adds.
"""

from __future__ import annotations

from typing import Any

import orjson

from gslb.mock.answers import DONE, Framing
from gslb.mock.asks import Ask


def _named(name: str, document: dict[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), orjson.dumps(document))


class ResponsesAnswer:
    """`/v1/responses`."""

    def __init__(self, ask: Ask, framing: Framing) -> None:
        self.ask = ask
        self.framing = framing
        self.item_id = f"msg_{framing.request_id}"
        self._sequence_number = -1
        self._said: list[str] = []

    def greeting(self) -> list[bytes]:
        """Created and in progress: sent before the engine has done anything."""
        return [
            self._event("response.created", {"response": self._response("in_progress", None, None)}),
            self._event("response.in_progress", {"response": self._response("in_progress", None, None)}),
        ]

    def opening(self) -> list[bytes]:
        """The output item and its text part come into being."""
        item: dict[str, Any] = {
            "id": self.item_id,
            "content": [],
            "role": "assistant",
            "status": "in_progress",
            "type": "message",
            "phase": None,
        }
        part = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
        return [
            self._event("response.output_item.added", {"item": item, "output_index": 0}),
            self._event(
                "response.content_part.added",
                {"content_index": 0, "item_id": self.item_id, "output_index": 0, "part": part},
            ),
        ]

    def delta(self, text: str, _made: int) -> bytes:
        """The count of tokens does not show in this API's deltas."""
        self._said.append(text)
        where = {"item_id": self.item_id, "logprobs": [], "output_index": 0}
        return self._event("response.output_text.delta", {"content_index": 0, "delta": text, **where})

    def ending(self, text: str, made: int, finish_reason: str) -> list[bytes]:
        last = self.delta(text, made)
        said = "".join(self._said)
        item = self._item(said)
        where = {"content_index": 0, "item_id": self.item_id}
        return [
            last,
            self._event("response.output_text.done", {**where, "logprobs": [], "output_index": 0}, text=said),
            self._event("response.content_part.done", {**where, "output_index": 0, "part": item["content"][0]}),
            self._event("response.output_item.done", {"item": item, "output_index": 0}),
            self._event("response.completed", {"response": self._finished(said, made, finish_reason, 0)}),
        ]

    def whole(self, text: str, made: int, finish_reason: str, cached_tokens: int) -> bytes:
        return orjson.dumps(self._finished(text, made, finish_reason, cached_tokens))

    def _event(self, name: str, members: dict[str, Any], **behind: Any) -> bytes:
        self._sequence_number += 1
        return _named(name, {**members, "sequence_number": self._sequence_number, **behind, "type": name})

    def _item(self, text: str) -> dict[str, Any]:
        return {
            "id": self.item_id,
            "content": [{"annotations": [], "text": text, "type": "output_text", "logprobs": None}],
            "role": "assistant",
            "status": "completed",
            "type": "message",
            "phase": None,
        }

    def _finished(self, text: str, made: int, finish_reason: str, cached_tokens: int) -> dict[str, Any]:
        totals = {
            "input_tokens": self.ask.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": cached_tokens,
                "cache_write_tokens": 0,
                "input_tokens_per_turn": [],
                "cached_tokens_per_turn": [],
            },
            "output_tokens": made,
            "output_tokens_details": {
                "reasoning_tokens": 0,
                "tool_output_tokens": 0,
                "output_tokens_per_turn": [],
                "tool_output_tokens_per_turn": [],
            },
            "total_tokens": self.ask.prompt_tokens + made,
        }
        status = "incomplete" if finish_reason == "length" else "completed"
        return self._response(status, self._item(text), totals)

    def _response(self, status: str, item: dict[str, Any] | None, totals: dict[str, Any] | None) -> dict[str, Any]:
        asked = self.ask.document.get
        return {
            "id": f"resp_{self.framing.request_id}",
            "created_at": self.framing.created_s,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": asked("instructions"),
            "metadata": asked("metadata"),
            "model": self.ask.model,
            "object": "response",
            "output": [] if item is None else [item],
            "parallel_tool_calls": True,
            "temperature": float(asked("temperature") or 0.0),
            "tool_choice": "none",
            "tools": [],
            "top_p": float(asked("top_p") or 1.0),
            "background": False,
            "max_output_tokens": self.ask.max_tokens,
            "max_tool_calls": None,
            "previous_response_id": None,
            "prompt": None,
            "reasoning": None,
            "service_tier": "auto",
            "status": status,
            "text": None,
            "top_logprobs": None,
            "truncation": "disabled",
            "usage": totals,
            "user": asked("user"),
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "input_messages": None,
            "output_messages": None,
        }


class MessagesAnswer:
    """`/v1/messages` (Anthropic)."""

    def __init__(self, ask: Ask, framing: Framing) -> None:
        self.ask = ask
        self.answer_id = f"chatcmpl-{framing.request_id}"

    def greeting(self) -> list[bytes]:
        """Nothing: this API speaks with the first token."""
        return []

    def opening(self) -> list[bytes]:
        """The message and its text block come into being."""
        message = {
            "id": self.answer_id,
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": self.ask.model,
            "usage": {"input_tokens": self.ask.prompt_tokens, "output_tokens": 0},
        }
        block = {"index": 0, "content_block": {"type": "text", "text": ""}}
        return [
            _named("message_start", {"type": "message_start", "message": message}),
            _named("content_block_start", {"type": "content_block_start", **block}),
        ]

    def delta(self, text: str, _made: int) -> bytes:
        """The count of tokens does not show in this API's deltas."""
        piece = {"type": "text_delta", "text": text}
        return _named("content_block_delta", {"type": "content_block_delta", "index": 0, "delta": piece})

    def ending(self, text: str, made: int, finish_reason: str) -> list[bytes]:
        final = {
            "type": "message_delta",
            "delta": {"stop_reason": _stop_reason(finish_reason)},
            "usage": {"input_tokens": self.ask.prompt_tokens, "output_tokens": made},
        }
        return [
            self.delta(text, made),
            _named("content_block_stop", {"type": "content_block_stop", "index": 0}),
            _named("message_delta", final),
            _named("message_stop", {"type": "message_stop"}),
            DONE,
        ]

    def whole(self, text: str, made: int, finish_reason: str, _cached_tokens: int) -> bytes:
        """What came from the prefix cache does not show in this API."""
        document = {
            "id": self.answer_id,
            "type": "message",
            "role": "assistant",
            "content": [{"type": "text", "text": text}],
            "model": self.ask.model,
            "stop_reason": _stop_reason(finish_reason),
            "usage": {"input_tokens": self.ask.prompt_tokens, "output_tokens": made},
        }
        return orjson.dumps(document)


def _stop_reason(finish_reason: str) -> str:
    return "max_tokens" if finish_reason == "length" else "end_turn"
