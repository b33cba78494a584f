"""One host that plays several continents: round trips by client address."""

from __future__ import annotations

import asyncio

import pytest

from tests.mock.mocks import ASK, HOUR_MS, STREAM, Mocks, ask_bytes
from tests.mock.raw import RawClient, get, post


async def test_distance_is_that_of_the_client_in_front(mocks: Mocks) -> None:
    mock = await mocks(wan=[("10.1.0.0/16", 120.0), ("2001:db8::/32", 60.0)], wan_default_ms=4.0)
    ways = {"10.1.2.3": 60.0, "2001:db8::1": 30.0, "192.0.2.1": 2.0, "not-an-address": 2.0, "": 2.0}
    assert {address: mock.half_rtt_s(address) * 1e3 for address in ways} == pytest.approx(ways)
    mock.settings.wan = [("0.0.0.0/0", 10.0)]
    assert mock.half_rtt_s("::ffff:192.0.2.1") == pytest.approx(0.005)


async def test_far_answer_takes_a_round_trip_and_stays_in_order(mocks: Mocks) -> None:
    mock = await mocks(wan=[("10.1.0.0/16", 100.0)])
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    answer = await post(mock.port, "/v1/completions", STREAM, ("x-forwarded-for", "10.1.2.3, 192.0.2.9"))
    assert loop.time() - started_s >= 0.099
    assert answer.is_complete
    assert answer.chunks is not None
    assert len(answer.chunks) == 4


async def test_health_is_as_far_as_the_peer(mocks: Mocks) -> None:
    mock = await mocks(wan=[("127.0.0.0/8", 60.0)])
    loop = asyncio.get_running_loop()
    for path in ("/health", "/metrics"):
        started_s = loop.time()
        assert (await get(mock.port, path)).status == 200
        assert loop.time() - started_s >= 0.059


async def test_engine_hears_of_a_far_request_and_its_end_half_a_trip_later(mocks: Mocks) -> None:
    mock = await mocks(wan_default_ms=100.0, itl_ms=HOUR_MS)
    loop = asyncio.get_running_loop()
    client = await RawClient.connect(mock.port)
    await client.send(ask_bytes(ASK))
    await mock.wait_until(lambda: mock.requests_total == 1)
    received_s = mock.requests[0].at_s
    assert mock.driver.running == 0
    await mock.wait_until(lambda: mock.driver.running == 1)
    assert loop.time() - received_s >= 0.049
    client.close()
    await mock.wait_until(lambda: mock.open_connections == 0)
    assert mock.driver.running == 1
    await mock.wait_until(lambda: mock.driver.running == 0)


async def test_client_that_leaves_before_its_far_request_arrives_leaves_nothing(mocks: Mocks) -> None:
    mock = await mocks(wan_default_ms=60.0, itl_ms=HOUR_MS)
    client = await RawClient.connect(mock.port)
    await client.send(ask_bytes(ASK))
    await mock.wait_until(lambda: mock.requests_total == 1)
    client.close()
    await mock.wait_until(lambda: mock.aborted == 1)
    assert mock.driver.running == 0
