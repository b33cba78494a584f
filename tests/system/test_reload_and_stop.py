"""New configurations under traffic, liveness and readiness, and the end of an edge: FC-30, FC-39."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import yaml

from tests.support.edge import ADMIN_TOKEN, RunningEdge, config_of
from tests.support.raw_client import RawClient, chat, request, until
from tests.support.raw_upstream import DONE, GOOD, LAST, SSE_HEAD, RawUpstream, answer, chunk, event, stream
from tests.system.conftest import MakeEdge, MakeUpstream

ASK = request(chat())
STREAM = request(chat(stream=True))


def bad_configs(good: dict[str, Any]) -> dict[str, Any]:
    """What must be refused as a whole while `good` is in force."""
    url = good["regions"]["eu"]["endpoints"][0]["url"]
    return {
        "syntax": "regions: [",
        "empty": "",
        "no regions": {**good, "regions": {}},
        "unknown key": {**good, "max_retires": 3},
        "unknown location": {**good, "regions": {"eu": {"location": "atlantis", "endpoints": [{"url": url}]}}},
        "unknown region": {**good, "routing": {"order": ["mars"]}},
        "endpoint twice": {**good, "regions": {"eu": {"location": "Frankfurt", "endpoints": [{"url": url}] * 2}}},
        "missing database": {**good, "geo": {"database": "absent.mmdb"}},
        "missing key": {**good, "tenants": {"acme": {"key_env": "NOT_SET"}}},
        "changed listen port": {**good, "listen": "127.0.0.1:1"},
        "bad tls file": {
            **good,
            "regions": {
                "eu": {
                    "location": "Frankfurt",
                    "endpoints": [{"url": "https://127.0.0.1:1", "tls_ca_file": "no.pem"}],
                }
            },
        },
    }


async def test_fc30_a_bad_file_changes_nothing_while_serving(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-30: a reload is all or nothing."""
    gate = asyncio.Event()
    one = await upstream(*[[SSE_HEAD + chunk(event("A")), gate, chunk(DONE) + LAST]] * 5)
    running = await edge({"eu": [one]})
    good = config_of({"eu": [one]})
    clients = [await running.connect() for _ in range(5)]
    streams = [client.send(STREAM) for client in clients]
    for found in streams:
        await until(lambda: found.body)  # noqa: B023
    before = await running.admin("/api/v1/config")
    asking = await running.connect()
    for count, (name, config) in enumerate(bad_configs(good).items(), 1):
        problems = running.reload(config)
        assert problems, name
        assert running.edge.counters.config_generation == 1, name
        assert running.edge.counters.config_reload_failures == count
        assert (await asking.ask(ASK)).status == 200, name
        assert (await running.admin("/api/v1/config")).body == before.body, "admin shows what is in force"
    gate.set()
    for client, found in zip(clients, streams, strict=True):
        assert (await client.whole(found)).body == event("A") + DONE


YAML_TRAPS = {
    "residency: {rules: [{countries: [US, NO], jurisdictions: [EU]}]}": ("countries[1]", "boolean"),
    "health: {fall: 0100}": ("health.fall", "octal"),
    "health: {interval: 12:30:00}": ("health.interval", "base 60"),
    "edge: {name: 0123}": ("edge.name", "quote it"),
    "edge: {name: a, name: b}": ("edge.name", "twice"),
    "routing: {failover: {max_retires: 3}}": ("max_retires", "max_attempts"),
}


async def test_fc28_traps_of_yaml_are_refused_by_a_reload_with_their_place(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-28: never silently something else; the running configuration stays, a quoted text is a text."""
    one = await upstream()
    running = await edge({"eu": [one]})
    good = yaml.safe_dump(config_of({"eu": [one]}))
    for text, words in YAML_TRAPS.items():
        rest = yaml.safe_dump({k: v for k, v in yaml.safe_load(good).items() if k != text.partition(":")[0]})
        problems = running.reload(f"{rest}{text}\n")
        assert len(problems) == 1, problems
        assert all(word in problems[0] for word in (*words, f"gslb.yaml:{rest.count(chr(10)) + 1}:")), problems
        assert running.edge.counters.config_generation == 1
        assert (await running.ask(ASK)).status == 200
    assert running.reload(config_of({"eu": [one]}, edge={"name": "0123"})) == [], "dumped with quotes"
    assert running.edge.settings().config.edge.name == "0123"


async def test_fc30_a_good_file_swaps_and_streams_on_what_is_gone_finish(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-30: a reload is all or nothing."""
    gate = asyncio.Event()
    eu = await upstream(*[[SSE_HEAD + chunk(event("A")), gate, chunk(DONE) + LAST]] * 5)
    us = await upstream()
    running = await edge({"eu": [eu], "us": [us]})
    clients = [await running.connect() for _ in range(5)]
    streams = [client.send(STREAM) for client in clients]
    for found in streams:
        await until(lambda: found.body)  # noqa: B023
    assert running.reload(config_of({"us": [us]})) == []
    assert running.edge.counters.config_generation == 2
    asking = await running.connect()
    for _ in range(10):
        assert (await asking.ask(ASK)).one("x-gslb-region") == "us"
    assert len(eu.requests) == 5
    assert running.in_flight == 5
    gate.set()
    for client, found in zip(clients, streams, strict=True):
        assert (await client.whole(found)).body == event("A") + DONE
    assert running.in_flight == 0
    await until(lambda: all(link.is_closed or link.ended for link in eu.asked), "connections to what is gone")
    assert {record["outcome"] for record in running.records()} == {"ok"}


async def test_a_reload_by_the_admin_api_needs_the_token(edge: MakeEdge, upstream: MakeUpstream) -> None:
    eu, us = await upstream(), await upstream()
    running = await edge({"eu": [eu]})
    running.write_config(config_of({"us": [us]}))
    assert (await running.admin("/api/v1/reload", method="POST")).status == 401
    assert (await running.admin("/api/v1/reload", method="POST", token="wrong")).status == 401
    assert running.edge.counters.config_generation == 1
    assert (await running.admin("/api/v1/reload", method="POST", token=ADMIN_TOKEN)).status == 200
    await until(lambda: running.serves(us, "m"))
    assert (await running.ask(ASK)).one("x-gslb-region") == "us"
    running.note_own_loads()


async def test_fc30_one_request_sees_one_configuration(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-30: a reload is all or nothing."""
    # The first attempt fails after a reload: the next goes to what the old and the new configuration share.
    gate = asyncio.Event()
    eu, us, ap = await upstream([gate, "rst"]), await upstream(), await upstream()
    running = await edge({"eu": [eu], "ap": [ap]})
    client = await running.connect()
    found = client.send(ASK)
    await until(lambda: eu.requests)
    assert running.reload(config_of({"us": [us], "ap": [ap]})) == []
    await until(lambda: running.serves(us, "m"), "the new endpoint's models")
    gate.set()
    await client.whole(found)
    assert (found.status, found.one("x-gslb-region")) == (200, "ap")
    assert us.requests == []
    assert (await client.ask(ASK)).one("x-gslb-region") == "us"


async def test_fc30_nothing_is_shared_between_the_configurations(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-30: a reload is all or nothing."""
    gate = asyncio.Event()
    eu, us = await upstream([gate, "rst"]), await upstream()
    running = await edge({"eu": [eu]})
    client = await running.connect()
    found = client.send(ASK)
    await until(lambda: eu.requests)
    assert running.reload(config_of({"us": [us]})) == []
    await until(lambda: running.edge.fleet.known_models, "the new endpoint's models")
    gate.set()
    await client.whole(found)
    assert found.status in (502, 503)
    assert found.error["message"]
    assert us.requests == []
    assert (await client.ask(ASK)).status == 200


async def test_a_new_key_is_used_at_once_and_an_old_one_never_again(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    one = await upstream()
    keyed: list[Any] = [{"url": one.url, "api_key_env": "KEY"}]
    running = await edge({"eu": keyed}, {"KEY": "first"})
    client = await running.connect()
    await client.ask(ASK)
    running.environ["KEY"] = "second"
    assert running.reload(config_of({"eu": keyed})) == []
    await client.ask(ASK)
    assert [got.one("authorization") for got in one.requests] == ["Bearer first", "Bearer second"]


async def test_tenants_change_for_the_next_request_of_a_connection(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream()
    tenants = {"acme": {"key_env": "ACME"}}
    running = await edge({"eu": [one]}, {"ACME": "gk-1"}, tenants=tenants)
    client = await running.connect()
    keyed = request(chat(), fields=(("Authorization", "Bearer gk-1"),))
    for _ in range(3):
        assert (await client.ask(keyed)).status == 200
    running.environ["ACME"] = "gk-2"
    assert running.reload(config_of({"eu": [one]}, tenants=tenants)) == []
    assert (await client.ask(keyed)).status == 401
    assert (await client.ask(keyed.replace(b"gk-1", b"gk-2"))).status == 200


# --- liveness and readiness ---------------------------------------------------------------------------


async def test_fc39_liveness_and_readiness_do_not_depend_on_upstreams(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-39: the end of an edge."""
    one = await upstream()
    one.health_status = 503
    running = await edge({"eu": [one]}, health={"fall": 1})
    assert (await running.admin("/healthz")).status == 200
    ready = await running.admin("/readyz")
    assert ready.status == 200
    assert ready.json["ready"] is True
    assert list(ready.json["upstreams"].values()) == ["ejected"]
    running.edge._door.is_stopping = True
    ready = await running.admin("/readyz")
    assert (ready.status, ready.json["ready"]) == (503, False)
    assert (await running.admin("/healthz")).status == 200
    running.edge._door.is_stopping = False


# --- the end ------------------------------------------------------------------------------------------


async def stopped(running: RunningEdge, grace_s: float) -> asyncio.Task[None]:
    """Begin to stop, as SIGTERM does; returns when it is under way."""
    stopping = asyncio.create_task(running.edge.stop(grace_s))
    await until(lambda: running.edge._door.is_stopping)
    return stopping


async def is_refused(port: int) -> bool:
    try:
        client = await RawClient.connect(port)
    except OSError:
        return True
    client.close()
    return False


async def streaming(running: RunningEdge, one: RawUpstream, *rest: Any) -> tuple[RawClient, Any]:
    """A client whose stream has shown its first event; `rest` is what the upstream does then."""
    one.scripts.append([SSE_HEAD + chunk(event("A")), *rest])
    client = await running.connect()
    found = client.send(STREAM)
    await until(lambda: found.body)
    return client, found


async def test_fc39_what_runs_finishes_and_what_is_idle_is_closed(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-39: the end of an edge."""
    gate = asyncio.Event()
    one = await upstream()
    running = await edge({"eu": [one]})
    client, found = await streaming(running, one, gate, chunk(DONE) + LAST)
    one.scripts.append([gate, GOOD])
    waiting = await running.connect()
    whole = waiting.send(ASK)
    idle, half = await running.connect(), await running.connect()
    assert (await idle.ask(request(method="GET", path="/v1/models"))).status == 200
    half.write(ASK[:30])
    await until(lambda: len(one.requests) == 2)
    port = running.port
    stopping = await stopped(running, 8)
    assert await idle.end() == "fin"
    assert await is_refused(port)
    late = await half.ask(ASK[30:])
    assert (late.status, late.error["code"], late.one("retry-after")) == (503, "shutting_down", "1")
    assert late.one("connection") == "close"
    gate.set()
    await client.whole(found)
    assert found.body == event("A") + DONE
    await waiting.whole(whole)
    assert (whole.status, whole.one("connection")) == (200, "close")
    for each in (client, waiting):
        assert await each.end() == "fin"
    await asyncio.wait_for(stopping, 8)


@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_fc39_an_endless_stream_is_cut_and_does_not_look_complete(
    version: str, edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-39: the end of an edge."""
    one = await upstream([SSE_HEAD + chunk(event("A")), "hang"])
    running = await edge({"eu": [one]})
    client = await running.connect()
    found = client.send(request(chat(stream=True), version=version))
    await until(lambda: found.body)
    stopping = await stopped(running, 0.2)
    await asyncio.wait_for(stopping, 8)
    assert await client.end() in ("fin", "rst")
    assert not found.is_complete
    assert b"[DONE]" not in found.body
    assert found.body.count(b'"error"') == 1
    await until(lambda: one.asked[0].ended or one.asked[0].is_closed)
    record = await running.record()
    assert (record["outcome"], record["status"]) == ("upstream_truncated", 200)
    assert running.failures(one) == 0, "nobody's fault"


async def test_fc39_an_unanswered_request_is_told_when_the_grace_is_over(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-39: the end of an edge."""
    running = await edge({"eu": [await upstream(["hang"])]})
    client = await running.connect()
    found = client.send(ASK)
    await until(lambda: running.in_flight)
    stopping = await stopped(running, 0.1)
    await client.whole(found)
    assert (found.status, found.error["code"], found.one("connection")) == (503, "shutting_down", "close")
    await asyncio.wait_for(stopping, 8)


async def test_fc39_records_are_written_before_the_edge_is_gone(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-39: the end of an edge."""
    one = await upstream([answer(200, b"{}")], stream(event("A"), DONE), ["hang"])
    running = await edge({"eu": [one]})
    client = await running.connect()
    await client.ask(ASK)
    await client.ask(STREAM)
    client.send(ASK)
    await until(lambda: len(one.requests) == 3)
    await running.edge.stop(0)
    assert [record["status"] for record in running.records()] == [200, 200, 503]


async def test_fc39_an_answer_that_has_ended_goes_out_whole_before_the_edge_does(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-39: the engine is done, the exchange is recorded, but a slow client has not taken it all yet."""
    body = b"x" * 60_000
    running = await edge({"eu": [await upstream([answer(200, body)])]})
    client, _ = await running.connect_narrow()
    found = client.send(ASK)
    await until(lambda: running.edge.counters.requests and not running.edge.counters.open_exchanges)
    stopping = asyncio.create_task(running.edge._data.stop(20.0))
    await asyncio.sleep(0.1)
    assert not stopping.done()
    assert client.transport is not None
    client.transport.resume_reading()
    await until(lambda: found.is_complete, "the whole answer", 20.0)
    assert bytes(found.body) == body
    await stopping


async def test_fc39_a_hand_over_waits_for_a_request_on_its_way(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-39: half of a second request had come when another process took over."""
    running = await edge({"eu": [await upstream()]})
    client = await running.connect()
    assert (await client.ask(ASK)).status == 200
    client.write(ASK[:40])
    await until(lambda: any(each.is_receiving for each in running.edge._listener.connections))
    stopping = asyncio.create_task(running.edge._data.stop(20.0, hands_over=True))
    await asyncio.sleep(0.5)
    assert not stopping.done()
    found = client.send(ASK[40:])
    await until(lambda: found.is_complete)
    assert found.status == 200
    await stopping
