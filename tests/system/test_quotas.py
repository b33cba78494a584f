"""What one client may have at once, and all together: FC-35, connections of an address, buffered bodies."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.edge import RunningEdge, config_of
from tests.support.raw_client import Answer, RawClient, chat, request, until
from tests.support.raw_upstream import DONE, GOOD, LAST, SSE_HEAD, Script, answer, chunk, event
from tests.system.conftest import MakeEdge, MakeUpstream

KEYS = {"ACME": "gk-1", "ZETA": "gk-2"}
TWO: dict[str, Any] = {"acme": {"key_env": "ACME", "max_concurrency": 2}, "zeta": {"key_env": "ZETA"}}
KEY = ("Authorization", "Bearer gk-1")
ASK = request(chat(), fields=(KEY,))
STREAM = request(chat(stream=True), fields=(KEY,))
MIB = 1024 * 1024


def running_of(running: RunningEdge, tenant: str = "acme") -> int:
    return running.edge.counters.tenant_running.get(tenant, 0)


async def two_streams(running: RunningEdge) -> list[tuple[RawClient, Answer]]:
    """Two streams of acme that have shown their first event."""
    clients = [await running.connect() for _ in range(2)]
    streams = [(client, client.send(STREAM)) for client in clients]
    for _, found in streams:
        await until(lambda: found.body)  # noqa: B023 - awaited within the turn
    return streams


async def test_fc35_a_streams_that_were_killed_give_their_places_back(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-35 a: the client kills two streams in the middle; the next request is served."""
    endless: Script = [SSE_HEAD + chunk(event("A")), "hang"]
    running = await edge({"eu": [await upstream(endless, endless)]}, KEYS, tenants=TWO)
    streams = await two_streams(running)
    found = await running.ask(ASK)
    assert (found.status, found.error["code"], found.one("retry-after")) == (429, "concurrency_limit", "1")
    assert found.error["type"] == "rate_limit_error"
    assert found.one("x-should-retry") is None, "waiting helps"
    for client, _ in streams:
        client.reset()
    await until(lambda: running_of(running) == 0)
    assert (await running.ask(ASK)).status == 200
    assert [record["tenant"] for record in running.records()] == ["acme"] * 4


async def test_fc35_b_however_a_request_ends_its_place_is_free(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-35 b: 404, 400, 502, a timeout and a parse error, then two good ones at once."""
    gate = asyncio.Event()
    one = await upstream(["rst"], ["hang"], [answer(400, b"{}")], [answer(503, b"{}")], [gate, GOOD], [gate, GOOD])
    running = await edge({"eu": [one]}, KEYS, tenants=TWO, timeouts={"answer": "100ms", "between_bytes": "8s"},
                         health={"passive_fall": 99})  # fmt: skip
    wrong = [request(chat("absent"), fields=(KEY,)), request("{", fields=(KEY,)), ASK, ASK, ASK, ASK]
    statuses = [(await running.ask(raw)).status for raw in wrong]
    assert statuses == [404, 400, 502, 504, 400, 503]
    assert (await running.ask(b"BAD\r\n\r\n")).status == 400
    assert running_of(running) == 0
    running.reload(config_of({"eu": [one]}, tenants=TWO))
    clients = [await running.connect() for _ in range(2)]
    answers = [client.send(ASK) for client in clients]
    await until(lambda: running_of(running) == 2)
    gate.set()
    for client, found in zip(clients, answers, strict=True):
        assert (await client.whole(found)).status == 200


async def test_fc35_c_of_twenty_at_once_two_go_through(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-35 c: exactly two reach the upstream, the others are told when to come back; other tenants are served."""
    gate = asyncio.Event()
    one = await upstream(default=[gate, GOOD])
    running = await edge({"eu": [one]}, KEYS, tenants=TWO)
    clients = [await running.connect() for _ in range(20)]
    answers = [client.send(ASK) for client in clients]
    await until(lambda: len(one.requests) == 2 and sum(found.is_complete for found in answers) == 18)
    other = await running.connect()
    others = other.send(request(chat(), fields=(("Authorization", "Bearer gk-2"),)))
    await until(lambda: len(one.requests) == 3)
    metrics = (await running.admin("/metrics")).body.decode()
    assert 'gslb_tenant_inflight{tenant="acme"} 2.0' in metrics
    assert 'gslb_tenant_inflight{tenant="zeta"} 1.0' in metrics
    gate.set()
    for client, found in [*zip(clients, answers, strict=True), (other, others)]:
        await client.whole(found)
    assert sorted(found.status for found in answers) == [200] * 2 + [429] * 18
    for found in answers:
        if found.status == 429:
            assert int(found.one("retry-after") or 0) >= 1
    assert len(one.requests) == 3
    assert 'gslb_tenant_inflight{tenant="acme"} 0.0' in (await running.admin("/metrics")).body.decode()
    refused = [record for record in running.records() if record["status"] == 429]
    assert {(record["outcome"], record["reason"]) for record in refused} == {("refused", "concurrency_limit")}


async def test_fc35_d_a_reload_counts_what_runs(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-35 d: the limit is set while two run without one; they count."""
    gate = asyncio.Event()
    one = await upstream(default=[SSE_HEAD + chunk(event("A")), gate, chunk(DONE) + LAST])
    running = await edge({"eu": [one]}, KEYS, tenants={"acme": {"key_env": "ACME"}})
    streams = await two_streams(running)
    assert running.reload(config_of({"eu": [one]}, tenants=TWO)) == []
    assert (await running.ask(ASK)).status == 429
    gate.set()
    for client, found in streams:
        assert (await client.whole(found)).body == event("A") + DONE
    assert (await running.ask(STREAM)).status == 200


async def test_fc35_e_a_key_that_was_removed_finishes_what_runs(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-35 e: running ones finish, new ones are 401."""
    gate = asyncio.Event()
    one = await upstream(default=[SSE_HEAD + chunk(event("A")), gate, chunk(DONE) + LAST])
    running = await edge({"eu": [one]}, KEYS, tenants=TWO)
    streams = await two_streams(running)
    assert running.reload(config_of({"eu": [one]}, tenants={"zeta": TWO["zeta"]})) == []
    assert (await running.ask(ASK)).status == 401
    gate.set()
    for client, found in streams:
        assert (await client.whole(found)).body == event("A") + DONE
    assert running_of(running) == 0


async def test_the_model_list_takes_no_place(edge: MakeEdge, upstream: MakeUpstream) -> None:
    running = await edge(
        {"eu": [await upstream(default=[SSE_HEAD + chunk(event("A")), "hang"])]}, KEYS, tenants=TWO
    )
    await two_streams(running)
    assert (await running.ask(request(method="GET", path="/v1/models", fields=(KEY,)))).status == 200


# --- connections of one address -------------------------------------------------------------------------


async def test_a_trusted_proxy_may_open_any_number(edge: MakeEdge, upstream: MakeUpstream) -> None:
    geo = {"trusted_proxies": ["127.0.0.0/8"]}
    running = await edge({"eu": [await upstream()]}, geo=geo, limits={"connections_per_address": 1})
    for client in [await running.connect() for _ in range(4)]:
        assert (await client.ask(request(chat()))).status == 200


async def test_with_the_proxy_protocol_the_named_client_is_counted(edge: MakeEdge, upstream: MakeUpstream) -> None:
    geo = {"trusted_proxies": ["127.0.0.0/8"], "proxy_protocol": True}
    running = await edge({"eu": [await upstream()]}, geo=geo, limits={"connections_per_address": 1})

    def named(address: str) -> bytes:
        return b"PROXY TCP6 %b 2001:db8::1 1 2\r\n" % address.encode() + request(chat())

    one, same, other = [await running.connect() for _ in range(3)]
    assert (await one.ask(named("2001:db8:7::1"))).status == 200
    same.write(named("2001:db8:7::ffff"))
    await same.end()
    assert same.received == b""
    assert (await other.ask(named("2001:db8:8::1"))).status == 200
    one.close()
    await until(lambda: running.edge.counters.open_connections == 1)
    again = await running.connect()
    assert (await again.ask(named("2001:db8:7::ffff"))).status == 200


# --- bodies ---------------------------------------------------------------------------------------------

BOUNDS = {"body_bytes": "1MiB", "multipart_bytes": "1MiB", "buffered_bytes": "2MiB"}


def held_bytes(running: RunningEdge) -> int:
    return running.edge._door.body_budget.held_bytes


@pytest.mark.parametrize("chunks", [0, 50_000])
async def test_fc13_bodies_that_are_held_are_bounded_together(
    chunks: int, edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-13: a slow client holds the upstream back."""
    gate = asyncio.Event()
    one = await upstream([gate, GOOD], [gate, GOOD], default=[GOOD])
    running = await edge({"eu": [one]}, limits=BOUNDS)
    big = request(chat(prompt="x" * 900_000), chunks=chunks)
    waiting = [await running.connect() for _ in range(2)]
    answers = [client.send(big) for client in waiting]
    await until(lambda: len(one.requests) == 2)
    found = await running.ask(big)
    assert (found.status, found.error["code"], found.one("retry-after")) == (503, "saturated", "1")
    assert found.one("connection") == "close"
    assert (await running.ask(request(chat()))).status == 200, "small ones still fit"
    assert (await running.admin("/api/v1/status")).json["edge"]["buffered_body_bytes"] >= 1_800_000
    gate.set()
    for client, found in zip(waiting, answers, strict=True):
        assert (await client.whole(found)).status == 200
    assert held_bytes(running) == 0
    assert (await running.ask(big)).status == 200


async def test_a_body_is_let_go_when_its_answer_is_committed(edge: MakeEdge, upstream: MakeUpstream) -> None:
    gate = asyncio.Event()
    one = await upstream([SSE_HEAD, gate, chunk(event("A")), "hang"])
    running = await edge({"eu": [one]}, limits=BOUNDS)
    client = await running.connect()
    found = client.send(request(chat(stream=True, prompt="x" * 500_000)))
    await until(lambda: one.requests)
    assert held_bytes(running) > 500_000, "another endpoint might have to be asked"
    gate.set()
    await until(lambda: found.body)
    assert held_bytes(running) == 0


async def test_bodies_of_clients_that_leave_are_let_go(edge: MakeEdge, upstream: MakeUpstream) -> None:
    running = await edge({"eu": [await upstream(default=["hang"])]}, limits=BOUNDS)
    raw = request(chat(prompt="x" * 500_000))
    for piece in (
        raw[:400_000],
        request(chat(prompt="x" * 500_000), chunks=9000)[:400_000],
        raw + raw[:400_000],
        raw,
    ):
        client = await running.connect()
        client.write(piece)
        await until(lambda: held_bytes(running) > 300_000)
        client.reset()
        await until(lambda: held_bytes(running) == 0)
    big = request(b"x" * (2 * MIB))
    assert (await running.ask(big)).status == 413
    assert held_bytes(running) == 0


def form(size: int) -> bytes:
    """A form with `size` bytes of audio."""
    body = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--b\r\n' + (
        b'Content-Disposition: form-data; name="file"; filename="a"\r\n\r\n%b\r\n--b--\r\n' % (b"x" * size)
    )
    fields = (("Content-Type", "multipart/form-data; boundary=b"),)
    return request(body, path="/v1/audio/transcriptions", fields=fields)


@pytest.mark.parametrize(("json_bytes", "form_bytes"), [("10KiB", "100KiB"), ("100KiB", "10KiB")])
async def test_forms_have_a_limit_of_their_own(
    json_bytes: str, form_bytes: str, edge: MakeEdge, upstream: MakeUpstream
) -> None:
    running = await edge(
        {"eu": [await upstream()]}, limits={"body_bytes": json_bytes, "multipart_bytes": form_bytes}
    )
    statuses = [(await running.ask(raw)).status for raw in (request(chat(prompt="x" * 50_000)), form(50_000))]
    assert statuses == ([413, 200] if json_bytes == "10KiB" else [200, 413])
    client = await running.connect()
    for _ in range(3):  # a head that repeats has the same limit
        assert (await client.ask(form(5_000))).status == 200
    assert (await client.ask(form(200_000))).status == 413


async def test_a_reload_changes_the_bound(edge: MakeEdge, upstream: MakeUpstream, tmp_path: Path) -> None:
    one = await upstream()
    running = await edge({"eu": [one]}, limits=BOUNDS)
    small = {"body_bytes": "1MiB", "multipart_bytes": "1MiB", "buffered_bytes": "10KiB"}
    (problem,) = running.reload(config_of({"eu": [one]}, limits=small))
    assert "buffered_bytes (10240) must hold one whole body" in problem
    tight = {"body_bytes": "10KiB", "multipart_bytes": "10KiB", "buffered_bytes": "10KiB"}
    assert running.reload(config_of({"eu": [one]}, limits=tight)) == []
    assert running.edge._door.body_budget.limit_bytes == 10 * 1024
