"""Hedging: a second attempt beside a slow first one, before the first content; off unless configured."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gslb.native import is_native
from tests.support.edge import RunningEdge
from tests.support.raw_client import RawClient, chat, request, until
from tests.support.raw_upstream import (
    DONE,
    LAST,
    ROLE_EVENT,
    SSE_HEAD,
    RawUpstream,
    Step,
    answer,
    chunk,
    event,
    stream,
)
from tests.system.conftest import MakeEdge, MakeUpstream
from tests.system.handshakes import handshake
from tests.system.test_disconnect import LEAVE_S

STREAM = request(chat(stream=True))
HEDGE: dict[str, Any] = {"failover": {"hedge": {"after": "50ms"}}}


async def left(one: RawUpstream) -> None:
    """Wait until the edge has aborted what `one` was asked."""
    (link,) = one.asked
    await until(lambda: link.ended or link.is_closed, "the loser to be aborted", LEAVE_S)


def hedges(running: RunningEdge) -> int:
    """Hedges under way."""
    hedging = running.edge._listener.generation.hedging
    assert hedging is not None
    return hedging.running


SLOW: dict[str, list[Step]] = {
    "no head": ["hang"], "a head": [SSE_HEAD, "hang"], "no content": [SSE_HEAD + chunk(ROLE_EVENT), "hang"],
}  # fmt: skip


@pytest.mark.parametrize("name", SLOW)
async def test_the_second_answers(name: str, edge: MakeEdge, upstream: MakeUpstream) -> None:
    eu, us = await upstream(SLOW[name]), await upstream(stream(event("A"), DONE))
    running = await edge({"eu": [eu], "us": [us]}, routing=HEDGE)
    found = await running.ask(STREAM)
    assert (found.status, found.one("x-gslb-region"), found.one("x-gslb-attempts")) == (200, "us", "2")
    assert found.body == event("A") + DONE
    await left(eu)
    assert eu.requests[0].body == us.requests[0].body
    record = await running.record()
    assert (record["attempts"], record["reason"], record["outcome"]) == (2, "hedge", "ok")
    assert running.attempts() == {("eu", "aborted"): 1, ("us", "ok"): 1}
    assert running.failures(eu) == hedges(running) == running.in_flight == 0


async def test_the_first_answers_after_all(edge: MakeEdge, upstream: MakeUpstream) -> None:
    gate = asyncio.Event()
    eu, us = await upstream([gate, *stream(event("A"), DONE)]), await upstream([SSE_HEAD, "hang"])
    running = await edge({"eu": [eu], "us": [us]}, routing=HEDGE)
    client = await running.connect()
    found = client.send(STREAM)
    await until(lambda: us.requests)
    assert (hedges(running), running.in_flight) == (1, 2)
    gate.set()
    await client.whole(found)
    assert (found.one("x-gslb-region"), found.one("x-gslb-attempts")) == ("eu", "2")
    await left(us)
    record = await running.record()
    assert (record["region"], record["reason"]) == ("eu", "home")
    assert running.attempts() == {("eu", "ok"): 1, ("us", "aborted"): 1}
    assert running.failures(us) == hedges(running) == 0


async def asked_nobody_else(running: RunningEdge, raw: bytes, slow: RawUpstream, other: RawUpstream) -> None:
    """Ask; let well more than the time to hedge pass; nobody else may have been asked."""
    client = await running.connect()
    client.send(raw)
    await until(lambda: slow.requests)
    await asyncio.sleep(0.3)
    assert other.requests == []
    client.close()


CALM: dict[str, tuple[dict[str, Any], bytes]] = {
    "off": ({}, STREAM),
    "not streamed": (HEDGE, request(chat())),
    "a tunnel": (HEDGE, handshake()),
    "not slow yet": ({"failover": {"hedge": {"after": "10m"}}}, STREAM),
}


@pytest.mark.parametrize("name", CALM)
async def test_where_nobody_else_is_asked(name: str, edge: MakeEdge, upstream: MakeUpstream) -> None:
    routing, raw = CALM[name]
    eu, us = await upstream(["hang"]), await upstream()
    running = await edge({"eu": [eu], "us": [us]}, routing=routing)
    await asked_nobody_else(running, raw, eu, us)


async def test_fences_bind_hedges(edge: MakeEdge, upstream: MakeUpstream) -> None:
    eu, us = await upstream(["hang"]), await upstream()
    rules = {"rules": [{"countries": ["EU"], "jurisdictions": ["EU"]}]}
    running = await edge({"eu": [eu], "us": [us]}, routing=HEDGE, residency=rules)
    await asked_nobody_else(running, STREAM, eu, us)


async def test_an_ill_endpoint_is_no_hedge(edge: MakeEdge, upstream: MakeUpstream) -> None:
    eu, us = await upstream(["hang"]), await upstream()
    us.health_status = 503
    running = await edge({"eu": [eu], "us": [us]}, routing=HEDGE, health={"fall": 1})
    await asked_nobody_else(running, STREAM, eu, us)


async def test_after_content_nobody_else_is_asked(edge: MakeEdge, upstream: MakeUpstream) -> None:
    gate = asyncio.Event()
    eu, us = await upstream([SSE_HEAD + chunk(event("A")), gate, chunk(DONE) + LAST]), await upstream()
    running = await edge({"eu": [eu], "us": [us]}, routing=HEDGE)
    client = await running.connect()
    found = client.send(STREAM)
    await until(lambda: found.body)
    await asyncio.sleep(0.3)
    gate.set()
    await client.whole(found)
    assert us.requests == []


async def test_the_budget_bounds_hedges_at_once(edge: MakeEdge, upstream: MakeUpstream) -> None:
    eu, us = await upstream(default=["hang"]), await upstream(default=["hang"])
    routing = {"failover": {"hedge": {"after": "50ms", "share": 0.2}}}
    running = await edge({"eu": [eu], "us": [us]}, routing=routing | {"foreign_tax": "10s"})
    clients = [await running.connect() for _ in range(20)]
    for client in clients:
        client.send(STREAM)
    await until(lambda: len(us.requests) == 4)
    await asyncio.sleep(0.3)
    assert (len(eu.requests), len(us.requests), hedges(running)) == (20, 4, 4)
    for client in clients:
        client.close()
    await until(lambda: running.open_exchanges == 0)
    assert hedges(running) == running.in_flight == 0


async def test_one_is_always_allowed(edge: MakeEdge, upstream: MakeUpstream) -> None:
    eu, us = await upstream(["hang"]), await upstream(stream(event("A"), DONE))
    routing = {"failover": {"hedge": {"after": "50ms", "share": 0.0}}}
    running = await edge({"eu": [eu], "us": [us]}, routing=routing)
    assert (await running.ask(STREAM)).one("x-gslb-region") == "us"


async def racing(
    edge: MakeEdge, upstream: MakeUpstream, first: list[Step], second: list[Step], **sections: Any
) -> tuple[RunningEdge, RawClient, Any, RawUpstream, RawUpstream]:
    """A request whose two attempts run; the steps come behind a gate each of which opens for itself."""
    eu, us = await upstream(first), await upstream(second)
    running = await edge({"eu": [eu], "us": [us]}, **{"routing": HEDGE, **sections})
    client = await running.connect()
    found = client.send(STREAM)
    await until(lambda: us.requests)
    return running, client, found, eu, us


@pytest.mark.parametrize("order", ["first", "second"])
async def test_one_fails_and_the_other_answers(order: str, edge: MakeEdge, upstream: MakeUpstream) -> None:
    fails, goes = asyncio.Event(), asyncio.Event()
    bad: list[Step] = [fails, answer(503, b"{}")]
    good: list[Step] = [goes, *stream(event("A"), DONE)]
    steps = (bad, good) if order == "first" else (good, bad)
    running, client, found, eu, us = await racing(edge, upstream, *steps)
    fails.set()
    failed = "eu" if order == "first" else "us"
    await until(lambda: (failed, "status_5xx") in running.attempts())
    assert (hedges(running), running.in_flight) == (0, 1)
    goes.set()
    await client.whole(found)
    assert (found.status, found.one("x-gslb-attempts")) == (200, "2")
    assert len(eu.requests) == len(us.requests) == 1


async def test_both_fail(edge: MakeEdge, upstream: MakeUpstream) -> None:
    gate = asyncio.Event()
    running, client, found, _, _ = await racing(
        edge, upstream, [gate, answer(503, b"{}", ("Retry-After", "7"))], [gate, "rst"]
    )
    gate.set()
    await client.whole(found)
    assert (found.status, found.error["code"], found.one("retry-after")) == (503, "no_healthy_region", "7")
    assert (found.one("x-gslb-attempts"), found.one("x-should-retry")) == ("2", "false")
    assert (await running.record())["outcome"] == "upstream_error"
    assert hedges(running) == running.in_flight == 0


async def test_both_are_silent(edge: MakeEdge, upstream: MakeUpstream) -> None:
    running, client, found, eu, us = await racing(
        edge, upstream, ["hang"], ["hang"], timeouts={"first_byte": "1500ms"}
    )
    await client.whole(found)
    assert (found.status, found.error["code"]) == (504, "upstream_timeout")
    assert running.attempts() == {("eu", "timeout"): 1, ("us", "timeout"): 1}
    assert len(eu.requests) == len(us.requests) == 1


async def test_the_time_to_commit_ends_a_race(edge: MakeEdge, upstream: MakeUpstream) -> None:
    gate = asyncio.Event()
    slow: list[Step] = [SSE_HEAD, gate, chunk(event("A")) + LAST]
    running, client, found, _, us = await racing(
        edge, upstream, slow, [SSE_HEAD, "hang"], timeouts={"commit_after": "1500ms"}
    )
    await until(lambda: found.has_head)
    assert found.one("x-gslb-region") == "eu"
    await left(us)
    gate.set()
    await client.whole(found)
    assert found.body == event("A")
    assert hedges(running) == 0


@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_fc12_a_client_that_leaves_ends_both(how: str, edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-12: both endpoints are freed at once, and nobody is blamed."""
    running, client, _, eu, us = await racing(edge, upstream, ["hang"], [SSE_HEAD, "hang"])
    if how == "fin":
        client.close()
    else:
        client.reset()
    await left(eu)
    await left(us)
    record = await running.record()
    assert (record["status"], record["outcome"], record["attempts"]) == (499, "client_gone", 2)
    assert running.attempts() == {("eu", "aborted"): 1, ("us", "aborted"): 1}
    assert running.failures(eu) == running.failures(us) == hedges(running) == running.in_flight == 0


@pytest.mark.parametrize("how", ["stop", "total"])
async def test_the_edges_own_ends_end_both(how: str, edge: MakeEdge, upstream: MakeUpstream) -> None:
    timeouts = {"total": "1500ms"} if how == "total" else {}
    running, client, found, eu, us = await racing(edge, upstream, ["hang"], ["hang"], timeouts=timeouts)
    if how == "stop":
        await running.edge.stop(0)
    await client.whole(found)
    assert found.status == (503 if how == "stop" else 504)
    await left(eu)
    await left(us)
    assert hedges(running) == running.in_flight == 0


@pytest.mark.skipif(is_native(), reason="the methods of compiled rooms cannot be replaced")
async def test_a_connect_that_hangs_is_hedged(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """While no connection stands there is no deadline to lose."""
    eu, us = await upstream(), await upstream(stream(event("A"), DONE))
    running = await edge({"eu": [eu], "us": [us]}, routing=HEDGE)
    pool = running.pool(eu)
    pool.close_idle()
    never: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
    pool._resolver.addresses = lambda: never  # type: ignore[method-assign, assignment, return-value]
    found = await running.ask(STREAM)
    assert found.one("x-gslb-region") == "us"
    assert running.attempts() == {("eu", "aborted"): 1, ("us", "ok"): 1}
