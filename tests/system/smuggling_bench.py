"""Sends a vector and SMUGGLED to an edge, and reads what came of it at both ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tests.support.edge import RunningEdge
from tests.support.raw_client import Answer, RawClient, until
from tests.support.raw_upstream import RawUpstream
from tests.support.strict_http import Message, requests_in
from tests.system.smuggling_vectors import (
    BODY_LIMIT_BYTES,
    COUNT_LIMIT,
    HEAD_LIMIT_BYTES,
    MARK,
    SMUGGLED,
    Vector,
)  # fmt: skip

CONFIG = {
    "limits": {"head_bytes": HEAD_LIMIT_BYTES, "header_count": COUNT_LIMIT, "body_bytes": BODY_LIMIT_BYTES},
    "timeouts": {"request_body": "500ms", "request_head": "5s"},
}


@dataclass
class Came:
    """What came of a vector. `crossed` are the requests at the upstream; None: bytes that are no requests."""

    statuses: list[int]
    is_closed: bool
    crossed: list[Message] | None

    @property
    def smuggled(self) -> bool:
        """True when SMUGGLED reached the upstream as a request of its own."""
        return any(MARK in message.line[1] for message in self.crossed or ())

    def fault(self, vector: Vector) -> str:
        """What is not as `vector` says; empty: nothing."""
        expected = [*vector.answers, *([frozenset({200})] if vector.goes_on else [])]
        if len(self.statuses) != len(expected) or any(
            status not in allowed for status, allowed in zip(self.statuses, expected, strict=False)
        ):
            return f"answers {self.statuses}, expected {[sorted(each) for each in expected]}"
        if self.is_closed is vector.goes_on:
            return "the connection was closed" if vector.goes_on else "the connection goes on"
        if self.crossed is None:
            return "the upstream got bytes that are no requests"
        if len(self.crossed) != vector.crosses + vector.goes_on:
            return f"{len(self.crossed)} requests reached the upstream"
        if self.smuggled is not vector.goes_on:
            return "the smuggled request " + ("arrived" if self.smuggled else "was lost")
        return ""


async def try_vector(vector: Vector, pieces: list[bytes], edge: RunningEdge, upstream: RawUpstream) -> Came:
    """Send `pieces` (together the vector and SMUGGLED) on a new connection."""
    before = {link: len(link.received) for link in upstream.links}
    client = await edge.connect()
    for piece in pieces:
        client.write(piece)
        await asyncio.sleep(0.001 if len(pieces) < 9 else 0)
    statuses = await _answers(client, vector)
    client.close()
    return Came(statuses, bool(client.ended), _crossed(upstream, before))


async def _answers(client: RawClient, vector: Vector) -> list[int]:
    """The statuses of all answers: as many as expected, and, where the connection ends, those after them."""
    statuses: list[int] = []
    while True:
        found = client.expect(is_head=vector.is_head and not statuses)
        is_last = vector.goes_on and len(statuses) == len(vector.answers)
        await until(lambda: found.is_complete or client.ended, f"{vector.kind} {vector.name}: {statuses}")  # noqa: B023
        if not found.is_complete:
            return statuses
        statuses.append(found.status)
        _check_own(found)
        if is_last:
            return statuses


def _check_own(found: Answer) -> None:
    """An error of gslb has its shape, whatever it answers."""
    if found.one("server") == "gslb" and found.status >= 400 and found.body:
        assert found.error["code"]


def _crossed(upstream: RawUpstream, before: dict[object, int]) -> list[Message] | None:
    crossed: list[Message] = []
    for link in upstream.links:
        messages, is_whole = requests_in(bytes(link.received[before.get(link, 0) :]))
        if not is_whole:
            return None
        crossed += [message for message in messages if message.line[0] != b"GET"]
    return crossed


def cuts_of(vector: Vector) -> list[list[bytes]]:
    """The ways a vector is sent over sockets: whole, cut at its ends and middles, and in small pieces."""
    raw = vector.raw + SMUGGLED
    head_end = raw.find(b"\r\n\r\n") + 4
    places = {1, len(raw) // 2, head_end - 2, head_end, len(vector.raw) - 1, len(vector.raw), len(vector.raw) + 9}
    ways = [[raw]]
    ways += [[raw[:place], raw[place:]] for place in sorted(places) if 0 < place < len(raw)]
    if len(raw) < 2000:
        ways.append([raw[i : i + 7] for i in range(0, len(raw), 7)])
    return ways
