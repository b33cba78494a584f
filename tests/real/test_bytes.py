"""What comes through gslb is, byte for byte, what the server says to a direct caller."""

from __future__ import annotations

import http.client
import json
import re
from dataclasses import dataclass
from typing import Any

import pytest

from tests.real.fleet import FRANKFURT, Figures, Fleet, headers_of
from tests.real.processes import MODEL, MODEL_LEN

PLAIN = {"model": MODEL, "temperature": 0, "max_tokens": 40, "ignore_eos": True}
CHAT = {**PLAIN, "messages": [{"role": "user", "content": "Wie weit ist es bis Zürich? 🚂"}]}
TEXT = {**PLAIN, "prompt": "Hello world"}
USAGE = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
TRIES = 20
"""Pairs of calls, until one agrees in every byte: an engine ahead of its reader joins tokens into one event."""


@dataclass(frozen=True)
class Raw:
    """An answer without its framing."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def normal(self) -> bytes:
        """The body with the second it was made in taken out."""
        return re.sub(rb'"created":\d+', b'"created":0', self.body)

    @property
    def text(self) -> str:
        """All the text of a stream, however it was cut into events."""
        events = re.findall(rb"^data: (\{.*\})$", self.body, re.MULTILINE)
        choices = [choice for event in events for choice in json.loads(event)["choices"]]
        return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)


def ask(port: int, path: str, body: dict[str, Any]) -> Raw:
    """POST over a fresh connection, with a request id of the caller's, pinned to eu for gslb."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    fields = {"Content-Type": "application/json", "X-Request-Id": "same-id-0001", **headers_of(FRANKFURT, "eu")}
    try:
        connection.request("POST", path, json.dumps(body).encode(), fields)
        answer = connection.getresponse()
        return Raw(answer.status, answer.headers, answer.read())
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/chat/completions", {**CHAT, "stream": True}),
        ("/v1/chat/completions", {**CHAT, **USAGE}),
        ("/v1/completions", TEXT),
        ("/v1/completions", {**TEXT, "stream": True}),
        ("/v1/completions", {**TEXT, **USAGE}),
        ("/tokenize", {"model": MODEL, "prompt": "Grüße aus Zürich"}),
        ("/v1/completions", {**TEXT, "prompt": "x " * MODEL_LEN}),
        ("/v1/chat/completions", {**CHAT, "temperature": -1}),
    ],
    ids=[
        "chat", "chat-stream", "chat-stream-usage", "completion", "completion-stream", "completion-stream-usage",
        "tokenize", "error-too-long", "error-bad-value",
    ],
)  # fmt: skip
def test_payload_equals_a_direct_call(fleet: Fleet, figures: Figures, path: str, body: dict[str, Any]) -> None:
    answer, pairs = agreed(fleet, path, body)
    kind = " stream" if body.get("stream") else ""
    figures.note(f"bytes {path}{kind}", f"{len(answer.body)} bytes equal, status {answer.status}, pair {pairs}")
    if kind:
        assert answer.body.endswith(b"data: [DONE]\n\n")


def agreed(fleet: Fleet, path: str, body: dict[str, Any]) -> tuple[Raw, int]:
    """The answer through gslb once it equals the direct one, and how many pairs of calls that took."""
    for pairs in range(1, TRIES + 1):
        direct, through = ask(fleet.servers["eu"].port, path, body), ask(fleet.gslb.port, path, body)
        assert through.status == direct.status
        assert through.headers["content-type"] == direct.headers["content-type"]
        assert through.headers.get_all("x-gslb-region") == ["eu"]
        assert through.headers.get_all("x-request-id") == ["same-id-0001"]
        if through.normal == direct.normal:
            return through, pairs
        assert body.get("stream"), f"{direct.body!r}\n{through.body!r}"
        assert through.text == direct.text
    pytest.fail(f"not once the same events in {TRIES} pairs:\n{direct.body!r}\n{through.body!r}")
