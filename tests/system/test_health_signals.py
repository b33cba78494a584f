"""What ejects beside a row of failures, and what a return looks like: ratio, token counters, nodes, slow start."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from gslb.mock.faults import Fault
from tests.support.edge import RunningEdge
from tests.support.raw_client import RawClient, chat, request, until
from tests.support.raw_upstream import GOOD, RawUpstream, answer
from tests.system.conftest import MakeEdge, MakeMock, MakeUpstream
from tests.system.test_health_cases import endpoint_status, probe, regions_of
from tests.system.test_workers import MakeGslb, config_for, gslb, until_it

__all__ = ["gslb"]  # the fixture

ASK = request(chat())
RETRIES: dict[str, Any] = {"failover": {"retry_budget": {"floor": 1000}}}
TURNED_AWAY = answer(429, b'{"error":{"message":"full"}}')


def state_metrics(page: bytes) -> dict[str, str]:
    """Endpoint -> the state that `gslb_endpoint_state` shows."""
    lines = [line for line in page.decode().splitlines() if line.startswith("gslb_endpoint_state{")]
    labels = [dict(part.split("=") for part in line[20:-5].split(",")) for line in lines if line.endswith(" 1.0")]
    return {one["endpoint"].strip('"'): one["state"].strip('"') for one in labels}


# --- FC-21 and the ratio --------------------------------------------------------------------------------


async def test_fc21_an_endpoint_that_turns_most_away_leaves_while_another_serves(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """A 429 is no failure, and yet of no use: after 20 of them requests no longer go there first."""
    eu, us = await upstream(default=[TURNED_AWAY]), await upstream()
    running = await edge({"eu": [eu], "us": [us]}, routing=RETRIES)
    client = await running.connect()
    for _ in range(20):
        found = await client.ask(ASK)
        assert (found.status, found.one("x-gslb-attempts")) == (200, "2")
        assert running.failures(eu) == 0
    shown = await endpoint_status(running, eu)
    assert shown["state"] == "ejected"
    assert shown["reason"] == "requests: only 0 of the last 20 were served, 20 were answered 429"
    for _ in range(5):
        found = await client.ask(ASK)
        assert (found.status, found.one("x-gslb-attempts"), found.one("x-gslb-region")) == (200, "1", "us")
    assert len(eu.requests) == 20
    page = (await running.admin("/metrics")).body
    assert state_metrics(page) == {
        shown["key"]: "ejected",
        (await endpoint_status(running, us))["key"]: "admitting",
    }


async def test_fc21_when_all_turn_away_alike_nobody_leaves(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """The fleet is too small: with fewer endpoints it would be smaller still."""
    eu, us = await upstream(default=[TURNED_AWAY]), await upstream(default=[TURNED_AWAY])
    running = await edge({"eu": [eu], "us": [us]}, routing=RETRIES)
    client = await running.connect()
    for _ in range(50):
        found = await client.ask(ASK)
        assert (found.status, found.error["code"]) == (429, "saturated")
    assert (running.state(eu), running.state(us)) == ("admitting", "admitting")
    eu.default = [GOOD]
    assert await regions_of(running) == {"eu": 12}


async def test_errors_between_successes_eject_one_of_two(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """Never three in a row, but most: the mark is absolute, so two endpoints are enough."""
    eu, us = await upstream(), await upstream()
    running = await edge({"eu": [eu], "us": [us]}, routing=RETRIES, health={"ejection": "1h"})
    client = await running.connect()
    for _ in range(7):
        eu.scripts.extend([[GOOD], [answer(500, b"{}")], [answer(500, b"{}")]])
    while eu.scripts and running.state(eu) != "ejected":
        assert (await client.ask(ASK)).status == 200
    assert "only 7 of the last 20 were served" in (await endpoint_status(running, eu))["reason"]
    assert await regions_of(running) == {"us": 12}


async def test_fc21_all_workers_count_together(gslb: MakeGslb, upstream: MakeUpstream) -> None:
    """Whichever worker was turned away: the supervisor hears the counts and judges the sum."""
    eu, us = await upstream(default=[TURNED_AWAY]), await upstream()
    health = {"ejection": "1h", "ratio_samples": 40}
    running = await gslb(config_for({"eu": [eu], "us": [us]}, routing=RETRIES, health=health))
    clients = [await RawClient.connect(running.port) for _ in range(10)]
    for _ in range(5):
        found = await asyncio.gather(*(client.ask(ASK) for client in clients))
        assert {one.status for one in found} == {200}

    async def is_out() -> bool:
        regions = (await running.status())["regions"]
        states = {region["name"]: region["endpoints"][0]["state"] for region in regions}
        return states == {"eu": "ejected", "us": "admitting"}

    await until_it(is_out, "the ejection")
    asked = len(eu.requests)
    found = await asyncio.gather(*(client.ask(ASK) for client in clients))
    assert Counter((one.one("x-gslb-region"), one.one("x-gslb-attempts")) for one in found) == {("us", "1"): 10}
    assert len(eu.requests) == asked
    for client in clients:
        client.close()


# --- FC-19: forward progress ----------------------------------------------------------------------------


async def test_fc19_standing_token_counters_eject_a_hung_engine_and_moving_ones_bring_it_back(
    edge: MakeEdge, mock: MakeMock, upstream: MakeUpstream
) -> None:
    """FC-19: `/health` 200, `/metrics` 200 with a request running and counters that stand still: no client has to
    wait for a timeout first. The stream that hangs goes on once the engine does."""
    eu, us = await mock(itl_ms=5.0), await upstream()
    fleet = {"eu": [{"url": eu.url, "capacity": 20}], "us": [us]}
    health = {"scrape_interval": "50ms", "stall_after": "300ms", "interval": "100ms", "timeout": "100ms"}
    running = await edge(fleet, health=health)
    client = await running.connect()
    found = client.send(request(chat(stream=True, max_tokens=4000)))
    await until(lambda: found.body, "a first token")
    eu.set_faults(Fault(stall=True))
    await until(lambda: running.state(eu) == "ejected", "ejected")
    shown = await endpoint_status(running, eu)  # type: ignore[arg-type]
    assert shown["reason"].startswith("1 requests run, but no token was made for")
    assert shown["notes"] == [], "probes and scrapes are well"
    other = await running.connect()
    for _ in range(5):
        answered = await other.ask(ASK)
        assert (answered.status, answered.one("x-gslb-region"), answered.one("x-gslb-attempts")) == (
            200,
            "us",
            "1",
        )
    eu.set_faults()
    await until(lambda: running.state(eu) == "admitting", "admitting")
    back = await endpoint_status(running, eu)  # type: ignore[arg-type]
    assert back["reason"] == "its token counters move again"
    assert (back["share"] < 1, back["slots"] < 20) == (True, True), "slowly"
    client.close()


async def test_fc20_an_idle_engine_is_not_a_hung_one(edge: MakeEdge, mock: MakeMock) -> None:
    """FC-20: its counters stand still as well, but nothing runs."""
    one = await mock()
    running = await edge({"eu": [one]}, health={"scrape_interval": "20ms", "stall_after": "60ms"})
    assert (await running.ask(ASK)).status == 200
    samples = {running.edge.fleet.snapshot.endpoints[0].at_s}
    await until(lambda: samples.add(running.edge.fleet.snapshot.endpoints[0].at_s) or len(samples) > 15)  # type: ignore[func-returns-value]
    assert running.state(one) == "admitting"


# --- nodes ----------------------------------------------------------------------------------------------


async def test_endpoints_of_one_node_are_suspected_together_and_probed_at_once(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """One breaks: the other on its machine is used after the well ones until a probe says it is well."""
    ill, neighbour, well = await upstream(default=["rst"]), await upstream(), await upstream()
    fleet = {"eu": [{"url": ill.url, "node": "a"}, {"url": neighbour.url, "node": "a"}], "us": [well]}
    running = await edge(fleet, routing={"failover": {"max_attempts": 1}})
    for one in (ill, neighbour):
        one.health_status = 503
    probes = neighbour.probes
    client = await running.connect()
    while not ill.requests:
        await client.ask(ASK)
    assert running.state(neighbour) == "suspect"
    shown = await endpoint_status(running, neighbour)
    assert (
        shown["reason"] == f"shares node a with {(await endpoint_status(running, ill))['key']}, which is in doubt"
    )
    await until(lambda: neighbour.probes > probes, "a probe at once")
    assert await regions_of(running) == {"us": 12}
    ill.health_status = 200
    await probe(running, neighbour, 200)
    await until(lambda: running.state(neighbour) == "admitting", "acquitted")
    ill.default = [GOOD]
    assert await regions_of(running) == {"eu": 12}


# --- slow start, and a region that is lost --------------------------------------------------------------


async def explained(running: RunningEdge) -> dict[str, Any]:
    """Endpoint -> the note that an explanation has of it."""
    told = (await running.admin("/api/v1/explain?ip=127.0.0.1&model=m")).json
    return {one["endpoint"]: one["note"] for one in told["ranked"]}


async def test_a_return_is_slow_and_seen_in_the_status(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """After its trial an endpoint has a tenth of its slots, then more, then all."""
    eu, us = await upstream(default=["rst"]), await upstream()
    fleet = {"eu": [{"url": eu.url, "capacity": 50}], "us": [us]}
    health = {"passive_fall": 1, "ejection": "200ms", "slow_start": "2s"}
    running = await edge(fleet, health=health)
    assert (await endpoint_status(running, eu))["slots"] == 50, "what is there at the start has all"
    assert (await running.ask(ASK)).one("x-gslb-region") == "us"
    eu.default = [GOOD]
    await until(lambda: running.state(eu) == "probing")
    assert (await running.ask(ASK)).one("x-gslb-region") == "eu"
    back = await endpoint_status(running, eu)
    assert (back["share"], back["slots"], back["capacity"]) == (0.1, 5, 50)
    assert (await explained(running))[back["key"]] == "slow start at 10%"
    seen = {5}
    await until(lambda: seen.add(slots_of(running, eu)) or 50 in seen)  # type: ignore[func-returns-value]
    assert any(5 < slots < 50 for slots in seen)
    assert (await endpoint_status(running, eu))["share"] == 1.0
    assert (await explained(running))[back["key"]] == ""


def slots_of(running: RunningEdge, one: RawUpstream) -> int:
    view = next(view for view in running.edge.fleet.snapshot.endpoints if view.endpoint.url == one.url)
    assert view.slots is not None
    return view.slots


async def test_a_dead_region_leaves_at_once_and_comes_back_slowly(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """All its endpoints refuse: they are ejected whatever share of the fleet they are, and nobody notices."""
    eu, us = [await upstream() for _ in range(3)], await upstream()
    fleet = {"eu": [{"url": one.url, "capacity": 40} for one in eu], "us": [{"url": us.url, "capacity": 40}]}
    running = await edge(fleet, health={"interval": "200ms", "timeout": "200ms"}, routing=RETRIES)
    client = await running.connect()
    assert (await client.ask(ASK)).one("x-gslb-region") == "eu"
    for one in eu:
        one.stop()

    def are(state: str) -> bool:
        return {running.state(one) for one in eu} == {state}

    while not are("ejected"):
        assert (await client.ask(ASK)).status == 200
    assert await regions_of(running) == {"us": 12}
    for one in eu:
        await one.start()
    await until(lambda: are("admitting"), "all are back")
    assert all(slots_of(running, one) < 40 for one in eu)
    await until(lambda: running.serves(eu[0], "m"), "its models")
    assert (await client.ask(ASK)).one("x-gslb-region") == "eu"
