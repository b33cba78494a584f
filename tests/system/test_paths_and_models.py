"""What passes the door and what does not, the model list, and aliases: FC-40 and DESIGN section 4."""

from __future__ import annotations

from typing import Any

import pytest

from gslb.mock.faults import Fault
from gslb.wire.paths import ROUTES
from tests.support.raw_client import chat, request
from tests.support.raw_upstream import GOOD
from tests.system.conftest import MakeEdge, MakeMock, MakeUpstream


def get(path: str) -> bytes:
    return request(method="GET", path=path)


@pytest.mark.parametrize("path", [path.decode() for path, route in ROUTES.items() if route.kind == "json"])
async def test_paths_that_pass(path: str, edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream()
    running = await edge({"eu": [one]})
    assert (await running.ask(request(chat(), path=path + "?a=%20b"))).status == 200
    assert one.requests[0].line == f"POST {path}?a=%20b HTTP/1.1".encode()


async def test_a_form_passes_as_it_is(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream()
    running = await edge({"eu": [one]})
    body = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n' + bytes(range(256))
        + b'\r\n--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--b--\r\n'
    )  # fmt: skip
    fields = (("Content-Type", "multipart/form-data; boundary=b"),)
    found = await running.ask(request(body, path="/v1/audio/transcriptions", fields=fields))
    assert found.status == 200
    assert one.requests[0].body == body
    assert one.requests[0].one("content-type") == "multipart/form-data; boundary=b"


CLOSED = [
    "/", "/metrics", "/health", "/pause", "/sleep", "/wake_up", "/v1", "/v1/", "/v1/chat", "/v1/chat/completions/",
    "//v1/chat/completions", "/v1//chat/completions", "/v1/chat%2fcompletions", "/V1/chat/completions",
    "/v1/chat/completions;x", "/v1/load_lora_adapter", "/v1/modelsx", "/v1/audio/speech/../../../metrics",
    "/./v1/completions", "/v1/completions%00", "/api/v1/status", "/server_info", "/collective_rpc",
]  # fmt: skip


async def test_all_other_paths_are_404_and_reach_nobody(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream()
    running = await edge({"eu": [one]})
    client = await running.connect()
    for path in CLOSED:
        for method in ("POST", "GET"):
            found = await client.ask(request(chat(), path=path, method=method))
            assert (found.status, found.error["code"]) == (404, "not_found"), path
    assert one.requests == []


@pytest.mark.parametrize("target", ["http://a/v1/models", "*", "v1/models", "/v1/models#x", "/v1/mod\xe9ls"])
async def test_targets_in_other_forms_are_400(target: str, edge: MakeEdge, upstream: MakeUpstream) -> None:
    running = await edge({"eu": [await upstream()]})
    found = await running.ask(get(target))
    assert (found.status, found.error["code"]) == (400, "bad_request")


async def test_methods(edge: MakeEdge, upstream: MakeUpstream) -> None:
    running = await edge({"eu": [await upstream()]})
    for method in ("GET", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "HEAD"):
        found = await running.ask(request(method=method), is_head=method == "HEAD")
        assert (found.status, found.one("allow")) == (405, "POST")
    found = await running.ask(request(chat(), path="/v1/models"))
    assert (found.status, found.one("allow")) == (405, "GET, HEAD")


# --- models -------------------------------------------------------------------------------------------


async def test_fc40_the_merged_list(edge: MakeEdge, mock: MakeMock) -> None:
    """FC-40: the model list is served from memory."""
    eu = await mock(models=["org/m1"], loras={"ad-1": "org/m1"}, max_model_len=8192)
    us = await mock(models=["org/m1", "m2"], max_model_len=4096)
    ap = await mock(models=["m9"])
    ap.kill()
    running = await edge({"eu": [eu], "us": [us], "ap": [ap]})
    client = await running.connect()
    lists = [(await client.ask(get(path))).json for path in ("/v1/models", "/v1/models/", "/v1/models")]
    assert lists[0] == lists[1] == lists[2], "stable"
    assert lists[0]["object"] == "list"
    models = {model["id"]: model for model in lists[0]["data"]}
    assert list(models) == ["ad-1", "m2", "org/m1"]
    for model in models.values():
        assert model["object"] == "model"
        assert isinstance(model["created"], int)
        assert model["owned_by"]
    assert models["org/m1"]["max_model_len"] == 4096
    assert models["ad-1"]["parent"] == "org/m1"
    for path in ("/v1/models/org/m1", "/v1/models/org%2Fm1"):
        assert (await client.ask(get(path))).json == models["org/m1"]
    found = await client.ask(get("/v1/models/none"))
    assert (found.status, found.error["code"]) == (404, "model_not_found")


async def test_fc40_a_model_of_one_region_goes_there_however_far(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-40: the model list is served from memory."""
    eu, ap = await upstream(models=["m1"]), await upstream(models=["m1", "m2"])
    running = await edge({"eu": [eu], "ap": [ap]})
    for _ in range(3):
        assert (await running.ask(request(chat("m2")))).one("x-gslb-region") == "ap"
    assert eu.requests == []


async def test_fc40_the_list_does_not_depend_on_the_worst_endpoint(edge: MakeEdge, mock: MakeMock) -> None:
    """FC-40: the model list is served from memory."""
    eu, us = await mock(models=["m1"]), await mock(models=["m2"])
    running = await edge({"eu": [eu], "us": [us]}, health={"interval": "100ms", "fall": 2, "timeout": "100ms"})

    async def ids() -> list[Any]:
        found = await running.ask(get("/v1/models"))
        assert found.status == 200
        return [model["id"] for model in found.json["data"]]

    assert await ids() == ["m1", "m2"]
    us.set_faults(Fault(health_hang=True))
    await us.wait_until(lambda: running.state(us) == "ejected")
    assert await ids() == ["m1"]
    eu.kill()
    us.kill()
    await us.wait_until(lambda: running.state(eu) == "ejected")
    assert await ids() == []


async def test_fc40_the_list_is_served_from_memory(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-40: the model list is served from memory."""
    one = await upstream(models=["m1"])
    running = await edge({"eu": [one]})
    seen = sum(link.requests for link in one.links)
    one.page = lambda _path: b""  # type: ignore[method-assign] # it hangs
    client = await running.connect()
    for path in ["/v1/models", "/v1/models/m1"] * 10:
        assert (await client.ask(get(path))).status == 200
    assert sum(link.requests for link in one.links) == seen, "nobody was asked"


# --- aliases ------------------------------------------------------------------------------------------

ALIASES = {"gpt": {"target": "m"}, "gpt-old": {"target": "gpt"}}


async def test_an_alias_rewrites_that_one_value_only(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream()
    running = await edge({"eu": [one]}, models=ALIASES)
    body = (
        b'{ "messages" : [{"role":"user","content":"\\"model\\": \\"gpt\\" \\u00e9 \xc3\xa9"}],\n'
        b'  "metadata": {"model": "gpt"}, "model"\t:  "gpt-old" , "temperature":1.0,"n":1e0 }'
    )
    assert (await running.ask(request(body))).status == 200
    assert one.requests[0].body == body.replace(b'"gpt-old"', b'"m"')
    record = await running.record()
    assert record["model"] == "m"
    listed = await running.ask(get("/v1/models"))
    assert [model["id"] for model in listed.json["data"]] == ["gpt", "gpt-old", "m"]


async def test_a_body_without_an_alias_is_identical(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream(default=[GOOD])
    running = await edge({"eu": [one]}, models=ALIASES)
    body = b' {"a" : 1.0,\r\n"model":"m" , "a":2, "b":"\\ud83d\\ude00" }\n\n'
    for raw in (request(body), request(body, chunks=3)):
        assert (await running.ask(raw)).status == 200
    assert [got.body for got in one.requests] == [body, body]
