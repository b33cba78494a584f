"""Nobody has room: requests wait at the edge, go in order, leave, are refused early, and survive what happens.

Field cases: FC-12 (e: the client leaves while it waits), FC-34, FC-39 (one waits in the queue at SIGTERM).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

from gslb.native import is_native
from gslb.proxy.admission import Admitted, admit
from tests.support.edge import ADMIN_TOKEN, RunningEdge, config_of
from tests.support.raw_client import FIN, Answer, RawClient, chat, request, until
from tests.support.raw_upstream import DONE, GOOD, LAST, SSE_HEAD, RawUpstream, Script, answer, chunk, event
from tests.system.conftest import MakeEdge, MakeMock, MakeUpstream

ASK = request(chat())


class Gated:
    """An upstream that keeps each answer back until it is told to give one more."""

    def __init__(self) -> None:
        self._gates: list[asyncio.Event] = []
        self._given = 0

    def script(self) -> Script:
        gate = asyncio.Event()
        self._gates.append(gate)
        return [gate, GOOD]

    def give(self, count: int = 1) -> None:
        """Let the next `count` answers go out, in the order of their requests."""
        for _ in range(count):
            self._gates[self._given].set()
            self._given += 1

    def order(self, one: RawUpstream) -> list[str]:
        """The names of the requests that have come, in order."""
        return [received.one("x-name") or "" for received in one.requests]


async def gated(upstream: MakeUpstream) -> tuple[RawUpstream, Gated]:
    """A listening one and its gates."""
    one, gates = await upstream(), Gated()
    one.next_script = gates.script  # type: ignore[method-assign]
    return one, gates


def full_at(one: RawUpstream, capacity: int = 1) -> dict[str, Any]:
    return {"url": one.url, "capacity": capacity}


def depth(running: RunningEdge) -> int:
    return running.edge.counters.queue_depth


async def send(running: RunningEdge, name: str, *fields: tuple[str, str], **body: Any) -> tuple[RawClient, Answer]:
    """One request under a name, on a connection of its own."""
    client = await running.connect()
    return client, client.send(request(chat(**body), fields=(("X-Name", name), *fields)))


async def fill(running: RunningEdge, one: RawUpstream) -> tuple[RawClient, Answer]:
    """Take the only place there is."""
    taken = await send(running, "first")
    await until(lambda: one.requests, "the first request there")
    return taken


async def hold(running: RunningEdge, name: str, *fields: tuple[str, str], **body: Any) -> tuple[RawClient, Answer]:
    """One more request, which waits."""
    before = depth(running)
    waiting = await send(running, name, *fields, **body)
    await until(lambda: depth(running) == before + 1, f"{name} to be held")
    return waiting


def record_of(running: RunningEdge, **members: Any) -> dict[str, Any]:
    """The one record with these members."""
    (found,) = (one for one in running.records() if members.items() <= one.items())
    return found


# --- room comes -----------------------------------------------------------------------------------------


async def test_a_request_waits_until_a_place_comes_free(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one, gates = await gated(upstream)
    running = await edge({"eu": [full_at(one)]})
    _, first = await fill(running, one)
    client, found = await hold(running, "second")
    assert "gslb_queue_depth 1.0" in (await running.admin("/metrics")).body.decode()
    assert (await running.admin("/api/v1/status")).json["edge"]["queue_depth"] == 1
    gates.give()
    await until(lambda: len(one.requests) == 2)
    assert depth(running) == 0
    gates.give()
    await client.whole(found)
    assert (first.status, found.status, found.one("x-gslb-attempts")) == (200, 200, "1")
    await until(lambda: len(running.records()) == 2)
    served, waited = running.records()
    assert served["held_ms"] == 0
    assert 0 < waited["held_ms"] <= waited["duration_ms"]
    assert waited["predicted_ttft_ms"] >= waited["held_ms"], "the waiting is part of what was foretold"
    assert (waited["reason"], waited["home"], waited["outcome"]) == ("home", "eu", "ok")


async def test_streams_wait_too_and_the_decision_is_the_last_one(edge: MakeEdge, upstream: MakeUpstream) -> None:
    gate = asyncio.Event()
    one = await upstream(
        [SSE_HEAD + chunk(event("A")), gate, chunk(DONE) + LAST], [SSE_HEAD + chunk(event("B") + DONE) + LAST]
    )
    running = await edge({"eu": [full_at(one)]})
    first = await running.connect()
    streamed = first.send(request(chat(stream=True)))
    await until(lambda: streamed.body)
    client, found = await hold(running, "second", ("x-gslb-explain", "1"), stream=True)
    gate.set()
    await client.whole(found)
    assert found.body == event("B") + DONE
    assert "home eu (home)" in (found.one("x-gslb-decision") or "")
    assert "no room" not in (found.one("x-gslb-decision") or "")


async def test_room_elsewhere_by_the_operators_hand_is_used_at_once(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    one, gates = await gated(upstream)
    us = await upstream()
    running = await edge({"eu": [full_at(one)], "us": [us]})
    hand: dict[str, Any] = {"method": "POST", "body": b'{"target": "us"}', "token": ADMIN_TOKEN}
    assert (await running.admin("/api/v1/cordon", **hand)).status == 200
    await fill(running, one)
    client, found = await hold(running, "second")
    assert (await running.admin("/api/v1/uncordon", **hand)).status == 200
    await client.whole(found)
    assert (found.status, found.one("x-gslb-region")) == (200, "us")
    gates.give()
    await until(lambda: len(running.records()) == 2)
    assert record_of(running, region="us")["reason"] == "full", "what it saw at home when its turn came"


async def test_a_scrape_that_shows_room_lets_it_go(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """Without `capacity` slots are learnt where an engine queues; unknown ones hold nobody."""
    one = await upstream()
    busy = "vllm:num_requests_running 2\nvllm:num_requests_waiting {}\nvllm:kv_cache_usage_perc 0.1\n"
    one.metrics = busy.format(0)
    running = await edge({"eu": [one]}, health={"scrape_interval": "50ms", "scrape_timeout": "50ms"})
    assert (await running.ask(ASK)).status == 200, "2 running, and who knows how many may"
    one.metrics = busy.format(3)
    await until(lambda: running.edge.fleet.snapshot.endpoints[0].slots == 2, "slots to be learnt")
    client, found = await hold(running, "second")
    one.metrics = busy.format(0).replace("running 2", "running 0")
    await client.whole(found)
    assert found.status == 200


async def test_an_old_sample_holds_nobody_for_ever(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-24: what others have running fades with the age of the sample; no event tells that."""
    one = await upstream()
    full = "vllm:num_requests_running 4\nvllm:num_requests_waiting 0\n"
    one.metrics = full
    running = await edge(
        {"eu": [full_at(one, 4)]},
        health={"scrape_interval": "50ms", "scrape_timeout": "50ms", "stale_after": "400ms"},
    )
    client, found = await hold(running, "second")
    one.metrics = None
    await client.whole(found)
    assert found.status == 200


# --- the order ------------------------------------------------------------------------------------------


async def test_the_late_come_last_and_are_served(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one, gates = await gated(upstream)
    running = await edge({"eu": [full_at(one)]})
    await fill(running, one)
    budget = "x-gslb-latency-budget-ms"
    waiting = [
        await hold(running, "late", (budget, "1")),
        await hold(running, "patient", (budget, "80000")),
        await hold(running, "none"),
        await hold(running, "soon", (budget, "20000")),
    ]
    for count in range(2, 6):
        gates.give()
        await until(lambda: len(one.requests) == count)  # noqa: B023
    gates.give()
    for client, found in waiting:
        assert (await client.whole(found)).status == 200
    assert gates.order(one) == ["first", "soon", "patient", "none", "late"]


@pytest.fixture
def reads_class() -> Iterator[None]:
    """The class of a request is what `x-gslb-priority` says, whoever else reads it."""
    if is_native():
        pytest.skip("the functions of compiled rooms cannot be replaced")

    def admitted(*args: Any) -> Admitted:
        found = admit(*args)
        assert found.facts is not None
        found.facts.priority = {b"high": 1, b"low": -1}.get(args[0].first(b"x-gslb-priority"), 0)
        return found

    with patch("gslb.proxy.exchange.admit", admitted):
        yield


@pytest.mark.usefixtures("reads_class")
async def test_higher_classes_first(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one, gates = await gated(upstream)
    running = await edge({"eu": [full_at(one)]})
    await fill(running, one)
    waiting = [await hold(running, name, ("x-gslb-priority", name)) for name in ("normal", "low", "high")]
    for count in range(2, 5):
        gates.give()
        await until(lambda: len(one.requests) == count)  # noqa: B023
    gates.give()
    for client, found in waiting:
        await client.whole(found)
    assert gates.order(one) == ["first", "high", "normal", "low"]


@pytest.mark.usefixtures("reads_class")
async def test_a_full_queue_makes_way_for_a_higher_class(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one, gates = await gated(upstream)
    running = await edge({"eu": [full_at(one)]}, routing={"hold": {"max_requests": 1}})
    await fill(running, one)
    client, given_way = await hold(running, "low")
    high, found = await send(running, "high", ("x-gslb-priority", "high"))
    await client.whole(given_way)
    assert (given_way.status, given_way.error["code"]) == (503, "saturated")
    assert record_of(running, status=503)["held_ms"] > 0
    gates.give()
    await until(lambda: len(one.requests) == 2)
    gates.give()
    assert (await high.whole(found)).status == 200


async def test_who_comes_when_a_place_is_free_waits_behind_those_who_wait(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """The place comes free and a request arrives within one turn of the loop."""
    one, gates = await gated(upstream)
    running = await edge({"eu": [full_at(one)]})
    await fill(running, one)
    waiting = [await hold(running, "second")]
    (view,) = running.edge.fleet.snapshot.endpoints
    waiting.append(await send(running, "third"))
    await until(lambda: depth(running) == 2)
    view.own.add(-1, 0)  # nobody is told
    waiting.append(await send(running, "fourth"))
    await until(lambda: len(one.requests) == 2)
    view.own.add(1, 0)
    await until(lambda: depth(running) == 2)
    gates.give(2)
    await until(lambda: len(one.requests) == 3)
    gates.give()
    await until(lambda: len(one.requests) == 4)
    gates.give()
    for client, found in waiting:
        await client.whole(found)
    assert gates.order(one) == ["first", "second", "third", "fourth"]


async def test_two_thousand_at_once(edge: MakeEdge, mock: MakeMock) -> None:
    """All are served, none twice, and what they held is given back."""
    one = await mock(itl_ms=0.1)
    running = await edge({"eu": [{"url": one.url, "capacity": 50}]}, routing={"hold": {"max_requests": 5000}})
    clients = [await running.connect() for _ in range(2050)]
    # Nothing of it runs yet: the places are taken by hand.
    (view,) = running.edge.fleet.snapshot.endpoints
    view.own.add(50, 0)
    answers = [client.send(request(chat(max_tokens=2))) for client in clients]
    await until(lambda: depth(running) == 2050, "all held", 60)
    assert running.edge._door.body_budget.held_bytes > 2050 * 50
    view.own.add(-50, 0)
    await until(lambda: all(found.is_complete for found in answers), "all served", 60)
    assert {found.status for found in answers} == {200}
    assert running.attempts() == {("eu", "ok"): 2050}
    assert depth(running) == running.edge._door.body_budget.held_bytes == 0
    assert running.edge._door.holding._timer is None or depth(running) == 0


# --- leaving --------------------------------------------------------------------------------------------


async def test_fc12_e_a_client_that_leaves_while_it_waits(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-12 e: nobody is asked for it afterwards; one record; everything it held is given back."""
    one, gates = await gated(upstream)
    running = await edge({"eu": [full_at(one)]})
    _, first = await fill(running, one)
    client, _ = await hold(running, "second")
    client.close()
    await until(lambda: running.open_exchanges == 1)
    assert depth(running) == 0
    gates.give()
    await until(lambda: first.is_complete)
    await until(lambda: len(running.records()) == 2)
    assert len(one.requests) == 1
    gone = record_of(running, outcome="client_gone")
    assert (gone["status"], gone["attempts"], gone["region"], gone["home"]) == (499, 0, None, "eu")
    assert gone["held_ms"] > 0
    assert running.edge._door.body_budget.held_bytes == 0


# --- refusals -------------------------------------------------------------------------------------------


async def test_fc34_saturated_after_the_longest_wait(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-34: the wait is bounded; then 503 with Retry-After, and the connection goes on."""
    one, gates = await gated(upstream)
    running = await edge({"eu": [full_at(one)]}, routing={"hold": {"max_wait": "80ms"}})
    await fill(running, one)
    client, found = await send(running, "second")
    await client.whole(found)
    assert (found.status, found.error["code"], found.one("connection")) == (503, "saturated", None)
    assert int(found.one("retry-after") or 0) >= 1
    refused = record_of(running, status=503)
    assert (refused["outcome"], refused["reason"], refused["attempts"]) == ("refused", "saturated", 0)
    assert refused["held_ms"] >= 80
    gates.give()
    await until(lambda: running.in_flight == 0)
    again = client.send(ASK)
    await until(lambda: len(one.requests) == 2)
    gates.give()
    assert (await client.whole(again)).status == 200


async def test_a_total_limit_ends_the_waiting_too(edge: MakeEdge, upstream: MakeUpstream) -> None:
    running = await edge({"eu": [full_at(await upstream())]}, timeouts={"total": "150ms"})
    (view,) = running.edge.fleet.snapshot.endpoints
    view.own.add(1, 0)  # by hand: a request's own total would end as well
    found = await running.ask(ASK)
    assert (found.status, found.error["code"]) == (503, "saturated")
    view.own.add(-1, 0)


async def test_a_full_queue_refuses_at_once_and_says_when(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """Retry-After is when it would have been its turn: two wait, a place comes free every 2 s as declared."""
    one, gates = await gated(upstream)
    running = await edge({"eu": [full_at(one)]}, routing={"hold": {"max_requests": 2}, "slot_hold": "2s"})
    await fill(running, one)
    waiting = [await hold(running, name) for name in ("second", "third")]
    refused = await running.ask(ASK)
    assert (refused.status, refused.error["code"]) == (503, "saturated")
    # Or longer: what is declared is contradicted by what is seen, that no place has come free since.
    assert 6 <= int(refused.one("retry-after") or 0) <= 30
    for _ in range(3):
        gates.give()
        await until(lambda: len(gates._gates) > gates._given or depth(running) == 0)
    for client, found in waiting:
        assert (await client.whole(found)).status == 200


async def test_without_holding_a_full_fleet_refuses(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one, gates = await gated(upstream)
    running = await edge({"eu": [full_at(one)]}, routing={"hold": {"max_requests": 0}})
    await fill(running, one)
    refused = await running.ask(ASK)
    assert (refused.status, refused.error["code"]) == (503, "saturated")
    assert record_of(running, status=503)["held_ms"] == 0
    gates.give()


REFUSE = {"over_budget": "refuse", "slot_hold": "2s"}


async def test_who_would_be_late_is_refused_early(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """A place comes free in 2 s, so a budget of 1.5 s is missed by 0.5 s and the trip; 60 s are plenty."""
    one, gates = await gated(upstream)
    running = await edge({"eu": [full_at(one)]}, routing=REFUSE)
    await fill(running, one)
    refused = await running.ask(request(chat(), fields=(("x-gslb-latency-budget-ms", "1500"),)))
    assert (refused.status, refused.error["code"]) == (503, "latency_budget_unreachable")
    assert refused.one("retry-after") == "1"
    client, found = await hold(running, "patient", ("x-gslb-latency-budget-ms", "60000"))
    again = await running.ask(request(chat(), fields=(("x-gslb-latency-budget-ms", "60"),)))
    assert again.error["code"] == "latency_budget_unreachable"
    # It would go first, for it is due earlier; but no place has come free as yet, which tells something, too.
    assert 2 <= int(again.one("retry-after") or 0) <= 30
    gates.give()
    await until(lambda: len(one.requests) == 2)
    gates.give()
    assert (await client.whole(found)).status == 200
    outcomes = [(record["outcome"], record["held_ms"] > 0) for record in running.records()]
    assert sorted(outcomes)[-2:] == [("refused", False), ("refused", False)]


async def test_who_has_become_late_is_refused_then(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one, gates = await gated(upstream)
    running = await edge({"eu": [full_at(one)]}, routing={"over_budget": "refuse", "slot_hold": "50ms"})
    await fill(running, one)
    client, found = await send(running, "second", ("x-gslb-latency-budget-ms", "250"))
    await client.whole(found)
    assert (found.status, found.error["code"]) == (503, "latency_budget_unreachable")
    refused = record_of(running, status=503)
    assert refused["held_ms"] >= 50, "it was worth waiting at first"
    assert refused["outcome"] == "refused"
    gates.give()


# --- what happens meanwhile -----------------------------------------------------------------------------


async def test_fc39_what_waits_at_the_end_is_served_within_the_grace(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-39: a queue entry is served or told."""
    one, gates = await gated(upstream)
    running = await edge({"eu": [full_at(one)]})
    await fill(running, one)
    client, found = await hold(running, "second")
    stopping = asyncio.create_task(running.edge.stop(20.0))
    await until(lambda: running.edge._door.is_stopping)
    gates.give()
    await until(lambda: len(one.requests) == 2)
    gates.give()
    await client.whole(found)
    assert (found.status, found.one("connection")) == (200, "close")
    await stopping


async def test_fc39_what_still_waits_then_is_told(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-39: when the grace is over, 503 `shutting_down` with Retry-After."""
    one, _ = await gated(upstream)
    running = await edge({"eu": [full_at(one)]})
    await fill(running, one)
    client, found = await hold(running, "second")
    await running.edge.stop(0.1)
    await client.whole(found)
    assert (found.status, found.error["code"]) == (503, "shutting_down")
    assert int(found.one("retry-after") or 0) >= 1
    assert len(one.requests) == 1
    assert (await client.end()) == FIN


async def test_fc30_a_reload_keeps_what_is_held(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-30: what waits keeps its configuration: it goes to none of the endpoints that were added since."""
    one, gates = await gated(upstream)
    us = await upstream()
    running = await edge({"eu": [full_at(one)]})
    await fill(running, one)
    client, found = await hold(running, "second")
    assert running.reload(config_of({"eu": [full_at(one)], "us": [us]})) == []
    await until(lambda: running.serves(us, "m"))
    newcomer = await running.ask(ASK)
    assert newcomer.one("x-gslb-region") == "us", "who comes now may go there"
    assert (depth(running), len(us.requests)) == (1, 1)
    gates.give()
    await until(lambda: len(one.requests) == 2)
    gates.give()
    await client.whole(found)
    assert (found.status, found.one("x-gslb-region")) == (200, "eu")


async def test_fc30_a_reload_that_leaves_it_nowhere_to_go(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-30: what waits is told at once when every endpoint that it knows is gone."""
    one, gates = await gated(upstream)
    us = await upstream()
    running = await edge({"eu": [full_at(one)]})
    await fill(running, one)
    client, found = await hold(running, "second")
    assert running.reload(config_of({"us": [us]}, routing={"hold": {"max_requests": 0}})) == []
    await client.whole(found)
    assert (found.status, found.error["code"]) == (503, "no_healthy_region")
    assert depth(running) == 0
    gates.give()


async def test_an_endpoint_that_fails_lets_others_try(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """A held request has all its attempts: the first place it gets may fail, and another endpoint answers."""
    one, gates = await gated(upstream)
    two = await upstream()
    gate = asyncio.Event()
    two.scripts.extend([[gate, GOOD], [answer(503, b"{}")]])
    running = await edge({"eu": [full_at(one)], "us": [full_at(two)]})
    await fill(running, one)
    await send(running, "at us")
    await until(lambda: two.requests)
    client, found = await hold(running, "third")
    gate.set()
    await until(lambda: len(two.requests) == 2)
    # It is never held again: where the next endpoint is at its cap, what failed is told.
    await client.whole(found)
    assert found.status == 503
    gates.give()


async def test_what_waits_counts_for_its_tenant_and_its_body(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-35: a tenant's limit counts it from admission on, and lets it go when its client leaves."""
    one, gates = await gated(upstream)
    running = await edge(
        {"eu": [full_at(one)]}, {"KEY": "k"}, tenants={"acme": {"key_env": "KEY", "max_concurrency": 2}}
    )
    key = ("Authorization", "Bearer k")
    _, first = await send(running, "first", key)
    await until(lambda: one.requests)
    client, _ = await hold(running, "second", key)
    assert (await running.ask(request(chat(), fields=(key,)))).error["code"] == "concurrency_limit"
    client.close()
    await until(lambda: running.open_exchanges == 1)
    client, found = await hold(running, "third", key)
    gates.give()
    await until(lambda: len(one.requests) == 2)
    gates.give()
    assert (await client.whole(found)).status == 200
    assert first.status == 200


async def test_pipelined_behind_one_that_waits(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one, gates = await gated(upstream)
    running = await edge({"eu": [full_at(one)]}, routing={"hold": {"max_wait": "80ms"}})
    await fill(running, one)
    client = await running.connect()
    first = client.send(ASK + ASK)
    await client.whole(first)
    assert first.error["code"] == "saturated"
    gates.give()
    second = client.expect()
    await until(lambda: len(one.requests) == 2 or second.is_complete)
    gates.give(len(gates._gates) - gates._given)
    await client.whole(second)
    assert second.status in (200, 503), "in its turn, by the room there was"
