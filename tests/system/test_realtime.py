"""WebSocket on `/v1/realtime`: a request like any other up to the 101, bytes both ways behind it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gslb.wire.websocket import accept_of
from tests.support.edge import RunningEdge, config_of
from tests.support.raw_client import Answer, RawClient, chat, request, until
from tests.support.raw_upstream import GOOD, Step, answer
from tests.system.conftest import MakeEdge, MakeUpstream
from tests.system.test_disconnect import LEAVE_S
from tests.system.test_reload_and_stop import stopped

NONCE = "dGhlIHNhbXBsZSBub25jZQ=="
ACCEPT = accept_of(NONCE.encode())
SWITCH = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
    + ACCEPT + b"\r\nSec-WebSocket-Protocol: realtime\r\nX-Request-Id: upstreams\r\n\r\n"
)  # fmt: skip
MIB = 1 << 20


def handshake(
    *fields: tuple[str, str], path: str = "/v1/realtime?model=m", key: str = NONCE, version: str = "13"
) -> bytes:
    """A client's handshake."""
    own = (
        ("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Key", key),
        ("Sec-WebSocket-Version", version),
    )  # fmt: skip
    return request(method="GET", path=path, fields=own + fields)


async def opened(running: RunningEdge, *fields: tuple[str, str]) -> tuple[RawClient, Answer]:
    """A client behind its 101; the answer's body is what has come since."""
    client = await running.connect()
    found = client.send(handshake(*fields))
    await until(lambda: found.has_head or client.ended, "the answer to a handshake")
    assert found.status == 101, found
    return client, found


async def test_an_upgrade_and_its_echo(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream([SWITCH, "echo"])
    running = await edge({"eu": [one]})
    client, found = await opened(running, ("Sec-WebSocket-Protocol", "realtime"), ("X-Request-Id", "mine"))
    assert found.one("sec-websocket-accept") == ACCEPT.decode()
    assert found.one("sec-websocket-protocol") == "realtime"
    assert (found.one("upgrade"), found.one("connection")) == ("websocket", "Upgrade")
    assert (found.one("x-request-id"), found.one("x-gslb-region")) == ("mine", "eu")
    assert found.all("content-length") == found.all("transfer-encoding") == []
    (got,) = one.requests
    assert got.line == b"GET /v1/realtime?model=m HTTP/1.1"
    assert got.one("host") == f"127.0.0.1:{one.port}"
    assert (got.one("upgrade"), got.one("connection"), got.one("x-request-id")) == ("websocket", "Upgrade", "mine")
    assert (got.one("sec-websocket-key"), got.one("sec-websocket-version")) == (NONCE, "13")
    assert got.one("x-forwarded-host") == "api.example"
    assert got.all("content-length") == []
    for sent in (b"\x81\x85GET /", b"POST /x HTTP/1.1\r\n\r\n", bytes(range(256)) * 1000):
        client.write(sent)
        before = len(found.body)
        await until(lambda before=before, sent=sent: len(found.body) == before + len(sent))
        assert found.body.endswith(sent)
    assert running.in_flight == 1
    one.asked[0].close()
    assert await client.end() == "fin"
    record = await running.record()
    assert (record["status"], record["outcome"], record["region"], record["model"]) == (101, "ok", "eu", "m")
    assert record["bytes_out"] == len(found.body)
    assert record["bytes_in"] == len(found.body) + len("/v1/realtime?model=m")
    assert running.attempts() == {("eu", "ok"): 1}
    assert running.pool(one)._idle == []


async def test_bytes_glued_to_both_heads(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream([SWITCH + b"first", "hang"])
    running = await edge({"eu": [one]})
    client = await running.connect()
    found = client.send(handshake() + b"early \r\n\r\n bytes")
    await until(lambda: bytes(found.body) == b"first")
    (link,) = one.asked
    await until(lambda: bytes(link.tunnelled or b"") == b"early \r\n\r\n bytes")
    client.write(b" more")
    await until(lambda: (link.tunnelled or b"").endswith(b" more"))
    client.close()
    record = await running.record()
    assert (record["bytes_in"], record["bytes_out"]) == (len("/v1/realtime?model=m") + 21, 5)


async def test_behind_an_earlier_request_on_the_same_connection(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream([0.02, GOOD], [SWITCH, "echo"])
    running = await edge({"eu": [one]})
    client = await running.connect()
    whole = client.send(request(chat()) + handshake() + b"abc")
    await until(lambda: whole.is_complete)
    found = client.expect()
    await until(lambda: bytes(found.body) == b"abc")
    assert found.status == 101


# --- before the 101 ------------------------------------------------------------------------------------


REFUSED: dict[str, tuple[bytes, int, str]] = {
    "a broken key": (handshake(key="short"), 400, "bad_request"),
    "another version": (handshake(version="8"), 426, "upgrade_required"),
    "no upgrade": (request(method="GET", path="/v1/realtime?model=m"), 426, "upgrade_required"),
    "h2c": (handshake().replace(b"Upgrade: websocket", b"Upgrade: h2c"), 426, "upgrade_required"),
    "no model": (handshake(path="/v1/realtime"), 400, "bad_request"),
    "two models": (handshake(path="/v1/realtime?model=m&model=n"), 400, "bad_request"),
    "an unknown model": (handshake(path="/v1/realtime?model=x"), 404, "model_not_found"),
    "an unknown region": (handshake(("x-gslb-region", "mars")), 400, "bad_request"),
    "a post": (request(chat(), path="/v1/realtime?model=m"), 405, "method_not_allowed"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_refused_before_any_upstream_byte(name: str, edge: MakeEdge, upstream: MakeUpstream) -> None:
    raw, status, code = REFUSED[name]
    one = await upstream([SWITCH, "echo"])
    running = await edge({"eu": [one]})
    client = await running.connect()
    found = await client.ask(raw)
    assert (found.status, found.error["code"]) == (status, code)
    assert (found.one("upgrade"), found.one("sec-websocket-version")) == (
        ("websocket", "13") if status == 426 else (None, None)
    )
    assert one.requests == []
    assert (await running.record())["outcome"] == "refused"
    if b"Upgrade: websocket" in raw:
        assert await client.end() == "fin", "what follows a refused handshake is not HTTP"


async def test_fc03_an_ignored_h2c_offer_leaves_the_connection_usable(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-03: only WebSocket is taken, and only on its path."""
    one = await upstream()
    running = await edge({"eu": [one]})
    client = await running.connect()
    await client.ask(REFUSED["h2c"][0])
    fields = (("Connection", "Upgrade"), ("Upgrade", "websocket"))
    assert (await client.ask(request(chat(), fields=fields))).status == 200
    assert one.requests[0].all("upgrade") == []


@pytest.mark.parametrize(
    ("how", "status"),
    [
        (("Authorization", "Bearer gk-1"), 101), (("Authorization", "Bearer gk-2"), 401), (("X-Y", "z"), 401),
        (("Sec-WebSocket-Protocol", "realtime, openai-insecure-api-key.gk-1"), 101),
        (("Sec-WebSocket-Protocol", "realtime, openai-insecure-api-key.gk-2"), 401),
    ],
)  # fmt: skip
async def test_keys(how: tuple[str, str], status: int, edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream([SWITCH, "echo"])
    keyed = {"url": one.url, "api_key_env": "UP"}
    running = await edge({"eu": [keyed]}, {"UP": "up-key", "ACME": "gk-1"}, tenants={"acme": {"key_env": "ACME"}})
    client = await running.connect()
    found = client.send(handshake(how))
    await until(lambda: found.has_head)
    assert found.status == status
    assert len(one.requests) == (status == 101)
    for got in one.requests:
        assert got.one("authorization") == "Bearer up-key"
        assert got.one("sec-websocket-protocol") == ("realtime" if "Protocol" in how[0] else None)
        assert b"gk-1" not in got.raw
    client.close()
    assert (await running.record())["tenant"] == ("acme" if status == 101 else None)
    assert "gk-" not in running.log_text()


async def test_residency_is_a_fence_here_too(edge: MakeEdge, upstream: MakeUpstream) -> None:
    eu, us = await upstream(models=["another"]), await upstream([SWITCH, "echo"])
    rules = {"rules": [{"countries": ["EU"], "jurisdictions": ["EU"]}]}
    running = await edge({"eu": [eu], "us": [us]}, residency=rules)
    found = await running.ask(handshake())
    assert (found.status, found.error["code"]) == (403, "residency_denied")
    assert us.requests == []
    assert (await running.record())["outcome"] == "fenced"


async def test_failover_keeps_within_the_fence(edge: MakeEdge, upstream: MakeUpstream) -> None:
    eu, us = await upstream([answer(503, b"{}")]), await upstream([SWITCH, "echo"])
    rules = {"rules": [{"countries": ["EU"], "jurisdictions": ["EU"]}]}
    running = await edge({"eu": [eu], "us": [us]}, residency=rules)
    found = await running.ask(handshake())
    assert found.status == 503
    assert us.requests == []


async def test_an_alias_is_rewritten_in_the_query_alone(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream([SWITCH, "echo"])
    running = await edge({"eu": [one]}, models={"fast": {"target": "m"}})
    client = await running.connect()
    found = client.send(handshake(path="/v1/realtime?a=%41&model=fast&b"))
    await until(lambda: found.has_head)
    assert found.status == 101
    assert one.requests[0].line == b"GET /v1/realtime?a=%41&model=m&b HTTP/1.1"


BEFORE_SWITCH: dict[str, list[Step]] = {
    "503": [answer(503, b"{}", ("Retry-After", "7"))],
    "429": [answer(429, b"{}")],
    "reset": ["rst"],
    "closed": ["fin"],
    "another protocol": [SWITCH.replace(b"websocket", b"h2c"), "hang"],
    "the answer to another nonce": [SWITCH.replace(ACCEPT, accept_of(b"other")), "hang"],
    "a 101 that switches nothing": [b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "hang"],
}


@pytest.mark.parametrize("name", [*BEFORE_SWITCH, "refused"])
async def test_before_the_101_another_region_answers(name: str, edge: MakeEdge, upstream: MakeUpstream) -> None:
    eu, us = await upstream(BEFORE_SWITCH.get(name, [])), await upstream([SWITCH, "echo"])
    running = await edge({"eu": [eu], "us": [us]}, timeouts={"first_byte": "1s"})
    if name == "refused":
        eu.stop()
    client = await running.connect()
    found = client.send(handshake() + b"early")
    await until(lambda: bytes(found.body) == b"early")
    assert (found.status, found.one("x-gslb-region"), found.one("x-gslb-attempts")) == (101, "us", "2")
    client.close()
    record = await running.record()
    assert (record["attempts"], record["home"], record["reason"]) == (2, "eu", "failover")


async def test_a_404_passes_as_from_a_vllm_without_realtime(edge: MakeEdge, upstream: MakeUpstream) -> None:
    eu, us = await upstream([answer(404, b'{"detail":"Not Found"}')]), await upstream([SWITCH, "echo"])
    running = await edge({"eu": [eu], "us": [us]})
    client = await running.connect()
    found = await client.ask(handshake())
    assert (found.status, found.json, found.one("connection")) == (404, {"detail": "Not Found"}, "close")
    assert await client.end() == "fin"
    assert us.requests == []
    assert running.failures(eu) == 0


async def test_a_client_that_leaves_before_the_101(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream(["hang"])
    running = await edge({"eu": [one]})
    client = await running.connect()
    client.send(handshake())
    await until(lambda: one.requests)
    client.close()
    await until(lambda: one.asked[0].ended or one.asked[0].is_closed, "the upstream to be closed", LEAVE_S)
    record = await running.record()
    assert (record["status"], record["outcome"]) == (499, "client_gone")


async def test_a_101_to_a_plain_request_is_still_a_fault(edge: MakeEdge, upstream: MakeUpstream) -> None:
    running = await edge({"eu": [await upstream([SWITCH, "hang"])]})
    found = await running.ask(request(chat()))
    assert (found.status, found.error["code"]) == (502, "upstream_error")


# --- behind the 101 ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_fc12_a_client_that_leaves(how: str, edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-12: the endpoint learns of it at once, even one that does not close by itself; nobody is blamed."""
    never = asyncio.Event()
    one = await upstream([SWITCH, never])
    running = await edge({"eu": [one]})
    client, _ = await opened(running)
    client.write(b"last words")
    if how == "fin":
        client.close()
    else:
        await until(lambda: one.asked[0].tunnelled)
        client.reset()
    (link,) = one.asked
    await until(lambda: link.ended or link.is_closed, "the upstream connection to end", LEAVE_S)
    assert link.tunnelled == b"last words"
    await until(lambda: running.open_exchanges == 0, "the tunnel to end")
    record = await running.record()
    assert (record["status"], record["outcome"], record["attempts"]) == (101, "client_gone", 1)
    assert running.attempts() == {("eu", "aborted"): 1}
    assert running.failures(one) == running.in_flight == 0
    assert running.pool(one)._idle == []


async def test_an_upstream_that_dies(edge: MakeEdge, upstream: MakeUpstream) -> None:
    gate = asyncio.Event()
    one = await upstream([SWITCH + b"half a fra", gate, "rst"])
    running = await edge({"eu": [one]})
    client, found = await opened(running)
    await until(lambda: bytes(found.body) == b"half a fra")
    gate.set()
    assert await client.end() == "rst"
    record = await running.record()
    assert (record["status"], record["outcome"]) == (101, "upstream_truncated")
    assert running.attempts() == {("eu", "reset"): 1}
    assert running.failures(one) == 1


async def test_a_half_closed_client_still_gets_what_is_under_way(edge: MakeEdge, upstream: MakeUpstream) -> None:
    gate = asyncio.Event()
    one = await upstream([SWITCH, gate, b"the rest", "fin"])
    running = await edge({"eu": [one]})
    client, found = await opened(running)
    client.write(b"bye")
    client.half_close()
    await until(lambda: one.asked[0].ended == "fin", "the end to pass")
    assert one.asked[0].tunnelled == b"bye"
    gate.set()
    assert await client.end() == "fin"
    assert found.body == b"the rest"
    assert (await running.record())["outcome"] == "client_gone", "with WebSocket the server closes first"


async def test_a_half_closed_upstream_still_gets_what_is_under_way(edge: MakeEdge, upstream: MakeUpstream) -> None:
    never = asyncio.Event()
    one = await upstream([SWITCH + b"bye", never])
    running = await edge({"eu": [one]})
    client, found = await opened(running)
    one.asked[0].half_close()
    assert await client.end() == "fin"
    client.write(b"the rest")
    client.close()
    await until(lambda: one.asked[0].is_closed or one.asked[0].ended)
    assert (found.body, one.asked[0].tunnelled) == (b"bye", b"the rest")
    record = await running.record()
    assert record["outcome"] == "ok"


async def test_idle_for_too_long(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream([SWITCH, "echo"])
    running = await edge({"eu": [one]}, timeouts={"tunnel_idle": "1500ms", "between_bytes": "50ms"})
    client, found = await opened(running)
    for count in range(1, 8):  # longer in all than the limit, which each byte starts anew
        await asyncio.sleep(0.25)
        client.write(b".")
        await until(lambda count=count: len(found.body) == count or client.ended)
    assert found.body == b"......."
    assert await client.end() == "fin"
    record = await running.record()
    assert (record["status"], record["outcome"]) == (101, "timeout")
    assert running.attempts() == {("eu", "timeout"): 1}
    assert running.failures(one) == 0
    await until(lambda: one.asked[0].is_closed or one.asked[0].ended)


async def test_the_total_limit_holds_here_too(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream([SWITCH, *[b".", 0.05] * 200])
    running = await edge({"eu": [one]}, timeouts={"total": "500ms"})
    client, _ = await opened(running)
    await client.end()
    assert (await running.record())["outcome"] == "timeout"


async def test_fc39_a_tunnel_has_the_grace_and_no_more(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-39: a tunnel runs on while the edge stops, until the grace is over."""
    one, other = await upstream([SWITCH, "echo"], [SWITCH, "echo"]), await upstream()
    running = await edge({"eu": [one], "us": [other]})
    client, found = await opened(running)
    short, _ = await opened(running)
    stopping = await stopped(running, 2)
    client.write(b"still here")
    await until(lambda: bytes(found.body) == b"still here")
    one.asked[1].close()
    assert await short.end() == "fin"
    assert await client.end() in ("fin", "rst")
    await asyncio.wait_for(stopping, 8)
    outcomes = sorted((record["status"], record["outcome"]) for record in running.records())
    assert outcomes == [(101, "ok"), (101, "upstream_truncated")]
    assert running.failures(one) == 0


async def test_a_reload_leaves_tunnels_alone(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one, other = await upstream([SWITCH, "echo"]), await upstream()
    running = await edge({"eu": [one]})
    client, found = await opened(running)
    assert running.reload(config_of({"eu": [other]})) == []
    client.write(b"on")
    await until(lambda: bytes(found.body) == b"on")


# --- back-pressure ---------------------------------------------------------------------------------------


def waiting_bytes(running: RunningEdge) -> int:
    """What the edge holds of its tunnels."""
    (connection,) = running.edge._listener.connections
    tunnel: Any = connection._exchange._tunnel  # type: ignore[union-attr]
    return sum(end.transport.get_write_buffer_size() for end in (tunnel._client, tunnel._upstream))


async def test_fc13_a_slow_client_holds_the_upstream_back(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-13: memory stays bounded, and every byte arrives once it is read."""
    piece = bytes(range(256)) * 1024
    one = await upstream([SWITCH, *[piece] * 128, "fin"])  # 32 MiB
    running = await edge({"eu": [one]})
    client, _ = await running.connect_narrow()
    found = client.expect()
    client.write(handshake())
    await until(lambda: one.requests and one.asked[0].sent_bytes > MIB)
    sent = -1
    while sent != one.asked[0].sent_bytes:  # until nothing moves any more
        sent = one.asked[0].sent_bytes
        await asyncio.sleep(0.2)
        assert waiting_bytes(running) < MIB
    assert sent < 24 * MIB, "it was not held back"
    assert client.transport is not None
    client.transport.resume_reading()
    assert await client.end() == "fin"
    assert len(found.body) == 128 * len(piece)
    assert found.body == piece * 128
    assert (await running.record())["outcome"] == "ok"


async def test_fc13_a_slow_upstream_holds_the_client_back(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-13, the other way."""
    never = asyncio.Event()
    one = await upstream([SWITCH, never])
    running = await edge({"eu": [one]})
    client, _ = await opened(running)
    (link,) = one.asked
    assert link.transport is not None
    assert client.transport is not None
    link.transport.pause_reading()
    whole = bytes(range(256)) * 4096 * 24  # 24 MiB
    client.write(whole)
    left = -1
    while left != client.transport.get_write_buffer_size():
        left = client.transport.get_write_buffer_size()
        await asyncio.sleep(0.2)
        assert waiting_bytes(running) < MIB
    assert left, "it was not held back"
    link.transport.resume_reading()
    await until(lambda: len(link.tunnelled or b"") == len(whole))
    assert link.tunnelled == whole


async def test_early_bytes_are_bounded(edge: MakeEdge, upstream: MakeUpstream) -> None:
    gate = asyncio.Event()
    one = await upstream([gate, SWITCH, "hang"])
    running = await edge({"eu": [one]})
    client = await running.connect()
    whole = bytes(range(256)) * 4096 * 24
    client.send(handshake() + whole)
    await until(lambda: one.requests)
    (connection,) = running.edge._listener.connections
    await until(lambda: connection._reader.behind)
    await asyncio.sleep(0.3)
    assert len(connection._reader.behind or b"") < MIB
    gate.set()
    (link,) = one.asked
    await until(lambda: len(link.tunnelled or b"") == len(whole))
    assert link.tunnelled == whole


async def test_upgrades_through_tls(secure_edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream([SWITCH, "echo"], [SWITCH, asyncio.Event()])
    running = await secure_edge({"eu": [one]})
    client, found = await opened(running)
    client.write(b"x" * 300_000)
    await until(lambda: len(found.body) == 300_000)
    assert one.requests[0].one("x-forwarded-proto") == "https"
    one.asked[0].close()
    assert await client.end() == "fin"
    client, found = await opened(running)
    client.write(b"bye")
    client.close()
    await until(lambda: one.asked[1].ended or one.asked[1].is_closed, "the upstream to be closed", LEAVE_S)
    await until(lambda: len(running.records()) == 2)
    assert [record["outcome"] for record in running.records()] == ["ok", "client_gone"]
    assert one.asked[1].tunnelled == b"bye"
