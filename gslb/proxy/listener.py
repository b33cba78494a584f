"""The client side: what all client connections share, and how they come and go together."""

from __future__ import annotations

from gslb.proxy.client import ClientConnection
from gslb.proxy.generation import Generation, HttpDate, RequestIds


class Listener:
    """What all client connections share. `generation` is replaced as a whole on reload."""

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self.door = generation.door
        self.request_ids = RequestIds()
        self.date = HttpDate(generation.door.wall_s)
        self.connections: set[ClientConnection] = set()

    def __call__(self) -> ClientConnection:
        """A protocol for a new connection (the server's factory)."""
        return ClientConnection(self)

    def secure(self, source: str) -> ClientConnection:
        """A protocol for a connection whose TLS handshake is done; `source` is the client by a PROXY header."""
        connection = ClientConnection(self)
        connection.become_secure(source)
        return connection

    def stop_idle(self, *, spare_fresh: bool = False) -> None:
        """Close connections that wait for nothing; the others close after their answer.

        `spare_fresh`: not those that have not asked anything yet, whose first request may be on its way.
        """
        for connection in list(self.connections):
            if not (spare_fresh and connection.is_fresh):
                connection.stop_when_idle()

    def is_busy(self, *, counts_unasked: bool) -> bool:
        """True while an answer that has ended is not all written; with `counts_unasked` also while a request is
        being received or a connection has not asked anything yet."""
        return any(
            connection.has_unsent or (counts_unasked and (connection.is_fresh or connection.is_receiving))
            for connection in self.connections
        )

    def stop_all(self) -> None:
        """End every connection, with whatever it is doing."""
        for connection in list(self.connections):
            connection.stop_now()
