"""The load must notice every wrong answer: a benchmark that counts failures as work flatters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from benchmarks.load import CLIENT_ADDRESSES, Load
from benchmarks.processes import free_port
from benchmarks.upstream import DONE, JSON_BYTES, TOKEN_EVENT, Server

_JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n"
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
_CHUNK = b"be\r\n" + TOKEN_EVENT + b"\r\n"


@asynccontextmanager
async def _listening(protocol: Callable[[], asyncio.Protocol]) -> AsyncIterator[int]:
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


class _Canned(asyncio.Protocol):
    """Answers whatever comes with the same bytes, then closes."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(self._answer)
        self._transport.close()


async def _told(answer: bytes, **command: Any) -> dict[str, Any]:
    async with _listening(lambda: _Canned(answer)) as port:
        return await Load().obey({"port": port, "count": 3, "connections": 2, "limit_s": 10, **command})


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n", "status 503"),
        (_JSON_HEAD % (JSON_BYTES - 1) + b"x" * (JSON_BYTES - 1), "bytes instead of"),
        (_JSON_HEAD % JSON_BYTES + b"x", "ended within an answer"),
        (b"", "ended within an answer"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not HTTP"),
    ],
)
async def test_wrong_whole_answers_are_errors(answer: bytes, what: str) -> None:
    told = await _told(answer, do="json")
    assert (told["good"], told["errors"]) == (0, 3)
    assert what in told["first_error"]


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (_STREAM_HEAD + _CHUNK + b"0\r\n\r\n", "bytes instead of"),
        (_STREAM_HEAD + _CHUNK + b"e\r\n" + b"x" * len(DONE) + b"\r\n0\r\n\r\n", "without its [DONE]"),
        (_STREAM_HEAD + _CHUNK + b"e\r\n" + DONE + b"\r\n", "ended within an answer"),
    ],
)
async def test_wrong_streams_are_errors(answer: bytes, what: str) -> None:
    told = await _told(answer, do="streams", events=1)
    assert (told["good"], told["errors"]) == (0, 3)
    assert what in told["first_error"]


async def test_no_connection_is_an_error() -> None:
    told = await Load().obey({"do": "json", "port": free_port(), "count": 3, "connections": 2})
    assert told["errors"] == 3
    assert told["first_error"].startswith("no connection")


async def test_a_proxy_may_close_between_answers() -> None:
    whole = _JSON_HEAD % JSON_BYTES + b"x" * JSON_BYTES
    told = await _told(whole.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1), do="json")
    assert (told["good"], told["errors"]) == (3, 0)


async def test_good_answers_are_counted() -> None:
    load = Load()
    async with _listening(Server()) as port:
        whole = await load.obey({"do": "json", "port": port, "count": 30, "connections": 4})
        streams = await load.obey({"do": "streams", "port": port, "count": 5, "connections": 2, "events": 7})
        opened = await load.obey({"do": "open", "port": port, "count": 4, "events": 3, "events_per_s": 100})
        paced = await load.obey({"do": "finish"})
    assert (whole["good"], whole["errors"], whole["bytes"]) == (30, 0, 30 * JSON_BYTES)
    assert (streams["good"], streams["errors"], streams["events"]) == (5, 0, 35)
    assert opened["errors"] == 0
    assert (paced["good"], paced["errors"], paced["events"]) == (4, 0, 12)


async def test_commands_out_of_turn_are_refused() -> None:
    with pytest.raises(ValueError, match="no such command"):
        await Load().obey({"do": "look"})


def test_clients_come_from_several_countries() -> None:
    assert len(set(CLIENT_ADDRESSES)) == len(CLIENT_ADDRESSES) >= 8
