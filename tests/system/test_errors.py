"""Every error that gslb makes itself: shape, status, and nothing in it that is not the client's to know. FC-34."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.support.edge import RunningEdge
from tests.support.raw_client import Answer, chat, request, until
from tests.support.raw_upstream import RawUpstream, answer
from tests.system.conftest import MakeEdge, MakeUpstream

KEY = ("Authorization", "Bearer gk-1")
KEYS = {"ACME": "gk-1", "OLD": "gk-old", "EU": "up-eu-secret"}
TENANTS = {"acme": {"key_env": "ACME"}, "old": {"key_env": "OLD", "expires": "2020-01-01T00:00:00Z"}}
LIMITS = {"body_bytes": "10KiB", "head_bytes": "4KiB"}
TIMEOUTS = {"first_byte": "150ms", "answer": "150ms"}

Make = Callable[[bool, tuple[tuple[str, str], ...]], bytes]


def asking(body: Any = None, **more: Any) -> Make:
    """A request in its streamed and its plain form."""

    def make(is_stream: bool, fields: tuple[tuple[str, str], ...]) -> bytes:
        document = chat(stream=is_stream) if body is None else body
        own = more.get("fields", (KEY,))
        return request(document, **{**more, "fields": (*own, *fields)})

    return make


OWN: dict[str, tuple[int, str, Make]] = {
    "bad json": (400, "bad_request", asking('{"model": "m", gk-1')),
    "json that is no object": (400, "bad_request", asking("[]")),
    "no model": (400, "bad_request", asking({"messages": []})),
    "model that is no text": (400, "bad_request", asking({"model": 7})),
    "empty body": (400, "bad_request", asking("")),
    "unknown model": (404, "model_not_found", asking(chat("absent"))),
    "no key": (401, "invalid_api_key", asking(fields=())),
    "wrong key": (401, "invalid_api_key", asking(fields=(("Authorization", "Bearer gk-2"),))),
    "expired key": (401, "invalid_api_key", asking(fields=(("Authorization", "Bearer gk-old"),))),
    "too large": (413, "payload_too_large", asking(chat(prompt="x" * 20_000))),
    "too large in chunks": (413, "payload_too_large", asking(chat(prompt="x" * 20_000), chunks=1000)),
    "header too large": (431, "headers_too_large", asking(fields=(KEY, ("X-Big", "y" * 5000)))),
    "unknown path": (404, "not_found", asking(path="/metrics")),
    "wrong method": (405, "method_not_allowed", asking(method="PUT")),
    "wrong method on models": (405, "method_not_allowed", asking(path="/v1/models")),
    "not json": (415, "unsupported_media_type", asking(fields=(KEY, ("Content-Type", "text/plain")))),
    "compressed": (415, "unsupported_media_type", asking(fields=(KEY, ("Content-Encoding", "gzip")))),
    "expectation": (417, "expectation_failed", asking(fields=(KEY, ("Expect", "wonders")))),
    "bad budget": (400, "bad_request", asking(fields=(KEY, ("x-gslb-latency-budget-ms", "soon")))),
    "bad pin": (400, "bad_request", asking(fields=(KEY, ("x-gslb-region", "moon")))),
    "coding": (501, "not_implemented", asking(b"", fields=(KEY, ("Transfer-Encoding", "gzip")), method="GET")),
}


def check(found: Answer, status: int, code: str, one: RawUpstream) -> None:
    """The status, the shape, and no key, address or trace in it."""
    assert found.status == status, found
    error = found.error
    assert error["code"] == code
    assert error["type"]
    text = bytes(found.body) + str(found.fields).encode()
    for secret in (b"gk-1", b"gk-old", b"up-eu-secret", str(one.port).encode(), b"127.0.0.1", b"Traceback"):
        assert secret not in text, secret


@pytest.mark.parametrize("name", OWN)
async def test_fc34_errors_of_gslb_itself(name: str, edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-34: gslb's own errors have one shape and tell nothing of the inside."""
    status, code, make = OWN[name]
    one = await upstream()
    running = await edge({"eu": [one]}, KEYS, tenants=TENANTS, limits=LIMITS)
    for is_stream, fields in ((False, ()), (True, (("Accept", "text/event-stream"),))):
        found = await running.ask(make(is_stream, fields))
        check(found, status, code, one)
        if status == 405:
            assert found.one("allow")
        if status == 401:
            assert found.one("www-authenticate") == "Bearer"
    assert one.requests == []
    for record in running.records():
        assert (record["status"], record["outcome"], record["attempts"]) == (status, "refused", 0)


async def refused(one: RawUpstream, _: RunningEdge) -> None:
    one.stop()


async def silent(one: RawUpstream, _: RunningEdge) -> None:
    one.default = ["hang"]


async def no_http(one: RawUpstream, _: RunningEdge) -> None:
    one.default = [b"SSH-2.0-OpenSSH_9.2\r\n"]


async def resets(one: RawUpstream, _: RunningEdge) -> None:
    one.default = ["rst"]


async def key_refused(one: RawUpstream, _: RunningEdge) -> None:
    one.default = [answer(401, b'{"error":"bad key up-eu-secret"}')]


async def stopping(_: RawUpstream, running: RunningEdge) -> None:
    running.edge._door.is_stopping = True


async def cordoned(_: RawUpstream, running: RunningEdge) -> None:
    from gslb.types import ForcedState

    for view in running.edge.fleet.snapshot.endpoints:
        running.edge.force(view.endpoint.key, ForcedState.CORDONED)


Wreck = Callable[[RawUpstream, RunningEdge], Awaitable[None]]
UPSTREAM: dict[str, tuple[int, str, Wreck]] = {
    "nobody listens": (503, "no_healthy_region", refused),
    "closed by the operator": (503, "no_healthy_region", cordoned),
    "no answer in time": (504, "upstream_timeout", silent),
    "no http": (502, "upstream_error", no_http),
    "reset": (502, "upstream_error", resets),
    "key refused": (502, "upstream_auth", key_refused),
    "shutting down": (503, "shutting_down", stopping),
}


@pytest.mark.parametrize("name", UPSTREAM)
async def test_fc34_errors_about_upstreams(name: str, edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-34: gslb's own errors have one shape and tell nothing of the inside."""
    status, code, wreck = UPSTREAM[name]
    one = await upstream()
    running = await edge({"eu": [{"url": one.url, "api_key_env": "EU"}]}, KEYS, tenants=TENANTS, timeouts=TIMEOUTS)
    await wreck(one, running)
    for make, fields in ((False, ()), (True, (("Accept", "text/event-stream"),))):
        found = await running.ask(asking()(make, fields))
        check(found, status, code, one)
        if status == 503:
            assert int(found.one("retry-after") or 1) >= 1
    running.edge._door.is_stopping = False


async def test_fc34_saturated_and_dead_have_different_codes(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-34: gslb's own errors have one shape and tell nothing of the inside."""
    one = await upstream(["hang"])
    running = await edge({"eu": [{"url": one.url, "capacity": 1}]}, routing={"hold": {"max_wait": "50ms"}})
    client = await running.connect()
    client.send(request(chat()))
    await until(lambda: one.requests)
    found = await running.ask(request(chat()))
    assert (found.status, found.error["code"]) == (503, "saturated")
    assert int(found.one("retry-after") or 0) >= 1


DIALECTS = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/tokenize",
]


@pytest.mark.parametrize("path", DIALECTS)
async def test_fc34_errors_are_in_the_paths_dialect(path: str, edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-34: gslb's own errors have one shape and tell nothing of the inside."""
    running = await edge({"eu": [await upstream()]}, limits=LIMITS)
    raws = {
        400: request("{", path=path),
        404: request(chat("absent"), path=path),
        413: request(chat(prompt="x" * 20_000), path=path),
        431: request(chat(), path=path, fields=(("X-Big", "y" * 5000),)),
    }
    for status, raw in raws.items():
        found = await running.ask(raw)
        assert found.status == status
        assert found.json.get("type") == ("error" if path == "/v1/messages" else None)
        assert found.json["error"]["message"]
    assert {record["path"] for record in running.records()} == {path}


async def test_fc34_upstream_made_errors_pass_unchanged(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-34: gslb's own errors have one shape and tell nothing of the inside."""
    body = b'{"error":{"message":"This model\'s maximum context length","type":"BadRequestError","code":400}}'
    one = await upstream(
        [answer(400, body)],
        [answer(500, b'{"detail":"x"}')],
        [answer(418, b"<html>", ("Content-Type", "text/html"))],
    )
    running = await edge({"eu": [one]})
    assert bytes((await running.ask(request(chat()))).body) == body
    found = await running.ask(request(chat(stream=True)))
    assert (found.status, bytes(found.body)) == (500, b'{"detail":"x"}')
    found = await running.ask(request(chat()))
    assert (found.status, found.one("content-type"), bytes(found.body)) == (418, "text/html", b"<html>")
    assert running.failures(one) == 1, "the 500 counts, the user's mistakes do not"
