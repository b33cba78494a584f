"""Giving a listening port over to another process without losing a connection.

Several processes of one user may listen on one port (SO_REUSEPORT); the kernel spreads new connections over them.
Its trap: when one of them closes, the connections it has not accepted yet, and those whose handshake is not over,
are reset. So the leaving one first lets no further handshake begin, accepts what is there, and only then closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import socket
import struct
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

HANDSHAKE_S = 0.25
"""How long handshakes under way get to end: a round trip to the far side of the globe."""

_LISTEN = "0A"
_SO_ATTACH_FILTER = 26
# Classic BPF over the TCP header (linux/filter.h): drop what has SYN but not ACK set (RFC 9293 3.1).
_DROP_HANDSHAKES = (
    (0x30, 0, 0, 13),  # load the byte with the flags
    (0x54, 0, 0, 0x12),  # keep SYN and ACK
    (0x15, 0, 1, 0x02),  # SYN alone?
    (0x06, 0, 0, 0),  # drop
    (0x06, 0, 0, 0xFFFFFFFF),  # pass
)


def refuse_handshakes(sock: socket.socket) -> None:
    """Let no new handshake begin on a listening socket; those under way go on.

    A client whose SYN is dropped sends it again after a second, and finds another listener. Does nothing where the
    system has no such filter: then connections may be lost at the close.
    """
    program = b"".join(struct.pack("HBBI", *step) for step in _DROP_HANDSHAKES)
    buffer = ctypes.create_string_buffer(program)
    sock_fprog = struct.pack("HL", len(_DROP_HANDSHAKES), ctypes.addressof(buffer))
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, sock_fprog)


async def close_for_others(server: asyncio.Server, protocol: Any) -> None:
    """Close a server whose port others listen on, after every connection that came its way has a protocol, made
    by calling `protocol`."""
    loop = asyncio.get_running_loop()
    sockets = [socket.socket(fileno=os.dup(sock.fileno())) for sock in server.sockets]
    for sock in sockets:
        sock.setblocking(False)
        refuse_handshakes(sock)
    await asyncio.sleep(HANDSHAKE_S)
    last = [connection for sock in sockets for connection in accept_all(sock)]
    server.close()
    for sock in sockets:
        sock.close()
    for connection in last:
        await loop.connect_accepted_socket(protocol, connection)


def accept_all(sock: socket.socket) -> list[socket.socket]:
    """The connections that wait to be accepted on a non-blocking listening socket."""
    waiting: list[socket.socket] = []
    while True:
        try:
            connection, _ = sock.accept()
        except ConnectionError:
            continue  # that one left again
        except OSError:
            return waiting
        connection.setblocking(False)
        waiting.append(connection)


def inode_of(descriptor: int) -> int:
    """What identifies a socket in /proc/net."""
    return os.fstat(descriptor).st_ino


def is_listened_on(port: int) -> bool:
    """True when anybody listens on TCP `port` of this network namespace (Linux only: elsewhere False)."""
    return any(address.rpartition(":")[2] == f"{port:04X}" for address, _ in _listeners())


def others_listen(own_inodes: Collection[int]) -> bool:
    """True when another process listens on an address of these sockets (Linux only: elsewhere False)."""
    listeners = list(_listeners())
    own = {address for address, inode in listeners if inode in own_inodes}
    return any(address in own and inode not in own_inodes for address, inode in listeners)


def _listeners() -> Iterator[tuple[str, int]]:
    """(address as the kernel writes it, inode) of every listening TCP socket, by /proc/net/tcp and tcp6.

    Listeners stand first there: no more is read, however many connections follow.
    """
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), Path("/proc/net", name).open() as table:
            next(table)
            for fields in map(str.split, table):
                if fields[3] != _LISTEN:
                    break
                yield fields[1], int(fields[9])
