"""Leaving a port to others: nothing begun is lost, nothing new begins."""

from __future__ import annotations

import asyncio
import socket

import pytest

from gslb.proxy.handover import (
    accept_all,
    close_for_others,
    inode_of,
    is_listened_on,
    others_listen,
    refuse_handshakes,
)  # fmt: skip
from tests.support.raw_client import RawClient, Tap, until


def listening(port: int = 0) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(("127.0.0.1", port))
    sock.listen()
    sock.setblocking(False)
    return sock


def test_others_on_the_same_address_are_seen() -> None:
    with listening() as mine:
        port = mine.getsockname()[1]
        own = [inode_of(mine.fileno())]
        assert is_listened_on(port)
        assert not others_listen(own)
        with listening(port):
            assert others_listen(own)
        assert not others_listen(own)
        assert not others_listen([])
    assert not is_listened_on(port)


def test_what_has_come_is_accepted_and_nothing_begins_after() -> None:
    with listening() as sock, socket.socket() as early, socket.socket() as late:
        early.connect(sock.getsockname())
        refuse_handshakes(sock)
        late.settimeout(0.2)
        with pytest.raises(TimeoutError):  # not told no: its system tries again, and then finds another listener
            late.connect(sock.getsockname())
        (accepted,) = accept_all(sock)
        with accepted:
            assert accepted.getpeername() == early.getsockname()
        assert accept_all(sock) == []


async def test_a_server_closes_with_its_last_connections_served() -> None:
    loop = asyncio.get_running_loop()
    taps: list[Tap] = []

    def tap() -> Tap:
        taps.append(Tap())
        return taps[-1]

    server = await loop.create_server(tap, "127.0.0.1", 0, reuse_port=True)
    port = server.sockets[0].getsockname()[1]
    with listening(port) as other:
        clients = [await RawClient.connect(port) for _ in range(20)]
        await close_for_others(server, tap)
        others = accept_all(other)
        assert len(taps) + len(others) == 20
        for client in clients:
            client.write(b"hello")
        await until(lambda: sum(tap.received == b"hello" for tap in taps) == 20 - len(others))
        late = await RawClient.connect(port)
        assert len(accept_all(other)) == 1
        for one in (*clients, late, *taps):
            one.close()
        for sock in others:
            sock.close()
