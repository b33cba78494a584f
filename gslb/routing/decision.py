"""What the router decided: where one attempt goes, and the numbers behind it."""

from __future__ import annotations

from gslb.routing.load import Ticket
from gslb.routing.predict import Option


class Decision:
    """Where to send one attempt, and the numbers behind it."""

    __slots__ = ("_unseen_ms", "home", "option", "reason", "region")

    def __init__(self, option: Option, home: str, reason: str, unseen_ms: float) -> None:
        """`unseen_ms` of the network's time pass between client and edge."""
        self.option = option
        self._unseen_ms = unseen_ms
        self.region = option.view.endpoint.region.name
        self.home = home
        self.reason = reason

    def open_ticket(self, now_s: float) -> Ticket | None:
        """Count its request in where it goes; None when the endpoint has no place left."""
        view = self.option.view
        ticket = view.own.open_ticket(self.option.work, view.endpoint.capacity, now_s)
        if ticket is not None and self.region != self.home:
            ticket.as_guest(view.guests)
        return ticket

    @property
    def predicted_ms(self) -> float:
        """Predicted time to first token, without the tax (which nobody waits for)."""
        return self.option.predicted_ms

    @property
    def edge_ttft_ms(self) -> float:
        """The part of it that the edge itself can see: without the client's way to the edge."""
        return self.predicted_ms - self._unseen_ms
