"""The head of an answer as the client gets it: the endpoint's, with the lines that gslb adds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gslb.routing.router import Decision
from gslb.wire.http1 import ResponseHead, client_head, passed_lines
from gslb.wire.rate_fields import without_rate_fields

if TYPE_CHECKING:
    from gslb.proxy.exchange import Exchange


def answer_head(exchange: Exchange, head: ResponseHead, decision: Decision) -> bytes:
    """The `head` of an answer to a whole request. What a tenant has left is told by gslb, not by the endpoint."""
    if exchange.admitted is not None and exchange.admitted.rate_lines:
        head.passed_lines = without_rate_fields(head.passed_lines or passed_lines(head))
    asked = exchange.head
    close = not exchange.client.keeps_alive(asked)
    return client_head(head, own_lines(exchange, decision), is_http10=asked.is_http10, close=close)


def own_lines(exchange: Exchange, decision: Decision) -> bytes:
    """The lines gslb adds to an endpoint's answer."""
    lines = b"x-request-id: %b\r\nx-gslb-region: %b\r\nx-gslb-attempts: %d\r\n" % (
        exchange.request_id, decision.region.encode(), exchange.attempts,
    )  # fmt: skip
    if exchange.admitted is not None:
        lines += exchange.admitted.rate_lines
    if exchange.explanation is not None:
        lines += b"x-gslb-decision: %b\r\n" % exchange.explanation.encode("ascii")
    return lines
