"""A committed answer on its way out: the client's framing, one write per piece, and what its end must look like.

The last of the five rooms. `write` runs for every token: an endpoint's connection calls it directly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gslb.errors import error_event
from gslb.proxy import failure
from gslb.proxy.deadlines import Deadlines
from gslb.wire.chunks import LAST_CHUNK, chunk, chunks_payload
from gslb.wire.http1 import ResponseHead
from gslb.wire.paths import dialect_of
from gslb.wire.sse import ends_between_events

if TYPE_CHECKING:
    from gslb.proxy.client import ClientConnection

_TAIL_BYTES: Final = 16 * 1024


class Relay:
    """One answer: `bytes_out` of payload have been written, the last of it at `moved_at_s`."""

    __slots__ = (
        "_clock", "_fourth", "_has_plain_events", "_is_framed", "_last", "_on_complete", "_second", "_third",
        "_unsent", "_write", "bytes_out", "is_chunked", "is_event_stream", "moved_at_s",
    )  # fmt: skip

    def __init__(
        self,
        client: ClientConnection,
        clock: Deadlines,
        head: ResponseHead,
        head_bytes: bytes,
        is_http10: bool,
        on_complete: Callable[[], None],
    ) -> None:
        """`head_bytes` is the head for the client, written with the first piece; `on_complete` is called once the
        answer is out whole."""
        self._clock = clock
        self._on_complete = on_complete
        self._unsent = head_bytes
        self._write = client.writer()
        self.is_chunked = head.content_length is None and head.has_body and not is_http10
        self._is_framed = head.content_length is not None
        self._has_plain_events = head.is_event_stream and not head.is_encoded
        self.is_event_stream = head.is_event_stream
        self.moved_at_s = clock.now_s
        self.bytes_out = 0
        self._last = self._second = self._third = self._fourth = b""

    def write(self, payload: bytes, is_complete: bool) -> None:
        """Write more of the answer, and its end when that is all."""
        if payload:
            size = len(payload)
            end = payload if size <= _TAIL_BYTES else payload[-_TAIL_BYTES:]
            if self.is_chunked:
                payload = chunk(payload)
                end = payload if size <= _TAIL_BYTES else chunk(end)
            self._note(end, size)
        if self._unsent:
            payload = self._unsent + payload
            self._unsent = b""
        if is_complete:
            if self.is_chunked:
                payload += LAST_CHUNK
            if payload:  # to HTTP/1.0 the end of chunks is nothing but the close
                self._write(payload)
            self._on_complete()
            return
        self._write(payload)
        # The ring's clock is read once a tick: exact enough for a gap, and free.
        self.moved_at_s = self._clock.now_s

    def write_chunks(self, framed: bytes, size: int) -> None:
        """Write `size` more bytes of payload of a chunked answer, which came framed as `chunk` does it."""
        self._note(framed if size <= _TAIL_BYTES else chunk(chunks_payload(framed)[-_TAIL_BYTES:]), size)
        self._write(framed)
        self.moved_at_s = self._clock.now_s

    def _note(self, piece: bytes, size: int) -> None:
        self.bytes_out += size
        self._fourth, self._third, self._second, self._last = self._third, self._second, self._last, piece

    @property
    def tail(self) -> bytes:
        """The end of the payload so far: its last four pieces (four names are the cheapest ring there is)."""
        pieces = (self._fourth, self._third, self._second, self._last)
        return b"".join([chunks_payload(piece) if self.is_chunked else piece for piece in pieces if piece])

    def ended_in_error(self) -> bool:
        """True when a whole stream told an error of the engine's in the end."""
        return self.is_event_stream and failure.ends_in_error(self.tail)

    def tell_cut(self, path: bytes) -> None:
        """Tell a client of `path` that the answer is cut, where an event can tell it (FC-09): in a plain event
        stream, between two events. The unclean end is for the caller to make."""
        if not self._has_plain_events or self._is_framed or not ends_between_events(self.tail[-4:]):
            return
        event = error_event("upstream_disconnected", "the upstream ended the stream early", dialect_of(path))
        self._write(chunk(event) if self.is_chunked else event)
