"""Two connections joined after a 101: what one sends the other gets, byte for byte, until one of them ends.

    open --- one side sends its end ---> draining --- the other ends too, or is silent ---> done
      '------- a side is lost, silence on both, the edge stops --------------------------------^

A connection lends its transport to an `_End` and has it back when the tunnel is done. Bytes are never looked at,
so whether a closing handshake took place is told by who closes first: with WebSocket that is the server
(RFC 6455 7.1.1). A client that ends first has left.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

from gslb.proxy.deadlines import Deadlines
from gslb.routing.health import Outcome

_DRAIN_S: Final = 0.3
"""Once a side has ended, the other may be silent no longer than this: it holds a slot of an engine for nobody."""


class Owner(Protocol):
    """Whose request the tunnel answers."""

    def arm(self, deadline_s: float) -> None:
        """Call `Tunnel.on_deadline` then."""

    def tunnel_done(self, tunnel: Tunnel, outcome: str, result: str, blame: Outcome, why: str) -> None:
        """The tunnel is over. `outcome` is the access log's, `result` the label of the attempt."""


class _End(asyncio.Protocol):
    """One side of a tunnel: `home` is the connection whose transport this is."""

    __slots__ = ("_tunnel", "far", "has_ended", "home", "is_full", "received_bytes", "transport")

    far: _End

    def __init__(self, tunnel: Tunnel, home: Any, transport: asyncio.Transport) -> None:
        self._tunnel = tunnel
        self.home = home
        self.transport = transport
        self.received_bytes = 0
        self.has_ended = self.is_full = False

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        self._tunnel.moved()
        self.far.transport.write(data)

    def pause_writing(self) -> None:
        self.is_full = True
        if not self.far.transport.is_closing():
            self.far.transport.pause_reading()

    def resume_writing(self) -> None:
        self.is_full = False
        if not self.far.transport.is_closing():
            self.far.transport.resume_reading()

    def eof_received(self) -> bool:
        self.has_ended = True
        return self._tunnel.on_end(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._tunnel.on_lost(self, exc)
        self.home.connection_lost(exc)


class Tunnel:
    """The relay of one exchange. Silent in both directions for `idle_s`, it ends."""

    __slots__ = (
        "_client",
        "_clock",
        "_first",
        "_idle_s",
        "_is_done",
        "_loop",
        "_moved_at_s",
        "_owner",
        "_upstream",
    )

    def __init__(self, owner: Owner, loop: asyncio.AbstractEventLoop, clock: Deadlines, idle_s: float) -> None:
        self._owner = owner
        self._loop = loop
        self._clock = clock
        self._idle_s = idle_s
        self._is_done = False
        self._first: _End | None = None
        """The side that ended first."""

    def join(
        self,
        client: Any,
        client_transport: asyncio.Transport,
        upstream: Any,
        upstream_transport: asyncio.Transport,
        answer: bytes,
        to_client: bytes,
        to_upstream: bytes,
    ) -> None:
        """Begin between two protocols and their transports: `answer` is the 101's head, `to_client` and
        `to_upstream` what came with either head."""
        near = self._client = _End(self, client, client_transport)
        far = self._upstream = _End(self, upstream, upstream_transport)
        near.far, far.far = far, near
        near.received_bytes, far.received_bytes = len(to_upstream), len(to_client)
        client_transport.set_protocol(near)
        upstream_transport.set_protocol(far)
        self._moved_at_s = self._clock.now_s
        self._owner.arm(self._moved_at_s + self._idle_s)
        client_transport.write(answer + to_client)
        if to_upstream:
            upstream_transport.write(to_upstream)
        if not (client_transport.is_closing() or far.is_full or client_transport.is_reading()):
            client_transport.resume_reading()

    @property
    def bytes_in(self) -> int:
        """What the client has sent behind its handshake."""
        return self._client.received_bytes

    @property
    def bytes_out(self) -> int:
        """What the endpoint has sent behind its answer's head."""
        return self._upstream.received_bytes

    def moved(self) -> None:
        """A byte came."""
        self._moved_at_s = self._clock.now_s  # read once a tick: exact enough, and free

    # --- ends ---------------------------------------------------------------------------------------

    def on_end(self, end: _End) -> bool:
        """`end` sends no more; True when it can still be written to."""
        if self._is_done:
            return False
        far = end.far
        is_last = self._first is not None
        self._first = self._first or end
        if is_last or not (end.transport.can_write_eof() and far.transport.can_write_eof()):
            self._finish()  # both have ended; or TLS, which cannot be closed in one direction alone
            return False
        far.transport.write_eof()
        self.moved()
        self._owner.arm(self._clock.now_s + _DRAIN_S)
        return True

    def on_lost(self, end: _End, exc: Exception | None) -> None:
        """The connection of `end` is gone."""
        if self._is_done:
            return
        if self._first is not None and exc is None:
            self._finish()
        elif end is self._client:
            self.on_client_gone()
        else:
            self._end("upstream_truncated", "reset", Outcome.BROKEN, "the tunnel was cut")

    def on_client_gone(self) -> None:
        """The client has left: nobody is to blame."""
        self._end("client_gone", "aborted", Outcome.NEUTRAL, "")

    def on_deadline(self, now_s: float, is_out_of_time: bool) -> None:
        """The deadline armed last has passed; `is_out_of_time` when it is that of the whole exchange."""
        first = self._first
        is_draining = first is not None and not first.is_full  # a slow reader may take what is left
        until_s = self._moved_at_s + (_DRAIN_S if is_draining else self._idle_s)
        if now_s < until_s and not is_out_of_time:
            self._owner.arm(until_s if first is None else now_s + _DRAIN_S)
        elif first is not None and not is_out_of_time:
            self._finish()
        else:
            why = "the total time is over" if is_out_of_time else "silent for too long"
            self._end("timeout", "timeout", Outcome.NEUTRAL, why)

    def stop(self) -> None:
        """The edge's grace is over."""
        self._end("upstream_truncated", "aborted", Outcome.NEUTRAL, "shutting down")

    def _finish(self) -> None:
        """It ended in order."""
        if self._first is self._client:
            self._end("client_gone", "aborted", Outcome.NEUTRAL, "", lets_flow=True)
        else:
            self._end("ok", "ok", Outcome.SUCCESS, "", lets_flow=True)

    def _end(self, outcome: str, result: str, blame: Outcome, why: str, *, lets_flow: bool = False) -> None:
        """Done, once. With `lets_flow` the endpoint gets what is written; the client always does, by its owner."""
        if self._is_done:
            return
        self._is_done = True
        upstream = self._upstream.transport
        if lets_flow and upstream.get_write_buffer_size():
            upstream.close()
            self._loop.call_later(_DRAIN_S, upstream.abort)
        else:
            upstream.abort()
        for end in (self._client, self._upstream):
            end.transport.set_protocol(end.home)
        self._owner.tunnel_done(self, outcome, result, blame, why)
