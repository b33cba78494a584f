"""How much a tenant may ask for per time: FC-37, the sending side."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate
from typing import Any

from tests.support.edge import RunningEdge, config_of
from tests.support.raw_client import Answer, chat, request, until
from tests.support.raw_upstream import GOOD, answer
from tests.system.conftest import MakeEdge, MakeUpstream

KEYS = {"ACME": "gk-1", "ZETA": "gk-2"}
ACME, ZETA = ((("Authorization", f"Bearer {key}"),) for key in KEYS.values())
ASK = request(chat(), fields=ACME)


def tenants_with(**rate: Any) -> dict[str, Any]:
    return {"acme": {"key_env": "ACME", "rate": rate}, "zeta": {"key_env": "ZETA"}}


async def refused(running: RunningEdge, raw: bytes = ASK) -> Answer:
    """The first refusal of a row of requests, however slowly they go."""
    for _ in range(200):
        found = await running.ask(raw)
        if found.status != 200:
            return found
    raise AssertionError("nothing was refused")


async def test_fc37_a_client_that_waits_as_long_as_told_is_accepted(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-37, send: one request per 2.5 s, the second one soon after the first, the third after the wait."""
    one = await upstream()
    running = await edge({"eu": [one]}, KEYS, tenants=tenants_with(requests=1, per="2500ms"))
    found = await refused(running)
    assert (found.status, found.error["code"], found.error["type"]) == (429, "rate_limit", "rate_limit_error")
    seconds, milliseconds = int(found.one("retry-after") or 0), int(found.one("retry-after-ms") or 0)
    assert 1 <= seconds <= 3
    assert (seconds - 1) * 1000 < milliseconds <= min(seconds * 1000, 2500), "rounded up"
    assert found.one("x-should-retry") is None, "waiting helps"
    asked = len(one.requests)
    running.edge._door.wall_s = lambda: time.time() - 3600  # a wall clock that is set back freezes no limit
    await asyncio.sleep(milliseconds / 1000)
    assert (await running.ask(ASK)).status == 200
    assert len(one.requests) == asked + 1, "what is refused reaches no endpoint"


async def test_fc37_a_burst_and_then_no_more(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-37: of twenty at once five go; another tenant is served; the log and metrics tell who met which limit."""
    one = await upstream(default=[GOOD])
    running = await edge({"eu": [one]}, KEYS, tenants=tenants_with(requests=1, per="1h", burst=5))
    clients = [await running.connect() for _ in range(20)]
    answers = [client.send(ASK) for client in clients]
    await until(lambda: all(found.is_complete for found in answers))
    assert sorted(found.status for found in answers) == [200] * 5 + [429] * 15
    assert len(one.requests) == 5
    assert (await running.ask(request(chat(), fields=ZETA))).status == 200
    metrics = (await running.admin("/metrics")).body.decode()
    assert 'gslb_rate_limited_total{counts="requests",tenant="acme"} 15.0' in metrics
    assert 'gslb_tenant_inflight{tenant="acme"} 0.0' in metrics
    limited = [record for record in running.records() if record["status"] == 429]
    assert {(record["outcome"], record["reason"], record["tenant"]) for record in limited} == {
        ("refused", "rate_limit", "acme")
    }


async def test_fc37_what_is_left_is_told(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-37: OpenAI's fields on every answer of a limited tenant, in place of an endpoint's own."""
    theirs = answer(200, b"{}", ("X-RateLimit-Remaining-Requests", "77"), ("Date", formatdate(usegmt=True)))
    one = await upstream(default=[theirs])
    running = await edge({"eu": [one]}, KEYS, tenants=tenants_with(requests=10, prompt_tokens=1000, per="1h"))
    client = await running.connect()
    for left in (9, 8, 7):
        found = await client.ask(ASK)
        assert (found.status, found.one("x-ratelimit-limit-requests")) == (200, "10")
        assert found.one("x-ratelimit-remaining-requests") == str(left)
        assert int(found.one("x-ratelimit-remaining-tokens") or 0) < 1000
        assert (found.one("x-ratelimit-reset-requests") or "").endswith("s")
    other = await client.ask(request(chat(), fields=ZETA))
    assert (other.one("x-ratelimit-limit-requests"), other.one("x-ratelimit-remaining-requests")) == (None, "77")
    long = await running.ask(request(chat(prompt="word " * 2000), fields=ACME))
    assert (long.status, long.error["code"]) == (429, "rate_limit"), (
        "more than a bucket holds waits for a full one"
    )
    assert "tokens" in long.error["message"]
    assert long.one("x-ratelimit-remaining-requests") == "7", "what is refused takes nothing"


async def test_fc37_a_reload_forgets_nothing(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-37: neither a reload nor a key that brings another rate fills the bucket; no rate, no limit."""
    one = await upstream()
    running = await edge({"eu": [one]}, KEYS, tenants=tenants_with(requests=1, per="1h"))
    assert (await running.ask(ASK)).status == 200
    assert running.reload(config_of({"eu": [one]}, tenants=tenants_with(requests=2, per="2h", burst=1))) == []
    found = await running.ask(ASK)
    assert (found.status, found.one("x-ratelimit-remaining-requests")) == (429, "0")
    assert running.reload(config_of({"eu": [one]}, tenants=tenants_with())) == []
    assert [(await running.ask(ASK)).status for _ in range(3)] == [200] * 3


async def test_fc37_lists_and_refusals_by_other_rules_take_nothing(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-37: only what might go to an endpoint is counted."""
    gate = asyncio.Event()
    one = await upstream([gate, GOOD], default=[GOOD])
    tenants = tenants_with(requests=2, per="1h")
    tenants["acme"] |= {"max_concurrency": 1, "models": ["m"]}
    running = await edge({"eu": [one]}, KEYS, tenants=tenants)
    first = await running.connect()
    running_one = first.send(ASK)
    await until(lambda: one.requests)
    fails = (ASK, request("{", fields=ACME), request(chat("else"), fields=ACME))
    assert [(await running.ask(raw)).status for raw in fails] == [429, 400, 404]
    models = request(method="GET", path="/v1/models", fields=ACME)
    assert (await running.ask(models)).status == 200
    gate.set()
    assert (await first.whole(running_one)).status == 200
    assert [(await running.ask(ASK)).status for _ in range(2)] == [200, 429]
