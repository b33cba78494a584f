"""A WebSocket handshake on its way: the request an endpoint gets for it, and the 101 that makes a tunnel of two
connections. Up to that 101 it is a request like any other: fences, failover and errors are the exchange's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gslb.proxy.answer_head import own_lines
from gslb.proxy.pool import EndpointPool
from gslb.proxy.tunnel import Tunnel
from gslb.proxy.upstream import UpstreamConnection
from gslb.wire.http1 import ResponseHead, finish_switch_head
from gslb.wire.websocket import check_handshake, client_switch, is_accepted, upstream_handshake, with_model

if TYPE_CHECKING:
    from gslb.proxy.attempt import Attempt
    from gslb.proxy.exchange import Exchange


def handshake_request(exchange: Exchange, pool: EndpointPool, key_lines: bytes | None) -> bytes:
    """The handshake as this pool's endpoint gets it. `key_lines` None: the client's key ends here."""
    assert exchange.admitted is not None
    assert exchange.admitted.facts is not None
    target = pool.base_path + with_model(exchange.head.target, exchange.admitted.facts.model)
    client = exchange.client
    return upstream_handshake(
        exchange.head, target, pool.fields, key_lines, client.forwarded_for, client.proto, exchange.request_id
    )


def try_switch(
    exchange: Exchange, attempt: Attempt, head: ResponseHead, connection: UpstreamConnection, behind: bytes
) -> bool:
    """Join client and endpoint if the 101 `head` answers the client's handshake; else False.

    `behind` are the bytes that came with that head.
    """
    if not exchange.head.is_handshake or not is_accepted(head, check_handshake(exchange.head)):
        return False
    if finish_switch_head(head) is not None:
        return False
    generation = exchange.generation
    door = generation.door
    tunnel = Tunnel(exchange, door.loop, door.deadlines, generation.timeouts.tunnel_idle)
    answer = client_switch(head, own_lines(exchange, attempt.decision))
    transport, early = exchange.client.lend()
    exchange.begin_tunnel(attempt, tunnel)
    tunnel.join(exchange.client, transport, connection, connection.lend(), answer, behind, early)
    return True
