"""The admin API over loopback: reading for everybody, changing with the token only."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from gslb.admin.api import AdminServer
from gslb.admin.edge import ExplainQuery
from gslb.types import ForcedState
from tests.admin.edge import TOKEN, Edge, serving

BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
async def client(edge: Edge) -> AsyncIterator[aiohttp.ClientSession]:
    async with serving(edge) as url, aiohttp.ClientSession(url) as session:
        yield session


def forced_of(edge: Edge) -> dict[str, str]:
    return {view.endpoint.key: view.forced.value for view in edge.fleet.snapshot.endpoints}


async def error_of(response: aiohttp.ClientResponse) -> dict[str, Any]:
    document = await response.json()
    assert set(document) == {"error"}
    assert set(document["error"]) == {"message", "type", "param", "code"}
    return dict(document["error"])


async def test_liveness_depends_on_nothing(edge: Edge, client: aiohttp.ClientSession) -> None:
    edge.ready = (False, {"reason": "stopping"})
    async with client.get("/healthz") as response:
        assert (response.status, await response.text()) == (200, "ok\n")
    async with client.head("/healthz") as response:
        assert response.status == 200


async def test_readiness_and_upstream_states(edge: Edge, client: aiohttp.ClientSession) -> None:
    edge.fleet.force("eu/b", ForcedState.DRAINING)
    async with client.get("/readyz") as response:
        assert response.status == 200
        assert await response.json() == {
            "ready": True,
            "upstreams": {"eu/a": "admitting", "eu/b": "unknown, draining", "ap/a": "unknown"},
        }
    edge.ready = (False, {"reason": "stopping"})
    async with client.get("/readyz") as response:
        assert response.status == 503
        document = await response.json()
        assert (document["ready"], document["reason"]) == (False, "stopping")


async def test_metrics_in_both_formats(client: aiohttp.ClientSession) -> None:
    async with client.get("/metrics") as response:
        assert response.headers["Content-Type"].startswith("text/plain")
        assert 'gslb_inflight{endpoint="eu/a",region="eu"} 1.0' in await response.text()
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    async with client.get("/metrics", headers=accept) as response:
        assert response.headers["Content-Type"].startswith("application/openmetrics-text")
        assert (await response.text()).endswith("# EOF\n")


async def test_status_tells_all(client: aiohttp.ClientSession) -> None:
    async with client.get("/api/v1/status") as response:
        document = await response.json()
    assert document["ready"] is True
    assert (document["edge"]["name"], document["edge"]["version"]) == ("fra-1", "0.1.0")
    eu, ap = document["regions"]
    assert (eu["name"], eu["jurisdictions"], ap["name"]) == ("eu", ["EU"], "ap")
    assert ap["rtt_prior_ms"] > 100
    a, b = eu["endpoints"]
    assert (a["state"], a["models"], a["in_flight"], a["pending_tokens"]) == ("admitting", ["m1"], 1, 300)
    assert (a["others"], a["slots"], a["rtt_measured_ms"], a["scrape_error"]) == (12.0, 64, 12.5, None)
    assert a["load"]["age_s"] == 1.5
    assert (a["load"]["running"], a["load"]["prompt_tokens_total"]) == (10.0, None)
    assert (b["state"], b["models"], b["load"]) == ("unknown", None, None)
    assert b["scrape_error"] == "no answer within 1 s"
    assert b["notes"] == ["scrape: no answer within 1 s"]


async def test_config_is_the_one_in_force(edge: Edge, client: aiohttp.ClientSession) -> None:
    edge.counters.config_generation = 3
    async with client.get("/api/v1/config") as response:
        document = await response.json()
    assert document["generation"] == 3
    assert document["config"]["edge"]["name"] == "fra-1"


async def test_nothing_shows_the_token(client: aiohttp.ClientSession) -> None:
    for path in ("/readyz", "/metrics", "/api/v1/status", "/api/v1/config"):
        async with client.get(path) as response:
            assert TOKEN not in await response.text()


async def test_explain(edge: Edge, client: aiohttp.ClientSession) -> None:
    query = {"ip": "2001:db8::1", "model": "m1", "tenant": "t", "prompt_tokens": "900", "region": "eu"}
    async with client.get("/api/v1/explain", params=query) as response:
        assert await response.json() == {"choice": "eu/a"}
    async with client.get("/api/v1/explain") as response:
        assert response.status == 200
    assert edge.queries == [
        ExplainQuery("2001:db8::1", "m1", "t", 900, "eu"),
        ExplainQuery(None, None, None, 0, None),
    ]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("ip=somewhere", "ip"),
        ("ip=1.2.3.4.5", "ip"),
        ("prompt_tokens=-1", "prompt_tokens"),
        ("prompt_tokens=many", "prompt_tokens"),
        ("prompt_tokens=٣", "prompt_tokens"),
        ("prompt_tokens=" + "9" * 5000, "prompt_tokens"),
        ("colour=red", "colour"),
        ("ip=1.2.3.4&ip=1.2.3.4", "ip"),
        ("model=none", None),
    ],
)
async def test_explain_refuses_what_it_cannot_read(
    client: aiohttp.ClientSession, query: str, param: str | None
) -> None:
    async with client.get(f"/api/v1/explain?{query}") as response:
        assert response.status == 400
        error = await error_of(response)
    assert (error["code"], error["type"], error["param"]) == ("bad_request", "invalid_request_error", param)


async def test_the_operators_hand(edge: Edge, client: aiohttp.ClientSession) -> None:
    async def post(verb: str, target: str) -> list[str]:
        async with client.post(f"/api/v1/{verb}", json={"target": target}, headers=BEARER) as response:
            assert response.status == 200
            return list((await response.json())["endpoints"])

    assert await post("drain", "eu") == ["eu/a", "eu/b"]
    assert forced_of(edge) == {"eu/a": "draining", "eu/b": "draining", "ap/a": "none"}
    assert await post("cordon", "eu/b") == ["eu/b"]
    assert await post("undrain", "eu") == ["eu/a"], "what is cordoned stays cordoned"
    assert forced_of(edge) == {"eu/a": "none", "eu/b": "cordoned", "ap/a": "none"}
    assert await post("uncordon", "eu/b") == ["eu/b"]
    assert await post("uncordon", "eu/b") == []
    assert forced_of(edge) == {"eu/a": "none", "eu/b": "none", "ap/a": "none"}


async def test_reload(edge: Edge, client: aiohttp.ClientSession) -> None:
    edge.counters.config_generation = 2
    async with client.post("/api/v1/reload", headers=BEARER) as response:
        assert (response.status, await response.json()) == (200, {"generation": 2})
    edge.problems = ["gslb.yaml:3:1 regions: a region has no endpoints"]
    async with client.post("/api/v1/reload", headers=BEARER) as response:
        assert response.status == 422
        error = await error_of(response)
        assert (error["code"], error["message"]) == ("config_refused", edge.problems[0])


@pytest.mark.parametrize(
    "line",
    [
        None,
        "",
        "Bearer",
        "Bearer wrong",
        f"Bearer {TOKEN}x",
        f"Basic {TOKEN}",
        TOKEN,
        "Bearer caf\xe9",
        "Bearer “quotes”",
        "Bearer " + "x" * 6000,
    ],
)
async def test_a_wrong_token_is_401(edge: Edge, client: aiohttp.ClientSession, line: str | None) -> None:
    headers = {} if line is None else {"Authorization": line}
    for verb in ("reload", "drain", "undrain", "cordon", "uncordon"):
        async with client.post(f"/api/v1/{verb}", json={"target": "eu"}, headers=headers) as response:
            assert response.status == 401
            assert response.headers["WWW-Authenticate"] == "Bearer"
            assert (await error_of(response))["code"] == "invalid_api_key"
    assert edge.reloads == 0
    assert set(forced_of(edge).values()) == {"none"}


@pytest.mark.parametrize("line", [f"bearer {TOKEN}", f"BEARER   {TOKEN}"])
async def test_the_scheme_has_no_case(client: aiohttp.ClientSession, line: str) -> None:
    async with client.post("/api/v1/reload", headers={"Authorization": line}) as response:
        assert response.status == 200


async def test_two_tokens_are_none(client: aiohttp.ClientSession) -> None:
    lines = [("Authorization", f"Bearer {TOKEN}"), ("Authorization", "Bearer wrong")]
    async with client.post("/api/v1/reload", headers=lines) as response:
        assert response.status in (400, 401)


async def test_without_a_configured_token_nobody_may_change(edge: Edge, client: aiohttp.ClientSession) -> None:
    edge.current.admin_token = None
    async with client.post("/api/v1/drain", json={"target": "eu"}, headers=BEARER) as response:
        assert response.status == 403
        assert "admin.token_env" in (await error_of(response))["message"]


@pytest.mark.parametrize("body", ["", "{", "[]", "null", "{}", '{"target": 3}', '{"target": ""}', "\x00"])
async def test_a_change_needs_a_target(client: aiohttp.ClientSession, body: str) -> None:
    async with client.post("/api/v1/drain", data=body, headers=BEARER) as response:
        assert response.status == 400
        assert (await error_of(response))["param"] == "target"


async def test_an_unknown_target_is_404(client: aiohttp.ClientSession) -> None:
    async with client.post("/api/v1/drain", json={"target": "moon"}, headers=BEARER) as response:
        assert response.status == 404
        assert "moon" in (await error_of(response))["message"]


async def test_a_large_body_is_refused(client: aiohttp.ClientSession) -> None:
    body = json.dumps({"target": "x" * 100_000})
    async with client.post("/api/v1/drain", data=body, headers=BEARER) as response:
        assert response.status == 413


async def test_unknown_paths_and_methods(client: aiohttp.ClientSession) -> None:
    async with client.get("/nowhere") as response:
        assert response.status == 404
        assert (await error_of(response))["code"] == "not_found"
    async with client.delete("/api/v1/status") as response:
        assert response.status == 405
        assert response.headers["Allow"] == "GET, HEAD"
        assert (await error_of(response))["code"] == "method_not_allowed"
    async with client.get("/api/v1/drain") as response:
        assert (response.status, response.headers["Allow"]) == (405, "POST")


async def test_a_bug_is_a_plain_500(client: aiohttp.ClientSession) -> None:
    async with client.get("/api/v1/explain?model=bug") as response:
        assert response.status == 500
        assert "ZeroDivision" not in (await error_of(response))["message"]


async def test_the_port_is_known_only_while_listening() -> None:
    server = AdminServer(Edge())
    with pytest.raises(RuntimeError, match="start"):
        _ = server.port
    await server.stop()
