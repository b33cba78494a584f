"""Whether what was written to a connection has left this machine."""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios


def has_unsent(transport: asyncio.Transport) -> bool:
    """True while something written is still on this machine, where dropping the connection would lose it.

    A TLS transport tells what waits to be encrypted, the kernel what the far end has not acknowledged; what lies
    between the two goes to the kernel as soon as that has room, so it is never alone.
    """
    if transport.get_write_buffer_size():
        return True
    sock = transport.get_extra_info("socket")
    try:
        answer = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
    except (OSError, AttributeError, ValueError):
        return False
    return bool(struct.unpack("i", answer)[0])
