"""What a client may ask of the decision, what the answer tells of it, and the fences that nothing crosses."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.raw_client import chat, request, until
from tests.support.raw_upstream import DONE, GOOD, answer, event, stream
from tests.system.conftest import MakeEdge, MakeUpstream

ASK = request(chat())
EU_ONLY = {"rules": [{"countries": ["DE"], "jurisdictions": ["EU"]}]}


async def test_the_nearest_region_serves_and_says_so(edge: MakeEdge, upstream: MakeUpstream) -> None:
    running = await edge({"us": [await upstream()], "eu": [await upstream()], "ap": [await upstream()]})
    found = await running.ask(ASK)
    assert (found.one("x-gslb-region"), found.one("x-gslb-attempts")) == ("eu", "1")
    assert found.one("x-gslb-decision") is None
    record = await running.record()
    assert (record["home"], record["region"], record["reason"], record["country"]) == ("eu", "eu", "home", "DE")


async def test_explain_tells_the_decision_in_one_line(edge: MakeEdge, upstream: MakeUpstream) -> None:
    running = await edge({"eu": [await upstream()], "us": [await upstream()]})
    found = await running.ask(request(chat(), fields=(("x-gslb-explain", "1"),)))
    told = found.one("x-gslb-decision")
    assert told is not None
    assert told.isascii()
    assert "home eu" in told
    assert "us/" in told


async def test_a_pinned_region_serves_or_nobody_does(edge: MakeEdge, upstream: MakeUpstream) -> None:
    eu, us = await upstream(), await upstream([GOOD], default=["rst"])
    running = await edge({"eu": [eu], "us": [us]})
    pinned = request(chat(), fields=(("x-gslb-region", "us"),))
    assert (await running.ask(pinned)).one("x-gslb-region") == "us"
    found = await running.ask(pinned)
    assert found.status == 502
    assert eu.requests == []


@pytest.mark.parametrize(
    "failure", [["rst"], [answer(503, b"{}")], [b"junk\r\n\r\n"], stream(b'data: {"error":"x"}\n\n')]
)
async def test_failover_never_crosses_a_residency_fence(
    failure: list[Any], edge: MakeEdge, upstream: MakeUpstream
) -> None:
    first, second, us = await upstream(failure), await upstream(failure), await upstream()
    running = await edge({"eu": [first, second], "us": [us]}, residency=EU_ONLY)
    found = await running.ask(request(chat(stream=True)))
    assert found.status in (502, 503)
    assert len(first.requests) == len(second.requests) == 1
    assert us.requests == []


async def test_no_region_within_the_fence_is_403(edge: MakeEdge, upstream: MakeUpstream) -> None:
    eu, us = await upstream(models=["other"]), await upstream()
    running = await edge({"eu": [eu], "us": [us]}, residency=EU_ONLY)
    found = await running.ask(ASK)
    assert (found.status, found.error["code"]) == (403, "residency_denied")
    assert us.requests == []
    assert (await running.record())["outcome"] == "fenced"


async def test_a_budget_nobody_can_meet_is_refused_with_a_time(edge: MakeEdge, upstream: MakeUpstream) -> None:
    us = await upstream()
    running = await edge({"us": [us]}, routing={"over_budget": "refuse"})
    found = await running.ask(request(chat(), fields=(("x-gslb-latency-budget-ms", "1"),)))
    assert (found.status, found.error["code"]) == (503, "latency_budget_unreachable")
    assert int(found.one("retry-after") or 0) >= 1
    assert (await running.ask(request(chat(), fields=(("x-gslb-latency-budget-ms", "60000"),)))).status == 200


async def test_gslbs_own_fields_do_not_go_upstream_nor_come_from_there(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    one = await upstream([answer(200, b"{}", ("x-gslb-region", "fake"), ("X-Gslb-Attempts", "9"))])
    running = await edge({"eu": [one]})
    sent = {"x-gslb-explain": "eu", "x-gslb-session": "eu", "x-gslb-priority": "low", "x-gslb-region": "eu"}
    found = await running.ask(request(chat(), fields=tuple(sent.items())))
    assert (found.one("x-gslb-region"), found.one("x-gslb-attempts")) == ("eu", "1")
    assert all(one.requests[0].one(name) is None for name in sent)


async def test_a_full_endpoint_spills_and_returns(edge: MakeEdge, upstream: MakeUpstream) -> None:
    eu, us = await upstream(["hang"]), await upstream(stream(event("A"), DONE))
    running = await edge({"eu": [{"url": eu.url, "capacity": 1}], "us": [us]})
    client = await running.connect()
    client.send(ASK)
    await until(lambda: eu.requests)
    found = await running.ask(request(chat(stream=True)))
    assert found.one("x-gslb-region") == "us"
    client.close()
    await until(lambda: running.in_flight == 0)
    assert (await running.ask(ASK)).one("x-gslb-region") == "eu"


# --- the PROXY protocol -------------------------------------------------------------------------------

GEO = {
    "proxy_protocol": True,
    "trusted_proxies": ["127.0.0.0/8"],
    "overrides": {"203.0.113.0/24": "aws:us-east-1"},
}
V1 = b"PROXY TCP4 203.0.113.5 127.0.0.1 4711 8080\r\n"
V2 = (
    b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c" + bytes((203, 0, 113, 5, 127, 0, 0, 1)) + b"\x12\x67\x1f\x90"
)  # fmt: skip


@pytest.mark.parametrize("header", [V1, V2])
@pytest.mark.parametrize("is_trickled", [False, True])
async def test_the_proxy_protocol_tells_who_the_client_is(
    header: bytes, is_trickled: bool, edge: MakeEdge, upstream: MakeUpstream
) -> None:
    eu, us = await upstream(), await upstream()
    running = await edge({"eu": [eu], "us": [us]}, geo=GEO)
    client = await running.connect()
    raw = header + ASK
    for i in range(0, len(raw) if is_trickled else 0):
        client.write(raw[i : i + 1])
        await running.admin("/healthz") if i % 40 == 0 else None
    found = client.expect() if is_trickled else client.send(raw)
    await client.whole(found)
    assert found.one("x-gslb-region") == "us"
    assert us.requests[0].one("x-forwarded-for") == "203.0.113.5"
    assert (await client.ask(ASK)).one("x-gslb-region") == "us", "for the whole connection"


@pytest.mark.parametrize(
    "header", [b"", b"PROXY TCP4 garbage\r\n", b"\r\n\r\n\x00\r\nQUIT\nxxxxxxxx", b"\x00" * 40]
)
async def test_without_a_good_proxy_header_nothing_is_answered(
    header: bytes, edge: MakeEdge, upstream: MakeUpstream
) -> None:
    one = await upstream()
    running = await edge({"eu": [one]}, geo=GEO)
    client = await running.connect()
    client.write(header + ASK)
    await client.end()
    assert client.received == b""
    assert one.requests == []
