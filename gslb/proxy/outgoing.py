"""The head of a request as one endpoint gets it: its Host, its key, nobody else's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gslb.proxy.pool import EndpointPool
from gslb.proxy.realtime import handshake_request
from gslb.wire.http1 import upstream_head

if TYPE_CHECKING:
    from gslb.proxy.exchange import Exchange


def request_head(exchange: Exchange, pool: EndpointPool) -> bytes:
    """The head of an admitted request for this pool's endpoint, whether a handshake or not."""
    admitted = exchange.admitted
    assert admitted is not None
    # Without tenants gslb is transparent: the client's key is for the endpoint (DESIGN section 3).
    is_transparent = not pool.has_key and exchange.generation.settings.tenants is None
    if exchange.head.is_handshake:
        return handshake_request(exchange, pool, admitted.reading.keys if is_transparent else None)
    client = exchange.client
    return upstream_head(
        exchange.head, pool.base_path, pool.fields, admitted.reading.keys if is_transparent else b"",
        len(admitted.body), client.forwarded_for, client.proto, exchange.request_id,
    )  # fmt: skip
