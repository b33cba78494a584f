"""Standard input as lines for an event loop. Its end tells a helper process that whoever started it has gone."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator


async def stdin_lines() -> AsyncIterator[bytes]:
    """Lines of standard input (a pipe) until it closes."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    try:
        while line := await reader.readline():
            yield line
    finally:
        transport.close()
