"""How a stream is broken on purpose: which bytes still go out, and how the connection ends after them."""

from __future__ import annotations

from gslb.mock.answers import DONE
from gslb.mock.faults import Fault
from gslb.mock.http1 import LAST_CHUNK, chunk
from gslb.mock.refusals import error_event


class Sabotage:
    """Lets `limit` events pass, then trips. `ending` is what becomes of the connection then: `hang` (nothing
    more comes), `reset`, `fin`, or `clean` (the answer ends well-formed)."""

    __slots__ = ("_count", "_is_half", "_limit", "ending", "is_bad_chunk", "is_error", "is_tripped")

    def __init__(self, limit: int, ending: str, *, is_half: bool = False) -> None:
        self._limit = limit
        self._count = 0
        self._is_half = is_half
        self.ending = ending
        self.is_error = ending == "clean"
        self.is_bad_chunk = False
        self.is_tripped = False

    @classmethod
    def of(cls, fault: Fault) -> Sabotage | None:
        """What `fault` does to an answer that has begun; None if nothing."""
        if fault.error_event or fault.error_event_after is not None:
            return cls(0 if fault.error_event else fault.error_event_after or 0, "clean")
        if fault.truncate_json:
            return cls(0, "fin", is_half=True)
        if fault.bad_chunk:
            made = cls(1, "fin")
            made.is_bad_chunk = True
            return made
        for ending, limit in (
            ("hang", fault.hang_after_events),
            ("reset", fault.reset_after_events),
            ("fin", fault.fin_after_events),
        ):
            if limit is not None:
                return cls(limit, ending, is_half=fault.is_half_event)
        return None

    def passed(self, events: list[bytes]) -> bytes:
        """The bytes that go out for `events`; may trip. After that nothing passes."""
        if self.is_tripped:
            return b""
        room = self._limit - self._count
        sent = events[:room]
        self._count += len(sent)
        data = b"".join(map(chunk, sent))
        if self._count < self._limit:
            return data
        if self._is_half:
            # The trip waits for an event to cut in two: the frame is announced whole, half of it comes.
            if len(events) == len(sent):
                return data
            frame = chunk(events[len(sent)])
            data += frame[: len(frame) // 2]
        self.is_tripped = True
        if self.is_error:
            data += chunk(error_event()) + chunk(DONE) + LAST_CHUNK
        elif self.is_bad_chunk:
            data += b"zz\r\n"
        return data
