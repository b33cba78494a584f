"""WebSocket on `/v1/realtime` up to the 101: a request like any other, with the same fences, keys and failover."""

from __future__ import annotations

import pytest

from gslb.wire.websocket import accept_of
from tests.support.raw_client import chat, request, until
from tests.support.raw_upstream import GOOD, Step, answer
from tests.system.conftest import MakeEdge, MakeUpstream
from tests.system.handshakes import ACCEPT, NONCE, SWITCH, handshake, opened
from tests.system.test_disconnect import LEAVE_S


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


async def test_a_tunnel_says_nothing_of_how_long_answers_hold_a_slot(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    one = await upstream([SWITCH, "echo"])
    running = await edge({"eu": [one]})
    client, _ = await opened(running)
    one.asked[0].close()
    assert await client.end() == "fin"
    assert (await running.record())["outcome"] == "ok"
    (record,) = running.edge.fleet._records.values()
    assert record.seen.is_empty
    assert record.fit.slot_hold_ms == record.endpoint.slot_hold_ms


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
