"""Load scrapes and model lists: eight strange upstreams (FC-22), keys, hangs."""

from __future__ import annotations

import logging

import pytest
from aiohttp import web

from gslb.counters import Counters
from gslb.observe.fetch import FetchFailed
from gslb.observe.watch import read_model_cards
from gslb.routing.health import State
from tests.observe.conftest import MakeUpstream, Observe
from tests.observe.upstream import (
    METRICS,
    answers,
    endpoint,
    fleet_of,
    hangs,
    settings,
    until,
    view_of,
)

FC_22 = {
    "u/1": "sglang:num_running_reqs 40\n",
    "u/2": "vllm:num_requests_waiting 0\nvllm:gpu_cache_usage_perc 0.4\n",
    "u/3": "vllm:num_requests_running 1\nvllm:gpu_cache_usage_perc 0.4\nvllm:kv_cache_usage_perc 0.3\n",
    "u/4": "<html><body>sign in</body></html>\n",
    "u/5": "",
    "u/6": "vllm:num_requests_running 3\nvllm:num_requests_wai\nvllm:kv_cache_usage_perc 0.2\n",
    "u/7": "vllm:num_requests_running NaN\nvllm:num_requests_waiting NaN\n",
    "u/8": "",
}


async def test_fc22_eight_strange_upstreams(
    make_upstream: MakeUpstream, observe: Observe, counters: Counters, caplog: pytest.LogCaptureFixture
) -> None:
    """FC-22: unknown load is not idle."""
    upstreams = {key: await make_upstream() for key in FC_22}
    for key, text in FC_22.items():
        upstreams[key].metrics = text
    upstreams["u/8"].handlers["/metrics"] = answers(401)
    endpoints = [endpoint(key, upstream.url) for key, upstream in upstreams.items()]
    fleet = fleet_of(*endpoints)
    with caplog.at_level(logging.WARNING, "gslb.observe"):
        observe(fleet, settings(*endpoints, interval="5s"))  # probes have time on a loaded machine
        await until(lambda: all(upstream.hits["/metrics"] >= 4 for upstream in upstreams.values()))
        await until(lambda: len(counters.scrape_errors) >= 6 and min(counters.scrape_errors.values()) >= 3)
    loads = {key: view_of(fleet, key).load for key in FC_22}
    assert {key for key, load in loads.items() if load is None} == {"u/1", "u/4", "u/5", "u/7", "u/8"}
    two, three, six = loads["u/2"], loads["u/3"], loads["u/6"]
    assert two is not None
    assert three is not None
    assert six is not None
    assert (two.running, two.waiting, two.kv_usage) == (None, 0.0, 0.4)
    assert three.kv_usage == 0.3
    assert (six.running, six.waiting, six.kv_usage) == (3.0, None, 0.2)
    assert dict(counters.scrape_errors.keys()) == {
        "u/1": "no_vllm_metrics",
        "u/4": "html",
        "u/5": "empty",
        "u/6": "bad_line",
        "u/7": "nan",
        "u/8": "status_401",
    }
    assert all(count >= 3 for count in counters.scrape_errors.values())
    for key in ("u/1", "u/4", "u/5", "u/6", "u/7", "u/8"):
        assert sum(f"{key}: scrape" in record.message for record in caplog.records) == 1
    assert fleet.load_error("u/8")
    # Probes every 20 ms may be late on a busy machine; a load problem that were an illness would stay one.
    await until(lambda: all(view_of(fleet, key).state is State.ADMITTING for key in FC_22))


async def test_own_requests_are_those_at_the_sample(make_upstream: MakeUpstream, observe: Observe) -> None:
    upstream = await make_upstream()
    one = endpoint("eu/1", upstream.url)
    fleet = fleet_of(one)
    own = fleet.own_load("eu/1")
    assert own is not None
    own.open_ticket(100)
    observe(fleet, settings(one))
    await until(lambda: view_of(fleet, "eu/1").load is not None)
    load = view_of(fleet, "eu/1").load
    assert load is not None
    assert load.own_running_then == 1
    assert view_of(fleet, "eu/1").others == 2.0


async def test_a_failed_scrape_leaves_the_last_sample_to_age(
    make_upstream: MakeUpstream, observe: Observe
) -> None:
    upstream = await make_upstream()
    one = endpoint("eu/1", upstream.url)
    fleet = fleet_of(one)
    observe(fleet, settings(one))
    await until(lambda: view_of(fleet, "eu/1").load is not None)
    upstream.handlers["/metrics"] = answers(500)
    await until(lambda: fleet.load_error("eu/1") is not None)
    last = view_of(fleet, "eu/1").load
    hits = upstream.hits["/metrics"]
    await until(lambda: upstream.hits["/metrics"] > hits + 2)
    assert view_of(fleet, "eu/1").load is last
    upstream.handlers.clear()
    await until(lambda: fleet.load_error("eu/1") is None)


async def test_fc24_e_a_hanging_scrape_delays_nothing_else(
    make_upstream: MakeUpstream, observe: Observe, counters: Counters
) -> None:
    """FC-24 e and a: stale samples neither win nor exclude."""
    stuck, well = await make_upstream(), await make_upstream()
    stuck.handlers["/metrics"] = hangs
    endpoints = endpoint("eu/1", stuck.url), endpoint("eu/2", well.url)
    fleet = fleet_of(*endpoints)
    observe(fleet, settings(*endpoints, scrape_timeout="20s"))
    await until(lambda: stuck.hits["/health"] > 5 and well.hits["/metrics"] > 5)
    assert stuck.hits["/metrics"] == 1, "never two scrapes out at one endpoint"


async def test_fc24_e_a_scrape_is_cut_at_its_timeout(
    make_upstream: MakeUpstream, observe: Observe, counters: Counters
) -> None:
    """FC-24 e and a: stale samples neither win nor exclude."""
    upstream = await make_upstream()

    async def trickle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(METRICS.encode())
        return await hangs(request)

    upstream.handlers["/metrics"] = trickle
    one = endpoint("eu/1", upstream.url)
    fleet = fleet_of(one)
    observe(fleet, settings(one, scrape_timeout="50ms"))
    await until(lambda: counters.scrape_errors["eu/1", "timeout"] >= 2)
    assert view_of(fleet, "eu/1").load is None, "half a page is no sample"


async def test_the_endpoints_own_key_goes_to_it(make_upstream: MakeUpstream, observe: Observe) -> None:
    with_key, without = await make_upstream(), await make_upstream()
    endpoints = endpoint("eu/1", with_key.url), endpoint("eu/2", without.url)
    observed = settings(*endpoints)
    observed.api_keys = {"eu/1": "sk-one"}
    observer = observe(fleet_of(*endpoints), observed)
    assert await observer.first_round(10)
    assert with_key.keys["/v1/models"] == "Bearer sk-one"
    assert without.keys["/v1/models"] is None
    assert "sk-one" not in repr(observer._watches["eu/1"]._assignment)


async def test_declared_models_are_not_asked_for(make_upstream: MakeUpstream, observe: Observe) -> None:
    upstream = await make_upstream()
    one = endpoint("eu/1", upstream.url, models=frozenset({"declared"}))
    fleet = fleet_of(one)
    observer = observe(fleet, settings(one))
    assert await observer.first_round(10)
    await until(lambda: upstream.hits["/health"] > 5)
    assert upstream.hits["/v1/models"] == 0
    assert view_of(fleet, "eu/1").models == frozenset({"declared"})


async def test_models_that_fail_are_asked_for_again_soon(
    make_upstream: MakeUpstream, observe: Observe, counters: Counters
) -> None:
    upstream = await make_upstream()
    upstream.handlers["/v1/models"] = answers(401)
    one = endpoint("eu/1", upstream.url)
    fleet = fleet_of(one)
    observer = observe(fleet, settings(one, models_interval="1h"))
    await until(lambda: counters.scrape_errors["eu/1", "models_status_401"] >= 2)
    assert "key" in observer.problems("eu/1")["models"]
    upstream.handlers.clear()
    await until(lambda: view_of(fleet, "eu/1").models == frozenset({"m1"}))
    assert "models" not in observer.problems("eu/1")


def test_model_cards_are_filtered() -> None:
    page = b'{"data": [{"id": "a", "x": 1}, {"id": 3}, {"id": ""}, "b", null, {}, {"id": "a"}, {"id": "c"}]}'
    assert read_model_cards(page) == [{"id": "a", "x": 1}, {"id": "c"}]
    assert read_model_cards(b'{"data": []}') == []


@pytest.mark.parametrize("page", [b"", b"<html>", b"[]", b"null", b'{"data": {}}', b'{"data": null}', b"\xff"])
def test_no_model_list_is_a_failure(page: bytes) -> None:
    with pytest.raises(FetchFailed):
        read_model_cards(page)


def test_a_model_list_cut_at_each_byte() -> None:
    page = b'{"object":"list","data":[{"id":"m"}]}'
    for end in range(len(page)):
        with pytest.raises(FetchFailed):
            read_model_cards(page[:end])
