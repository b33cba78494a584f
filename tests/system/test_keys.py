"""Whose key goes where: FC-33 and the rules on Authorization of DESIGN section 3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.raw_client import chat, request
from tests.support.raw_upstream import DONE, GOOD, RawUpstream, answer, event, stream
from tests.system.conftest import MakeEdge, MakeUpstream

TENANTS: dict[str, Any] = {"acme": {"key_env": "ACME"}, "zeta": {"key_env": "ZETA", "models": ["m"]}}
KEYS = {"ACME": "gk-1", "ZETA": "gk-2", "EU": "up-eu", "US": "up-us"}
CLIENT_KEY = ("Authorization", "Bearer gk-1")


def keyed(one: RawUpstream, name: str) -> dict[str, Any]:
    return {"url": one.url, "api_key_env": name}


async def test_fc33_each_endpoint_gets_its_own_key_and_nobody_elses(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-33: keys stay where they belong."""
    eu, us, ap = await upstream(["rst"]), await upstream([answer(503, b"{}")]), await upstream([GOOD])
    running = await edge({"eu": [keyed(eu, "EU")], "us": [keyed(us, "US")], "ap": [ap]}, KEYS, tenants=TENANTS)
    fields = (CLIENT_KEY, ("X-Api-Key", "gk-1"), ("Api-Key", "zzz"), ("Cookie", "s=1"), ("X-Other", "passes"))
    found = await running.ask(request(chat(), fields=fields))
    assert (found.status, found.one("x-gslb-region")) == (200, "ap")
    assert eu.requests[0].all("authorization") == ["Bearer up-eu"]
    assert us.requests[0].all("authorization") == ["Bearer up-us"]
    assert ap.requests[0].all("authorization") == []
    for one in (eu, us, ap):
        (got,) = one.requests
        assert got.all("x-api-key") == got.all("api-key") == []
        assert b"gk-1" not in got.raw
        assert got.all("x-other") == ["passes"]
    assert (await running.record())["tenant"] == "acme"


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("has_key", [True, False])
async def test_fc33_an_upstreams_401_is_not_the_clients_fault(
    status: int, has_key: bool, edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-33: keys stay where they belong."""
    one = await upstream([answer(status, b'{"error":"Unauthorized"}', ("WWW-Authenticate", "Bearer"))])
    running = await edge({"eu": [keyed(one, "EU") if has_key else one]}, KEYS, tenants=TENANTS)
    found = await running.ask(request(chat(), fields=(CLIENT_KEY,)))
    assert (found.status, found.error["code"]) == (502, "upstream_auth")
    assert found.one("www-authenticate") is None
    assert (await running.record())["outcome"] == "upstream_error"
    assert running.attempts() == {("eu", "auth_error"): 1}, "flagged"


async def test_without_tenants_gslb_is_transparent(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream([answer(401, b'{"error":"Unauthorized"}', ("WWW-Authenticate", "Bearer"))])
    running = await edge({"eu": [one]})
    fields = (("Authorization", "Bearer client-own"), ("X-Api-Key", "client-x"))
    found = await running.ask(request(chat(), fields=fields))
    assert (found.status, bytes(found.body)) == (401, b'{"error":"Unauthorized"}')
    assert found.one("www-authenticate") == "Bearer"
    assert one.requests[0].all("authorization") == ["Bearer client-own"]
    assert one.requests[0].all("x-api-key") == ["client-x"]


async def test_an_endpoint_with_a_key_never_sees_the_clients(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream([GOOD], [answer(401, b"{}")])
    running = await edge({"eu": [keyed(one, "EU")]}, KEYS)
    raw = request(chat(), fields=(("Authorization", "Bearer client-own"), ("X-Api-Key", "client-x")))
    assert (await running.ask(raw)).status == 200
    assert one.requests[0].all("authorization") == ["Bearer up-eu"]
    assert b"client-" not in one.requests[0].raw
    assert (await running.ask(raw)).error["code"] == "upstream_auth"


GOOD_KEYS = ["Bearer gk-1", "bearer gk-1", "BEARER   gk-1", "Bearer gk-1 ", "Bearer gk-1\t"]
BAD_KEYS = [
    "Bearer caf\xe9", "Bearer \u201cgk-1\u201d", "Bearer", "Bearer ", "Basic Z2stMQ==", "gk-1", "Bearer gk-",
    "Bearer gk-11", "Bearer gk-1,gk-1", "Bearer gk-1 gk-1", "Bearer " + "k" * 8000,
]  # fmt: skip


def with_key(value: bytes) -> bytes:
    return request(chat()).replace(b"Host: api.example", b"Host: api.example\r\nAuthorization: " + value)


@pytest.mark.parametrize("value", GOOD_KEYS)
async def test_fc32_a_good_key_in_any_spelling(value: str, edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-32: strange bytes in a key are a wrong key."""
    running = await edge({"eu": [await upstream()]}, KEYS, tenants=TENANTS)
    assert (await running.ask(with_key(value.encode("latin-1")))).status == 200


async def test_fc32_bad_keys_are_401_and_all_alike(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-32: strange bytes in a key are a wrong key."""
    one = await upstream()
    running = await edge({"eu": [one]}, KEYS, tenants=TENANTS)
    bodies = set()
    values = [value.encode("utf-8") for value in BAD_KEYS] + [b"Bearer gk-1\r\nAuthorization: Bearer gk-1"]
    for raw in [request(chat()), *map(with_key, values)]:
        found = await running.ask(raw)
        assert (found.status, found.error["code"], found.one("www-authenticate")) == (
            401,
            "invalid_api_key",
            "Bearer",
        )
        bodies.add(bytes(found.body))
    assert len(bodies) == 1
    assert one.requests == []


async def test_fc32_two_authorization_lines_are_nobodys_without_tenants_too(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-32: strange bytes in a key are a wrong key."""
    one = await upstream()
    running = await edge({"eu": [one]})
    found = await running.ask(with_key(b"Bearer a\r\nAuthorization: Bearer b"))
    assert (found.status, found.error["code"]) == (400, "bad_request")
    assert one.requests == []


async def test_a_model_of_others_looks_like_an_unknown_one(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream(models=["m", "secret"])
    running = await edge({"eu": [one]}, KEYS, tenants=TENANTS)
    key = (("Authorization", "Bearer gk-2"),)
    errors = [await running.ask(request(chat(name), fields=key)) for name in ("secret", "absent")]
    assert [found.status for found in errors] == [404, 404]
    texts = [bytes(found.body).replace(b"secret", b"absent") for found in errors]
    assert texts[0] == texts[1]
    listed = await running.ask(request(method="GET", path="/v1/models", fields=key))
    assert [model["id"] for model in listed.json["data"]] == ["m"]
    assert (await running.ask(request(method="GET", path="/v1/models/secret", fields=key))).status == 404
    assert (await running.ask(request(chat("secret"), fields=(CLIENT_KEY,)))).status == 200
    assert (await running.ask(request(method="GET", path="/v1/models"))).status == 401


async def test_the_anthropic_way_to_send_a_key(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream(default=stream(event("A"), DONE))
    running = await edge({"eu": [one]}, KEYS, tenants=TENANTS)
    raw = request(chat(stream=True), path="/v1/messages", fields=(("x-api-key", "gk-1"),))
    assert (await running.ask(raw)).status == 200
    assert b"gk-1" not in one.requests[0].raw
    found = await running.ask(request(chat(), path="/v1/messages"))
    assert found.status == 401
    assert found.json["type"] == "error"
    assert found.json["error"]["type"] == "authentication_error"


async def test_fc32_a_key_file_may_end_its_line(edge: MakeEdge, upstream: MakeUpstream, tmp_path: Path) -> None:
    """FC-32: strange bytes in a key are a wrong key."""
    (tmp_path / "acme.key").write_bytes(b"gk-1\n")
    tenants = {"acme": {"key_file": str(tmp_path / "acme.key")}}
    running = await edge({"eu": [await upstream()]}, tenants=tenants)
    assert (await running.ask(with_key(b"Bearer gk-1"))).status == 200
    assert (await running.ask(with_key(b"Bearer gk-1\\n"))).status == 401


async def test_an_expired_key_is_401(edge: MakeEdge, upstream: MakeUpstream) -> None:
    tenants = {"acme": {"key_env": "ACME", "expires": "2020-01-01T00:00:00Z"}}
    running = await edge({"eu": [await upstream()]}, KEYS, tenants=tenants)
    found = await running.ask(request(chat(), fields=(CLIENT_KEY,)))
    assert (found.status, found.error["code"]) == (401, "invalid_api_key")
