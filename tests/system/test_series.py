"""Nobody can make up series, lines or ids: FC-38."""

from __future__ import annotations

import asyncio
import json

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.edge import RunningEdge
from tests.support.raw_client import chat, request
from tests.support.raw_upstream import GOOD, answer
from tests.system.conftest import MakeEdge, MakeUpstream

ASK = request(chat())


async def series_of(running: RunningEdge) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    """Every series that is exposed, parsed as Prometheus would."""
    text = (await running.admin("/metrics")).body.decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_fc38_a_flood_of_names_makes_no_series(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-38: models, paths and methods that clients make up are `other` or no label; known models keep theirs."""
    one = await upstream()
    running = await edge({"eu": [one]})
    client = await running.connect()
    # One of each kind first: what is bounded may appear once.
    first = [ASK, request(chat("unknown")), request(path="/unknown"), request(method="PUT"), request("{")]
    for raw in first:
        await client.ask(raw)
    before = await series_of(running)

    async def flood(number: int) -> None:
        one_of_many = await running.connect()
        for count in range(50):
            assert (await one_of_many.ask(request(chat(f"model-{number}-{count}")))).status == 404
            assert (await one_of_many.ask(request(path=f"/path/{number}/{count}"))).status == 404

    await asyncio.gather(*map(flood, range(20)))
    for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PURGE", "MKCOL", "COPY", "LOCK"):
        await client.ask(request(method=method))
    assert (await running.ask(request(chat('a"} 1\nfake_metric 2')))).status == 404
    assert (await running.ask(request(chat("m" * 1_000_000)))).status == 400
    assert await series_of(running) == before
    assert (await client.ask(ASK)).status == 200
    labels = {dict(labels)["model"]: name for name, labels in before if name == "gslb_requests_total"}
    assert set(labels) == {"m", "other", "none"}
    assert running.edge.counters.requests["eu", "m", "ok"] == 2, "its own label after the flood"


NAMES = ['a"b', "back\\slash", "line\nfeed", "é\u2028\u0085"]


@pytest.mark.parametrize("name", NAMES)
async def test_fc38_odd_names_of_the_fleet_are_escaped(name: str, edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-38: a model that is called oddly keeps its name in the metrics, and each record is one line of JSON."""
    running = await edge({"eu": [await upstream(models=(name,))]})
    assert (await running.ask(request(chat(name)))).status == 200
    assert ("gslb_requests_total", (("model", name), ("outcome", "ok"), ("region", "eu"))) in await series_of(
        running
    )
    (line,) = running.log_text().removesuffix("\n").split("\n")
    assert json.loads(line)["model"] == name


IDS = {
    "good": "req-42",
    "5 KB": "x" * 5120,
    "tab": "a\tb",
    "not ASCII": "caf\xe9",
    "128": "a" * 128,
    "129": "a" * 129,
}


@pytest.mark.parametrize("name", IDS)
async def test_fc38_a_good_request_id_is_kept_and_others_are_replaced(
    name: str, edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-38: exactly one X-Request-Id in every answer, gslb's own errors included, and upstream."""
    one = await upstream([GOOD], [answer(400, b"{}", ("X-Request-Id", "engine-own"))])
    running = await edge({"eu": [one]})
    sent, is_good = IDS[name], name in ("good", "128")
    fields = (("X-Request-Id", sent),)
    raws = [request(chat(), fields=fields), request(chat(), fields=fields), request("{", fields=fields)]
    for raw, status in zip(raws, (200, 400, 400), strict=True):
        found = await running.ask(raw)
        assert found.status == status
        given = found.one("x-request-id")
        assert given
        assert (given == sent) is is_good
    assert [got.one("x-request-id") == sent for got in one.requests] == [is_good] * 2
    two_lines = await running.ask(request(chat(), fields=(("X-Request-Id", "a"), ("X-Request-Id", "a"))))
    assert two_lines.one("x-request-id") != "a"
