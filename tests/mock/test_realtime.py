"""The mock's WebSocket: what it says back, and that a vLLM without one answers 404."""

from __future__ import annotations

import aiohttp
import pytest

from gslb.mock.faults import Fault
from gslb.mock.realtime import Echo
from tests.mock.mocks import Mocks

MASK = b"\x01\x02\x03\x04"


def masked(first: int, payload: bytes) -> bytes:
    """A client's frame of fewer than 126 bytes."""
    body = bytes(byte ^ MASK[i % 4] for i, byte in enumerate(payload))
    return bytes((first, 0x80 | len(payload))) + MASK + body


FRAMES = {
    "text": (masked(0x81, b"Hello"), b"\x81\x05Hello", False),
    "a fragment": (masked(0x01, b"He"), b"\x01\x02He", False),
    "ping": (masked(0x89, b"x"), b"\x8a\x01x", False),
    "pong": (masked(0x8A, b"x"), b"", False),
    "close": (masked(0x88, b"\x03\xe8bye"), b"\x88\x02\x03\xe8", True),
    "not masked": (b"\x81\x05Hello", b"\x88\x02\x03\xea", True),
    "too long": (b"\x82\xff" + (1 << 40).to_bytes(8) + MASK, b"\x88\x02\x03\xf1", True),
}


@pytest.mark.parametrize("name", FRAMES)
@pytest.mark.parametrize("size", [1, 100])
def test_frames_in_frames_out(name: str, size: int) -> None:
    sent, expected, is_closed = FRAMES[name]
    echo = Echo()
    answers = b"".join(echo.feed(sent[at : at + size]) for at in range(0, len(sent), size))
    assert (answers, echo.is_closed) == (expected, is_closed)


async def test_it_says_back_what_it_is_told_and_closes_first(mocks: Mocks) -> None:
    mock = await mocks(has_realtime=True)
    async with aiohttp.ClientSession() as session, session.ws_connect(f"{mock.url}/v1/realtime") as talk:
        for text in ("hello", "x" * 300, "x" * 70_000):
            await talk.send_str(text)
            assert await talk.receive_str(timeout=8) == text
        await talk.close()
        assert talk.close_code == 1000


async def test_without_realtime_it_is_404_and_faults_hold(mocks: Mocks) -> None:
    for mock, status in ((await mocks(), 404), (await mocks(has_realtime=True), 503)):
        mock.set_faults(Fault(status=503, count=1))
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                await session.ws_connect(f"{mock.url}/v1/realtime")
        assert caught.value.status == status
