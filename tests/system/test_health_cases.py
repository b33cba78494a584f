"""Who is out of rotation and why: FC-18 (failover), FC-19 (frozen), FC-20 (busy), FC-21 (who is to blame)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any

import pytest

from gslb.mock.faults import Fault
from tests.support.edge import ADMIN_TOKEN, RunningEdge
from tests.support.raw_client import chat, request, until
from tests.support.raw_upstream import DONE, GOOD, LAST, SSE_HEAD, RawUpstream, Step, answer, chunk, event
from tests.system.conftest import MakeEdge, MakeMock, MakeUpstream

ASK = request(chat())
STREAM = request(chat(stream=True))
MARKS: dict[str, Any] = {"fall": 3, "rise": 2}


async def regions_of(running: RunningEdge, count: int = 12) -> Counter[str | None]:
    """Which regions serve the next `count` requests."""
    client = await running.connect()
    found = [await client.ask(ASK) for _ in range(count)]
    assert {one.status for one in found} == {200}
    return Counter(one.one("x-gslb-region") for one in found)


async def probe(running: RunningEdge, one: RawUpstream, *statuses: int) -> None:
    """Have `one` probed once for each of these answers; the last may still be on its way."""
    key = next(v.endpoint.key for v in running.edge.fleet.snapshot.endpoints if v.endpoint.url == one.url)
    for status in statuses:
        one.health_status = status
        probes = one.probes
        running.edge.observer.probe_now(key)
        await until(lambda: one.probes > probes, "a probe")  # noqa: B023 - awaited within the turn


async def probed(running: RunningEdge, one: RawUpstream, state: str, *statuses: int) -> None:
    """As `probe`, until `one` is in `state`."""
    await probe(running, one, *statuses)
    await until(lambda: running.state(one) == state, state)


async def endpoint_status(running: RunningEdge, one: RawUpstream) -> dict[str, Any]:
    """What the admin view says of `one`."""
    status = (await running.admin("/api/v1/status")).json
    return next(e for region in status["regions"] for e in region["endpoints"] if e["url"] == one.url)


# --- FC-18 ----------------------------------------------------------------------------------------------


async def six(upstream: MakeUpstream) -> dict[str, list[RawUpstream]]:
    """Three regions of two endpoints, nearest first."""
    return {name: [await upstream(), await upstream()] for name in ("eu", "us", "ap")}


@pytest.mark.parametrize(
    ("ill", "serves"),
    [((), "eu"), (("eu", "eu"), "us"), (("eu",), "eu"), (("eu", "eu", "us", "us"), "ap"), (("us", "ap"), "eu")],
    ids=["none", "a: home", "b: half of home", "c: two regions", "others"],
)
async def test_fc18_the_next_region_serves_and_no_other(
    ill: Sequence[str], serves: str, edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-18 a, b, c: home ill: all to the next; half of home ill: home's other one; two ill: the third."""
    fleet = await six(upstream)
    for region, count in Counter(ill).items():
        for one in fleet[region][:count]:
            one.health_status = 503
    running = await edge(fleet, health={"fall": 1})
    assert await regions_of(running) == {serves: 12}
    assert all(one.requests == [] for members in fleet.values() for one in members if one.health_status == 503)


async def test_fc18_e_home_comes_back(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-18 e: home is well again: new requests return to it, running ones stay where they are."""
    gate = asyncio.Event()
    eu, us = await upstream(), await upstream([SSE_HEAD + chunk(event("A")), gate, chunk(DONE) + LAST])
    eu.health_status = 503
    running = await edge({"eu": [eu], "us": [us]}, health={"fall": 1, "rise": 2})
    client = await running.connect()
    found = client.send(STREAM)
    await until(lambda: found.body)
    assert found.one("x-gslb-region") == "us"
    await probed(running, eu, "admitting", 200, 200)
    await until(lambda: running.serves(eu, "m"), "its models")
    assert await regions_of(running) == {"eu": 12}
    gate.set()
    assert (await client.whole(found)).body == event("A") + DONE


async def test_fc18_d_nothing_is_well_each_is_tried_once_then_503(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-18 d: the last resort is all in order of suspicion, once each, and an answer without delay."""
    fleet = await six(upstream)
    everyone = list(chain.from_iterable(fleet.values()))
    for one in everyone:
        one.health_status = 503
        one.default = [answer(503, b"{}")]
    running = await edge(fleet, health={"fall": 1, "passive_fall": 99})
    assert {running.state(one) for one in everyone} == {"ejected"}
    found = await running.ask(ASK)
    assert (found.status, found.error["code"]) == (503, "no_healthy_region")
    assert [len(one.requests) for one in everyone] == [1] * 6
    everyone[3].default = [GOOD]
    assert (await running.ask(ASK)).status == 200, "one that serves after all is found"


async def test_fc18_f_weight_zero_is_a_drain_and_holds_in_the_worst_case(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-18 f: nothing new to a drained region ever, running ones finish; all drained is 503, no division."""
    gate = asyncio.Event()
    eu, us = (
        await upstream([SSE_HEAD + chunk(event("A")), gate, chunk(DONE) + LAST]),
        await upstream(default=["rst"]),
    )
    running = await edge({"eu": [eu], "us": [us]}, health={"passive_fall": 99})

    async def drain(region: str) -> None:
        body = b'{"target": "%b"}' % region.encode()
        assert (await running.admin("/api/v1/drain", method="POST", body=body, token=ADMIN_TOKEN)).status == 200

    client = await running.connect()
    found = client.send(STREAM)
    await until(lambda: found.body)
    await drain("eu")
    failed = await running.ask(ASK)
    assert failed.status == 502
    assert len(eu.requests) == 1, "not even when the other one fails"
    await drain("us")
    failed = await running.ask(ASK)
    assert (failed.status, failed.error["code"]) == (503, "no_healthy_region")
    assert len(us.requests) == 1
    gate.set()
    assert (await client.whole(found)).body == event("A") + DONE


# --- FC-19 ----------------------------------------------------------------------------------------------


async def test_fc19_a_frozen_engine_leaves_although_every_probe_is_well(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-19: three timeouts eject; good probes do not acquit; requests from the fourth on lose no time."""
    eu, us = await upstream(default=["hang"]), await upstream()
    running = await edge({"eu": [eu], "us": [us]}, timeouts={"answer": "150ms"}, health={"ejection": "1h"})
    client = await running.connect()
    for count in range(1, 4):
        # A timeout makes it suspect and calls for a probe; that is good and readmits it for the next request.
        await until(lambda: running.state(eu) == "admitting")
        found = await client.ask(ASK)
        assert (found.status, found.one("x-gslb-region"), found.one("x-gslb-attempts")) == (200, "us", "2")
        assert len(eu.requests) == count
    assert running.state(eu) == "ejected"
    assert "no first byte in time" in (await endpoint_status(running, eu))["reason"]
    await probe(running, eu, *[200] * 6)
    assert running.state(eu) == "ejected"
    for _ in range(5):
        found = await client.ask(ASK)
        assert (found.status, found.one("x-gslb-region"), found.one("x-gslb-attempts")) == (200, "us", "1")
    assert len(eu.requests) == 3


async def test_fc19_only_a_trial_request_brings_it_back(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-19: after its time one request tries it; that it succeeds readmits it."""
    eu, us = await upstream(default=["rst"]), await upstream()
    running = await edge({"eu": [eu], "us": [us]}, health={"passive_fall": 1, "ejection": "1s"})
    assert (await running.ask(ASK)).one("x-gslb-region") == "us"
    assert running.state(eu) == "ejected"
    eu.default = [GOOD]
    await until(lambda: running.state(eu) == "probing")
    assert (await running.ask(ASK)).one("x-gslb-region") == "eu"
    assert running.state(eu) == "admitting"


@pytest.mark.parametrize("status", [500, 503, 302, 307, 401, 403, 404])
async def test_fc19_any_other_status_on_the_probe_path_is_ill_and_named(
    status: int, edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-19: 503, 500, a redirect or 401 on the probe path are unhealthy; the admin view says which."""
    one, other = await upstream(), await upstream()
    one.health_status = status
    running = await edge({"eu": [one], "us": [other]}, health={"fall": 1})
    assert running.state(one) == "ejected"
    assert str(status) in (await endpoint_status(running, one))["reason"]
    assert (await running.ask(ASK)).one("x-gslb-region") == "us"


# --- FC-20 ----------------------------------------------------------------------------------------------


async def test_fc20_a_slow_probes_of_the_only_endpoint_cost_nobody_anything(
    edge: MakeEdge, mock: MakeMock
) -> None:
    """FC-20 a: `/health` hangs while tokens flow: every request is served, the running stream ends whole."""
    one = await mock(itl_ms=10.0)
    running = await edge({"eu": [one]}, health={**MARKS, "interval": "50ms", "timeout": "50ms"})
    client, long = await running.connect(), await running.connect()
    found = long.send(request(chat(stream=True, max_tokens=120)))
    await until(lambda: found.body)
    one.set_faults(Fault(health_hang=True))
    await until(lambda: running._health(one).failed_probes >= 3, "slow probes")
    for _ in range(10):
        assert (await client.ask(request(chat(max_tokens=2)))).status == 200
    await long.whole(found)
    assert found.body.endswith(DONE), "running streams are never cut for a probe"
    assert {record["outcome"] for record in running.records()} == {"ok"}


@pytest.mark.parametrize("statuses", [(*[200] * 9, 503), (200, 503)], ids=["one of ten", "alternating"])
async def test_fc20_b_c_lost_probes_that_are_not_in_a_row_change_nothing(
    statuses: Sequence[int], edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-20 b and c: neither `fall` failures nor `rise` passes in a row: no change of state."""
    one = await upstream()
    running = await edge({"eu": [one]}, health=MARKS)
    roster = running.edge.fleet.snapshot.roster
    await probe(running, one, *[*statuses] * 3)
    assert running.edge.fleet.snapshot.roster == roster, "the roster moves with every change of state"
    assert running.state(one) == "admitting"


async def test_fc20_c_an_ejected_one_does_not_flap_either(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-20 c: two passes in a row are needed to come back."""
    one, other = await upstream(), await upstream()
    one.health_status = 503
    running = await edge({"eu": [one], "us": [other]}, health=MARKS)
    await probed(running, one, "ejected", 503, 503)
    for _ in range(5):
        await probe(running, one, 200, 503)
        assert running.state(one) == "ejected"
    await probed(running, one, "admitting", 200, 200)


async def test_fc20_d_an_unknown_one_serves_after_known_good_ones(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-20 d: before its first probe result an endpoint is `unknown`: used, but last; readiness says so."""
    eu, us = await upstream(), await upstream()
    plain = eu.page
    eu.page = lambda path: b"" if path.endswith(b"/health") else plain(path)  # type: ignore[method-assign]
    running = await edge({"eu": [eu], "us": [us]}, health={"interval": "1h", "timeout": "1m"})
    assert running.state(eu) == "unknown"
    ready = await running.admin("/readyz")
    assert (ready.status, set(ready.json["upstreams"].values())) == (200, {"unknown", "admitting"})
    assert (await running.ask(ASK)).one("x-gslb-region") == "us"
    us.stop()
    found = await running.ask(ASK)
    assert (found.status, found.one("x-gslb-region")) == (200, "eu")
    assert running.state(eu) == "admitting"


# --- FC-21 ----------------------------------------------------------------------------------------------


async def leave_ten_times(running: RunningEdge, one: RawUpstream, script: list[Step], marker: bytes) -> None:
    """Ten clients that leave once `marker` (b"": the request alone) has come."""
    for _ in range(10):
        one.scripts.append(script)
        asked = len(one.requests)
        client = await running.connect()
        client.send(STREAM)
        await until(lambda: len(one.requests) > asked and marker in client.received)  # noqa: B023
        ended = len(running.records())
        client.close()
        await until(lambda: len(running.records()) > ended)  # noqa: B023


async def test_fc21_mistakes_and_departures_of_users_count_nothing(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-21: ten of each 4xx, ten departures before and within the answer: no failure, and none forgiven."""
    one = await upstream([answer(500, b'{"detail":"x"}')], [answer(500, b"{}")])
    running = await edge({"eu": [one]}, health={"passive_fall": 3})
    for _ in range(2):
        assert (await running.ask(ASK)).status == 500, "the body passes"
    assert running.failures(one) == 2
    client = await running.connect()
    for status in (400, 401, 404, 413, 422, 429):
        for _ in range(10):
            one.scripts.append([answer(status, b"{}")])
            assert (await client.ask(ASK)).status == status
    await leave_ten_times(running, one, ["hang"], b"")
    await leave_ten_times(running, one, [SSE_HEAD + chunk(event("A")), "hang"], b"content")
    assert running.failures(one) == 2, "neither more nor fewer"
    one.scripts.append([answer(500, b"{}")])
    assert (await running.ask(ASK)).status == 500
    assert running.state(one) == "ejected"
    outcomes = Counter((record["outcome"], record["status"]) for record in running.records())
    assert outcomes["client_gone", 499] == 20
    assert outcomes["upstream_error", 500] == 3
    assert outcomes["ok", 400] == outcomes["ok", 429] == 10, "a 4xx of the engine is an answer"
    metrics = (await running.admin("/metrics")).body.decode()
    for outcome, count in (("client_gone", 20), ("upstream_error", 3), ("ok", 60)):
        assert f'gslb_requests_total{{model="m",outcome="{outcome}",region="eu"}} {count}.0' in metrics


TRIPS: dict[str, list[Step]] = {
    "500": [answer(500, b"{}")], "502": [answer(502, b"{}")], "503": [answer(503, b"{}")], "reset": ["rst"],
    "first byte timeout": ["hang"], "truncated": [SSE_HEAD + chunk(event("A")), "rst"], "refused": [],
}  # fmt: skip


@pytest.mark.parametrize("name", TRIPS)
async def test_fc21_three_faults_of_the_upstream_eject_it(
    name: str, edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-21, second group: three in a row trip the breaker."""
    one = await upstream(default=TRIPS[name])
    running = await edge({"eu": [one]}, timeouts={"first_byte": "100ms"}, health={"passive_fall": 3})
    if name == "refused":
        one.stop()
    for count in range(3):
        assert running.state(one) != "ejected", count
        client = await running.connect()
        client.send(STREAM)
        await until(lambda: len(running.records()) > count)  # noqa: B023
    assert running.state(one) == "ejected"
