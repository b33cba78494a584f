"""Answers that their reader can check byte for byte: everything in them follows from a number in the request.

Pure. The upstream makes an answer from the request's seed; the client makes the same one and compares.
"""

from __future__ import annotations

import enum
import hashlib
from itertools import pairwise
from random import Random

import orjson

from benchmarks.upstream import DONE, MODEL

MOST_EVENTS = 40
_TEXT_CHARACTERS = 1 << 16
_ALPHABET = "abcdefghijklmnopqrstuvwxyz  ,.\n\"\\{}<>&'ÄßéñЖשع中文字🚀🧭👩‍🚀"
_TEXT = "".join(Random(20260101).choices(_ALPHABET, k=_TEXT_CHARACTERS))
_COMMENT_SHARE = 0.05


def _rng(seed: int, what: str) -> Random:
    digest = hashlib.blake2b(f"{seed} {what}".encode(), digest_size=8).digest()
    return Random(int.from_bytes(digest, "big"))


def _words(rng: Random, most: int) -> str:
    start = rng.randrange(_TEXT_CHARACTERS - most)
    return _TEXT[start : start + 1 + rng.randrange(most)]


def whole_answer(seed: int) -> bytes:
    """The body of one `chat.completion`: 200 bytes to about 30 KB of JSON."""
    rng = _rng(seed, "json")
    content = "".join(_words(rng, 3000) for _ in range(rng.randrange(1, 6)))
    return orjson.dumps(
        {
            "id": f"chatcmpl-{seed}",
            "object": "chat.completion",
            "created": 0,
            "model": MODEL,
            "choices": [
                {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
            ],
            "usage": {"prompt_tokens": 60, "completion_tokens": 100, "total_tokens": 160},
        }
    )


def stream_events(seed: int) -> list[bytes]:
    """The events of one stream: a role, 1 to MOST_EVENTS of content (comments among them), `[DONE]`."""
    rng = _rng(seed, "stream")
    events = [_event(seed, 0, {"role": "assistant", "content": ""})]
    for number in range(1, rng.randrange(2, MOST_EVENTS + 2)):
        event = _event(seed, number, {"content": _words(rng, 40 if rng.random() < 0.9 else 2000)})
        if number > 1 and rng.random() < _COMMENT_SHARE:
            event = b": ping\n\n" + event
        events.append(event)
    events.append(_event(seed, len(events), {}, "stop") + DONE)
    return events


def _event(seed: int, number: int, delta: dict[str, str], finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    identity = f"chatcmpl-{seed}-{number}"
    chunk = {"id": identity, "object": "chat.completion.chunk", "created": 0, "model": MODEL, "choices": [choice]}
    return b"data: %b\n\n" % orjson.dumps(chunk)


def expected_answer(seed: int, is_stream: bool) -> bytes:
    """All bytes of the answer to a request with this seed."""
    return b"".join(stream_events(seed)) if is_stream else whole_answer(seed)


def pieces(payload: bytes, rng: Random) -> list[bytes]:
    """The payload cut at random places, within characters and events as well: 1 to 4 pieces, none empty."""
    cuts = sorted({rng.randrange(1, len(payload)) for _ in range(rng.randrange(4))} if len(payload) > 1 else ())
    bounds = [0, *cuts, len(payload)]
    return [payload[start:end] for start, end in pairwise(bounds)]


class Body(enum.Enum):
    """What a received body is."""

    WHOLE = "whole"
    CUT = "cut"
    """A beginning of the right one, and perhaps gslb's own error event behind a whole event."""
    WRONG = "wrong"


class Checker:
    """Compares an answer with what it must be, as it comes."""

    def __init__(self, seed: int, is_stream: bool) -> None:
        self._expected = expected_answer(seed, is_stream)
        self._is_stream = is_stream
        self._good = 0
        self._strange = b""

    @property
    def is_begun(self) -> bool:
        """Whether any byte has come."""
        return bool(self._good or self._strange)

    def feed(self, data: bytes) -> None:
        """The next bytes of the body."""
        if not self._strange:
            if self._expected.startswith(data, self._good):
                self._good += len(data)
                return
            while data and self._expected.startswith(data[:1], self._good):
                self._good += 1
                data = data[1:]
        self._strange += data

    def verdict(self, has_ended_well: bool) -> Body:
        """What came, all in all. `has_ended_well`: by the answer's own framing, not by a closed connection."""
        if has_ended_well:
            return Body.WHOLE if self._good == len(self._expected) and not self._strange else Body.WRONG
        return Body.CUT if not self._strange or self._is_error_event() else Body.WRONG

    def _is_error_event(self) -> bool:
        """One error event right behind a whole event (FC-09).

        It and the event that was due begin alike, so the border is looked for from the last whole event on.
        """
        received = self._expected[: self._good] + self._strange
        start = received.rfind(b"data: ")
        event = received[start:]
        stands_alone = start <= self._good and (start == 0 or received[:start].endswith(b"\n\n"))
        if not (self._is_stream and stands_alone and event.endswith(b"\n\n")):
            return False
        try:
            told = orjson.loads(event.removeprefix(b"data: "))
        except orjson.JSONDecodeError:
            return False
        return isinstance(told, dict) and isinstance(told.get("error"), dict)
