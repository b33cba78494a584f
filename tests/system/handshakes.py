"""WebSocket handshakes for the tests of this directory: a client's, an endpoint's, and one that has passed."""

from __future__ import annotations

from gslb.wire.websocket import accept_of
from tests.support.edge import RunningEdge
from tests.support.raw_client import Answer, RawClient, request, until

NONCE = "dGhlIHNhbXBsZSBub25jZQ=="
ACCEPT = accept_of(NONCE.encode())
SWITCH = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
    + ACCEPT + b"\r\nSec-WebSocket-Protocol: realtime\r\nX-Request-Id: upstreams\r\n\r\n"
)  # fmt: skip


def handshake(
    *fields: tuple[str, str], path: str = "/v1/realtime?model=m", key: str = NONCE, version: str = "13"
) -> bytes:
    """A client's handshake."""
    own = (
        ("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Key", key),
        ("Sec-WebSocket-Version", version),
    )  # fmt: skip
    return request(method="GET", path=path, fields=own + fields)


async def opened(running: RunningEdge, *fields: tuple[str, str]) -> tuple[RawClient, Answer]:
    """A client behind its 101; the answer's body is what has come since."""
    client = await running.connect()
    found = client.send(handshake(*fields))
    await until(lambda: found.has_head or client.ended, "the answer to a handshake")
    assert found.status == 101, found
    return client, found
