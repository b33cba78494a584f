"""What is known of load and what is not: FC-22 (names), FC-23 (own counts), FC-24 (stale samples)."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from random import Random
from typing import Any

import pytest

from tests.support.edge import RunningEdge, config_of
from tests.support.raw_client import Answer, RawClient, chat, request, until
from tests.support.raw_upstream import DONE, GOOD, LAST, SSE_HEAD, RawUpstream, Script, answer, chunk, event
from tests.system.conftest import MakeEdge, MakeUpstream

ASK = request(chat())
STREAM = request(chat(stream=True))
IDLE = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.0\n"
BUSY = "vllm:num_requests_running 3\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.1\n"
STRANGE = "# TYPE sglang:num_running_reqs gauge\nsglang:num_running_reqs 40\n"
SCRAPED = {"scrape_interval": "50ms", "scrape_timeout": "50ms"}


async def load_of(running: RunningEdge, one: RawUpstream) -> dict[str, Any] | None:
    """The load sample of `one` in the admin view."""
    status = (await running.admin("/api/v1/status")).json
    found = next(e for region in status["regions"] for e in region["endpoints"] if e["url"] == one.url)
    load: dict[str, Any] | None = found["load"]
    return load


async def is_older(running: RunningEdge, one: RawUpstream, age_s: float) -> None:
    """Wait until the sample of `one` is older than that."""
    while ((await load_of(running, one) or {})["age_s"] or 0.0) <= age_s:  # noqa: ASYNC110 - asked of the edge
        await asyncio.sleep(0.05)


def silence(one: RawUpstream) -> None:
    """From now on `/metrics` of `one` is taken and never answered."""
    plain = one.page
    one.page = lambda path: b"" if path.endswith(b"/metrics") else plain(path)  # type: ignore[method-assign]


# --- FC-22 ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metrics", "reason"),
    [
        (STRANGE, "no_vllm_metrics"),
        ("<html></html>", "html"),
        ("", "empty"),
        ("vllm:num_requests_running NaN\n", "nan"),
        (None, "status_404"),
    ],
)
async def test_fc22_unknown_load_is_not_idle(
    metrics: str | None, reason: str, edge: MakeEdge, upstream: MakeUpstream, caplog: pytest.LogCaptureFixture
) -> None:
    """FC-22: absent is never zero: the one that tells its load is chosen, the error counted, one warning."""
    strange, known = await upstream(), await upstream()
    strange.metrics, known.metrics = metrics, IDLE
    with caplog.at_level(logging.WARNING, "gslb.observe"):
        running = await edge({"eu": [strange, known]}, health=SCRAPED)
        key = next(v.endpoint.key for v in running.edge.fleet.snapshot.endpoints if v.endpoint.url == strange.url)
        await until(lambda: running.edge.counters.scrape_errors[key, reason] >= 4, "scrapes go on")
    client = await running.connect()
    for _ in range(12):
        assert (await client.ask(ASK)).status == 200
    assert (len(strange.requests), len(known.requests)) == (0, 12)
    assert await load_of(running, strange) is None
    assert sum(f"{key}: scrape" in record.message for record in caplog.records) == 1
    metric = f'gslb_scrape_errors_total{{endpoint="{key}",reason="{reason}",region="eu"}}'
    assert metric in (await running.admin("/metrics")).body.decode()


async def test_fc22_alone_an_unknown_one_serves(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-22: unknown load ranks by own requests; it is no reason to refuse."""
    one, two = await upstream(), await upstream()
    one.metrics = two.metrics = STRANGE
    gate = asyncio.Event()
    one.default = two.default = [SSE_HEAD + chunk(event("A")), gate, chunk(DONE) + LAST]
    running = await edge({"eu": [one, two]}, health=SCRAPED)
    streams = await open_streams(running, 8)
    assert (len(one.requests), len(two.requests)) == (4, 4), "own requests are known exactly"
    gate.set()
    for client, found in streams:
        await client.whole(found)


# --- FC-23 ----------------------------------------------------------------------------------------------


async def open_streams(running: RunningEdge, count: int) -> list[tuple[RawClient, Answer]]:
    """Streams that have shown their first event, opened one after another."""
    streams = []
    for _ in range(count):
        client = await running.connect()
        found = client.send(STREAM)
        await until(lambda: found.body)  # noqa: B023 - awaited within the turn
        streams.append((client, found))
    return streams


def gauge(metrics: bytes) -> float:
    """The sum of `gslb_inflight`."""
    lines = metrics.decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("gslb_inflight{"))


FATES: dict[str, Script] = {
    "ok": [GOOD], "stream": [SSE_HEAD + chunk(event("A")) + chunk(DONE) + LAST], "4xx": [answer(400, b"{}")],
    "429": [answer(429, b"{}")], "503": [answer(503, b"{}")], "reset": ["rst"], "silent": ["hang"],
    "truncated": [SSE_HEAD + chunk(event("A")), "rst"], "short": [answer(200, b"x" * 99)[:-9], "fin"],
    "error event": [SSE_HEAD + chunk(b'data: {"error": {"code": 500}}\n\n') + LAST],
    "slow": [SSE_HEAD, 0.01, chunk(event("A")), 0.01, chunk(DONE) + LAST],
}  # fmt: skip


async def test_fc23_the_gauge_is_exact_whatever_becomes_of_requests(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-23: hundreds of requests of random fate, clients that leave, an endpoint removed and back: 50 open
    streams are 50, and nothing is left in the end."""
    dice = Random(23)
    gate = asyncio.Event()
    ups = [await upstream() for _ in range(3)]
    steady = await upstream(default=[SSE_HEAD + chunk(event("A")), gate, chunk(DONE) + LAST], models=("steady",))
    fleet = {"eu": [ups[0], steady], "us": [ups[1]], "ap": [ups[2]]}
    sections: dict[str, Any] = {
        "timeouts": {"first_byte": "80ms", "answer": "80ms", "between_bytes": "8s"},
        "health": {"passive_fall": 10_000},
    }
    running = await edge(fleet, **sections)
    for one in ups:
        one.next_script = lambda: dice.choice(list(FATES.values()))  # type: ignore[method-assign]
    long = []
    for _ in range(50):
        client = await running.connect()
        long.append((client, client.send(request(chat("steady", stream=True)))))
    await until(lambda: all(found.body for _, found in long))

    async def one_client() -> None:
        for _ in range(15):
            client = await running.connect()
            client.send(request(chat(stream=dice.random() < 0.5)))
            if dice.random() < 0.3:
                await asyncio.sleep(dice.random() * 0.02)
                client.reset()
            else:
                answered = client.expect()
                await until(lambda: answered.has_head or client.ended)  # noqa: B023
                client.close()

    async def reloads() -> None:
        for members in ({**fleet, "ap": []}, fleet) * 3:
            await asyncio.sleep(0.02)
            kept = {name: found for name, found in members.items() if found}
            assert running.reload(config_of(kept, **sections)) == []

    await asyncio.gather(*(one_client() for _ in range(20)), reloads())
    await until(lambda: running.open_exchanges == 50, "all but the long ones to end")
    assert running.in_flight == 50
    assert gauge((await running.admin("/metrics")).body) == 50
    gate.set()
    for client, found in long:
        await client.whole(found)
    assert running.in_flight == 0
    assert gauge((await running.admin("/metrics")).body) == 0
    outcomes = Counter(record["outcome"] for record in running.records())
    assert outcomes["ok"] >= 50
    assert {"client_gone", "upstream_error", "upstream_truncated"} <= outcomes.keys(), "all of it happened"


async def test_fc23_a_retried_request_counts_at_one_endpoint_at_a_time(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-23: while the second endpoint has it, the first has not."""
    eu, us = await upstream([answer(503, b"{}")]), await upstream(["hang"])
    running = await edge({"eu": [eu], "us": [us]})
    client = await running.connect()
    client.send(ASK)
    await until(lambda: us.requests)
    counts = {v.endpoint.url: v.own.requests for v in running.edge.fleet.snapshot.endpoints}
    assert counts == {eu.url: 0, us.url: 1}


async def test_fc23_equals_share_the_load(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-23: ties are not broken by the order of the list."""
    ups = [await upstream() for _ in range(4)]
    running = await edge({"eu": ups})
    client = await running.connect()
    for _ in range(400):
        await client.ask(ASK)
    assert all(60 <= len(one.requests) <= 140 for one in ups), [len(one.requests) for one in ups]


# --- FC-24 ----------------------------------------------------------------------------------------------


async def test_fc24_a_a_hanging_scrape_costs_the_only_endpoint_nothing(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-24 a and e: scrapes are cut at their timeout and go on; requests are served as if nothing were."""
    one = await upstream()
    silence(one)
    running = await edge({"eu": [one]}, health=SCRAPED)
    key = running.edge.fleet.snapshot.endpoints[0].endpoint.key
    await until(lambda: running.edge.counters.scrape_errors[key, "timeout"] >= 3)
    client = await running.connect()
    for _ in range(20):
        found = await client.ask(ASK)
        assert (found.status, found.one("x-gslb-attempts")) == (200, "1")


async def test_fc24_b_an_old_zero_does_not_win_and_is_not_excluded(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-24 b: stale and once idle comes after fresh and busy; alone it serves. Its age is in the admin view."""
    stale, fresh = await upstream(), await upstream()
    stale.metrics, fresh.metrics = IDLE, BUSY
    running = await edge(
        {"eu": [stale, fresh]}, health={**SCRAPED, "scrape_timeout": "1s", "stale_after": "1500ms"}
    )
    assert (await load_of(running, stale) or {})["running"] == 0
    silence(stale)
    await is_older(running, stale, 1.6)
    client = await running.connect()
    for _ in range(8):
        assert (await client.ask(ASK)).status == 200
    assert (len(stale.requests), len(fresh.requests)) == (0, 8)
    fresh.stop()
    assert (await client.ask(ASK)).status == 200
    assert len(stale.requests) == 1


async def test_fc24_c_all_stale_spread_by_own_requests(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-24 c: with no fresh sample anywhere own requests decide; what was busy long ago is not avoided."""
    gate = asyncio.Event()
    ups = [await upstream(default=[SSE_HEAD + chunk(event("A")), gate, chunk(DONE) + LAST]) for _ in range(2)]
    ups[0].metrics, ups[1].metrics = IDLE, BUSY
    running = await edge({"eu": ups}, health={"stale_after": "100ms"})
    for one in ups:
        await is_older(running, one, 0.2)
    streams = await open_streams(running, 8)
    assert [len(one.requests) for one in ups] == [4, 4]
    gate.set()
    for client, found in streams:
        await client.whole(found)


async def test_fc24_d_an_engine_that_restarted_counts_from_zero(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-24 d: counters that drop are a restart, not a negative rate."""
    one = await upstream()
    one.metrics = BUSY + "vllm:prompt_tokens_total 9000\nvllm:generation_tokens_total 5000\n"
    running = await edge({"eu": [one]}, health=SCRAPED)
    assert (await load_of(running, one) or {})["generation_tokens_total"] == 5000
    one.metrics = IDLE + "vllm:prompt_tokens_total 0\nvllm:generation_tokens_total 0\n"
    await until(lambda: running.edge.fleet.snapshot.endpoints[0].load.generation_tokens_total == 0)  # type: ignore[union-attr]
    assert running.state(one) == "admitting"
    assert (await running.ask(ASK)).status == 200
    metrics = (await running.admin("/metrics")).body.decode()
    assert not [line for line in metrics.splitlines() if not line.startswith("#") and " -" in line]
