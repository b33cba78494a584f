"""What the server tests share: running mocks, the usual questions, time that does not come."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from gslb.mock.settings import MockSettings
from gslb.mock.vllm import MockVllm
from tests.mock.raw import request_bytes

HOUR_MS = 3.6e6
ASK: dict[str, Any] = {"model": "m", "prompt": "Hello world", "max_tokens": 3}
STREAM = {**ASK, "stream": True}


def ask_bytes(document: dict[str, Any], *headers: tuple[str, str], is_closing: bool = False) -> bytes:
    return request_bytes("POST", "/v1/completions", json.dumps(document).encode(), headers, is_closing=is_closing)


class Mocks:
    """Starts mocks and stops them at the end of a test."""

    def __init__(self) -> None:
        self.running: list[MockVllm] = []

    async def __call__(self, **settings: Any) -> MockVllm:
        plain: dict[str, Any] = {"models": ["m"], "itl_ms": 1.0, "prefill_ms_per_token": 0.0}
        mock = MockVllm(MockSettings(**{**plain, **settings}))
        await mock.start()
        self.running.append(mock)
        return mock


async def is_refused(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except (ConnectionRefusedError, ConnectionResetError):
        # Reset: the connection was in the listener's queue when that was closed.
        return True
    writer.close()
    return False
