"""Second tries: before the first content byte and never after. FC-14, FC-16, FC-17 and DESIGN section 3."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from gslb.mock.faults import Fault
from tests.support.raw_client import chat, request, until
from tests.support.raw_upstream import (
    DONE,
    GOOD,
    LAST,
    ROLE_EVENT,
    SSE_HEAD,
    Step,
    answer,
    chunk,
    event,
    stream,
)
from tests.system.conftest import MakeEdge, MakeMock, MakeUpstream

STREAM = request(chat(stream=True))
ABORT_EVENT = b'data: {"choices":[{"index":0,"delta":{"content":""},"finish_reason":"abort"}]}\n\n'
ERROR_EVENT = b'data: {"error": {"message": "engine died", "type": "InternalServerError", "code": 500}}\n\n'


def busy(status: int, retry_after: str | None = None) -> list[Step]:
    """An error answer of an upstream."""
    fields = () if retry_after is None else (("Retry-After", retry_after), ("X-From", "upstream"))
    return [answer(status, b'{"object":"error","message":"busy"}', *fields)]


async def test_fc14_after_content_nobody_else_is_asked(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-14: second tries before content and never after."""
    eu = await upstream([SSE_HEAD + chunk(event("A")) + chunk(event("B")), "rst"])
    us = await upstream(stream(event("X"), event("Y"), DONE))
    running = await edge({"eu": [eu], "us": [us]})
    client = await running.connect()
    found = client.send(STREAM)
    await client.end()
    assert found.body.startswith(event("A") + event("B"))
    assert event("X") not in found.body
    assert us.requests == []
    assert (await running.record())["attempts"] == 1


async def test_what_a_failed_attempt_took_is_in_both_times_of_the_log(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    eu = await upstream([0.5, "rst"])
    us = await upstream(stream(event("X"), DONE))
    running = await edge({"eu": [eu], "us": [us]})
    client = await running.connect()
    found = client.send(STREAM)
    await client.whole(found)
    record = await running.record()
    assert (record["attempts"], record["region"]) == (2, "us")
    assert record["ttft_ms"] >= 490
    assert record["predicted_ttft_ms"] >= 490, "known when the second endpoint was chosen"


BEFORE_COMMIT: dict[str, list[Step]] = {
    "the head, then reset": [SSE_HEAD, "rst"],
    "the head, then closed": [SSE_HEAD, "fin"],
    "reset on a fresh connection": ["rst"],
    "closed on a fresh connection": ["fin"],
    "role-only chunk, then reset": [SSE_HEAD + chunk(ROLE_EVENT), "rst"],
    "role-only chunk, then closed": [SSE_HEAD + chunk(ROLE_EVENT), 0.01, "fin"],
    "half an event, then reset": [SSE_HEAD + chunk(event("A")[:-3]), "rst"],
    "half a head, then closed": [b"HTTP/1.1 200 OK\r\nContent-Ty", "fin"],
    "half a status line": [b"HTT", "fin"],
    "an interim answer, then closed": [b"HTTP/1.1 100 Continue\r\n\r\n", "fin"],
    "the end as first event": [SSE_HEAD + chunk(DONE) + LAST],
    "aborted after the role-only chunk": [SSE_HEAD + chunk(ROLE_EVENT), 0.01, chunk(ABORT_EVENT) + LAST],
    "aborted, not streamed": [answer(200, b'{"choices":[{"text":"Half","finish_reason":"abort"}]}')],
    "error as first event": [SSE_HEAD + chunk(ERROR_EVENT) + chunk(DONE) + LAST],
    "error after the role-only chunk": [SSE_HEAD + chunk(ROLE_EVENT), 0.01, chunk(ERROR_EVENT) + LAST],
    "no HTTP": [b"\x16\x03\x01\x00\x00garbage\r\n\r\n"],
    "an upgrade": [b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n"],
    "unknown coding": [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n" + chunk(b"x") + LAST],
    "both lengths": [SSE_HEAD[:-2] + b"Content-Length: 3\r\n\r\n" + chunk(b"x") + LAST],
    "two lengths": [b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxy"],
    "500": busy(500), "502": busy(502), "503": busy(503, "7"), "504": busy(504), "529": busy(529),
    "429": busy(429),
    "a long 503 body": [answer(503, b"x" * 300_000)],
    "a 503 that never ends": [answer(503, b"x" * 100)[:-50], "hang"],
}  # fmt: skip


ONLY_STREAMS = [name for name, steps in BEFORE_COMMIT.items() if str(steps[0]).startswith(str(SSE_HEAD)[:60])]
WAYS = [
    (name, is_stream)
    for name in BEFORE_COMMIT
    for is_stream in (True, False)
    if is_stream or name not in ONLY_STREAMS
]


@pytest.mark.parametrize(("name", "is_stream"), WAYS)
async def test_fc14_before_content_another_region_answers(
    name: str, is_stream: bool, edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-14: second tries before content and never after."""
    whole = stream(ROLE_EVENT, event("X"), DONE) if is_stream else [GOOD]
    eu, us = await upstream(BEFORE_COMMIT[name]), await upstream(whole)
    running = await edge({"eu": [eu], "us": [us]})
    client = await running.connect()
    found = await client.ask(request(chat(stream=is_stream)))
    assert found.status == 200
    assert found.body == (ROLE_EVENT + event("X") + DONE if is_stream else GOOD.partition(b"\r\n\r\n")[2])
    assert found.all("x-from") == found.all("retry-after") == []
    assert (found.one("x-gslb-region"), found.one("x-gslb-attempts")) == ("us", "2")
    assert (len(eu.requests), len(us.requests)) == (1, 1)
    assert eu.requests[0].body == us.requests[0].body
    record = await running.record()
    assert (record["outcome"], record["region"], record["home"], record["reason"]) == (
        "ok",
        "us",
        "eu",
        "failover",
    )
    if not any(word in name for word in ("error", "abort", "the end")):  # those answers are whole
        await until(lambda: eu.asked[0].ended or eu.asked[0].is_closed, "the failed connection is not kept")


async def test_fc14_c_connect_only_is_the_strict_reading_of_rfc_9110(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-14 c: second tries before content and never after."""
    eu, us = await upstream(["rst"]), await upstream()
    routing = {"failover": {"replay": "connect_only"}}
    running = await edge({"eu": [eu], "us": [us]}, routing=routing)
    found = await running.ask(request(chat()))
    assert (found.status, found.error["code"]) == (502, "upstream_error")
    assert us.requests == []
    eu.stop()
    assert (await running.ask(request(chat()))).status == 200, "nothing was sent: another may be asked"


async def test_fc16_nothing_is_promised_before_somebody_accepts(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-16: nothing is promised before somebody accepts."""
    eu, us, ap = await upstream(), await upstream(busy(503, "7")), await upstream(busy(429, "3"))
    running = await edge({"eu": [eu], "us": [us], "ap": [ap]})
    eu.stop()
    client = await running.connect()
    found = await client.ask(STREAM)
    assert (found.status, found.error["code"], found.one("retry-after")) == (503, "no_healthy_region", "3")
    assert found.one("x-should-retry") == "false"
    assert found.one("x-gslb-attempts") == "3"
    assert running.attempts() == {
        ("eu", "connect_error"): 1, ("us", "status_5xx"): 1, ("ap", "status_429"): 1,
    }  # fmt: skip
    us.scripts.append(stream(event("A"), DONE))
    assert (await client.ask(STREAM)).status == 200, "the connection is usable afterwards"


async def test_fc16_regions_are_tried_in_order(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-16: nothing is promised before somebody accepts."""
    eu, us, ap = await upstream(busy(503)), await upstream(busy(503)), await upstream()
    running = await edge({"eu": [eu], "us": [us], "ap": [ap]})
    for region, attempts in (("ap", "3"), ("eu", "1")):
        found = await running.ask(request(chat()))
        assert (found.one("x-gslb-region"), found.one("x-gslb-attempts")) == (region, attempts)
    eu.scripts.append(busy(503))
    found = await running.ask(request(chat()))
    assert (found.one("x-gslb-region"), found.one("x-gslb-attempts")) == ("us", "2"), "the next nearest"


async def test_fc16_all_said_429(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-16: nothing is promised before somebody accepts."""
    eu, us = await upstream(busy(429, "9")), await upstream(busy(429, "4"))
    running = await edge({"eu": [eu], "us": [us]})
    found = await running.ask(STREAM)
    assert (found.status, found.error["code"], found.one("retry-after")) == (429, "saturated", "4")
    assert found.one("x-should-retry") == "false"
    assert running.failures(eu) == running.failures(us) == 0


async def test_fc16_all_refuse(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-16: nothing is promised before somebody accepts."""
    ups = [await upstream() for _ in range(3)]
    running = await edge(dict(zip(("eu", "us", "ap"), ([up] for up in ups), strict=True)))
    for up in ups:
        up.stop()
    found = await running.ask(STREAM)
    assert (found.status, found.error["code"]) == (503, "no_healthy_region")
    assert int(found.one("retry-after") or 0) >= 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 408, 409, 413, 422, 451])
async def test_fc16_other_4xx_pass_at_once_and_blame_nobody(
    status: int, edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-16: nothing is promised before somebody accepts."""
    body = b'{"object":"error","message":"your own fault"}'
    eu, us = await upstream([answer(status, body)]), await upstream()
    running = await edge({"eu": [eu], "us": [us]})
    found = await running.ask(STREAM)
    assert (found.status, bytes(found.body)) == (status, body)
    assert us.requests == []
    assert running.failures(eu) == 0
    assert running.state(eu) == "admitting"


async def test_a_4xx_as_first_event_passes_and_blames_nobody(edge: MakeEdge, upstream: MakeUpstream) -> None:
    told = b'data: {"error": {"message": "too long", "type": "BadRequestError", "code": 400}}\n\n'
    eu, us = await upstream(stream(told, DONE)), await upstream()
    running = await edge({"eu": [eu], "us": [us]})
    found = await running.ask(STREAM)
    assert found.body == told + DONE
    assert us.requests == []
    assert running.failures(eu) == 0


async def test_fc21_an_error_event_in_mid_stream_passes_and_blames_the_engine(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-21: who is to blame."""
    eu = await upstream(stream(event("A"), ERROR_EVENT, DONE))
    running = await edge({"eu": [eu]})
    found = await running.ask(STREAM)
    assert found.body == event("A") + ERROR_EVENT + DONE
    assert (await running.record())["outcome"] == "upstream_error"
    assert running.attempts() == {("eu", "error_event"): 1}
    assert running.failures(eu) == 1


async def test_fc17_one_request_has_at_most_max_attempts(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-17: retries do not multiply."""
    fleet = {region: [await upstream(default=busy(503)) for _ in range(2)] for region in ("eu", "us", "ap")}
    running = await edge(fleet)
    found = await running.ask(STREAM)
    assert found.status == 503
    assert found.one("x-should-retry") == "false"
    asked = [len(up.requests) for ups in fleet.values() for up in ups]
    assert sum(asked) == 3
    assert max(asked) == 1


async def test_fc17_a_burst_stays_within_the_retry_budget(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-17: retries do not multiply."""
    fleet = {region: [await upstream(default=busy(503))] for region in ("eu", "us", "ap")}
    budget = {"failover": {"retry_budget": {"share": 0.2, "floor": 5}}}
    running = await edge(fleet, routing=budget, health={"passive_fall": 1000})
    clients = [await running.connect() for _ in range(10)]

    async def ask_20(client: Any) -> None:
        for _ in range(20):
            found = await client.ask(request(chat()))
            assert found.status == 503

    await asyncio.gather(*map(ask_20, clients))
    assert sum(len(up.requests) for ups in fleet.values() for up in ups) <= 200 * 1.2 + 5


async def test_fc17_the_only_answer_passes_with_its_retry_after(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-17: retries do not multiply."""
    one = await upstream(busy(429, "30"))
    running = await edge({"eu": [one]})
    found = await running.ask(STREAM)
    assert (found.status, found.one("retry-after"), found.one("x-from")) == (429, "30", "upstream")
    assert found.json == {"object": "error", "message": "busy"}
    assert len(one.requests) == 1


async def test_fc18_d_nothing_healthy_means_each_once_in_order_of_suspicion(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-18 d: failover follows the order of regions."""
    fleet = {region: [await upstream(default=["rst"]) for _ in range(2)] for region in ("eu", "us", "ap")}
    ups = [up for members in fleet.values() for up in members]
    for up in ups:
        up.health_status = 503
    running = await edge(fleet, health={"fall": 1})
    assert {running.state(up) for up in ups} == {"ejected"}
    found = await running.ask(STREAM)
    assert found.status in (502, 503)
    assert [len(up.requests) for up in ups] == [1] * 6
    assert (await running.record())["attempts"] == 6


async def test_a_healthy_region_is_used_instead_of_ejected_ones(edge: MakeEdge, upstream: MakeUpstream) -> None:
    eu, us, ap = await upstream(), await upstream(), await upstream()
    eu.health_status = us.health_status = 503
    running = await edge({"eu": [eu], "us": [us], "ap": [ap]}, health={"fall": 1})
    for _ in range(5):
        assert (await running.ask(STREAM)).one("x-gslb-region") == "ap"
    assert eu.requests == us.requests == []


async def test_failures_in_a_row_eject_and_the_fleet_goes_on(edge: MakeEdge, upstream: MakeUpstream) -> None:
    eu, us = await upstream(default=["rst"]), await upstream()
    running = await edge({"eu": [eu], "us": [us]}, health={"passive_fall": 2, "ejection": "1h"})
    for _ in range(6):
        assert (await running.ask(request(chat()))).status == 200
    assert running.state(eu) == "ejected"
    assert len(eu.requests) == 2


async def test_the_role_only_chunk_is_held_with_the_head(edge: MakeEdge, upstream: MakeUpstream) -> None:
    gate = asyncio.Event()
    one = await upstream([SSE_HEAD + chunk(ROLE_EVENT), gate, chunk(event("A")) + LAST])
    running = await edge({"eu": [one]})
    client = await running.connect()
    found = client.send(STREAM)
    await until(lambda: one.requests)
    await until(lambda: one.asked[0].sent_bytes)
    await running.admin("/healthz")  # a round through the loop
    assert not client.received
    gate.set()
    await client.whole(found)
    assert found.body == ROLE_EVENT + event("A")


async def test_a_comment_commits(edge: MakeEdge, upstream: MakeUpstream) -> None:
    gate = asyncio.Event()
    eu, us = await upstream([SSE_HEAD + chunk(b": keep-alive\n\n"), gate, "rst"]), await upstream()
    running = await edge({"eu": [eu], "us": [us]})
    client = await running.connect()
    found = client.send(STREAM)
    await until(lambda: bytes(found.body) == b": keep-alive\n\n")
    gate.set()
    await client.end()
    assert not found.is_complete
    assert us.requests == []


async def test_the_first_body_byte_commits_what_is_no_stream(edge: MakeEdge, upstream: MakeUpstream) -> None:
    gate = asyncio.Event()
    eu, us = await upstream([answer(200, b"x" * 100)[:-99], gate, "rst"]), await upstream()
    running = await edge({"eu": [eu], "us": [us]})
    client = await running.connect()
    found = client.send(request(chat()))
    await until(lambda: bytes(found.body) == b"x")
    gate.set()
    await client.end()
    assert us.requests == []


FAULTS = [
    Fault(reset=True), Fault(error_event=True), Fault(status=500), Fault(status=503, retry_after="2"),
    Fault(garbage=True), Fault(reset_after_events=0), Fault(reset_after_events=1), Fault(fin_after_events=1),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: json.dumps(fault.as_json()))
async def test_the_faults_of_a_vllm_are_not_seen_before_content(
    fault: Fault, edge: MakeEdge, mock: MakeMock
) -> None:
    eu, us = await mock(), await mock()
    running = await edge({"eu": [eu], "us": [us]})
    eu.set_faults(fault)
    found = await running.ask(request(chat(stream=True, max_tokens=5)))
    assert (found.status, found.one("x-gslb-region")) == (200, "us")
    assert found.body.endswith(DONE)
    assert found.body.count(b'"role":"assistant"') == 1


async def test_a_refused_connection_costs_no_time(edge: MakeEdge, mock: MakeMock) -> None:
    eu, us = await mock(), await mock()
    running = await edge({"eu": [eu], "us": [us]})
    eu.set_faults(Fault(refuse=True))
    begun_s = time.monotonic()
    assert (await running.ask(STREAM)).one("x-gslb-region") == "us"
    assert time.monotonic() - begun_s < 2
