"""Active probes: what counts as well, what as ill and why; round trips."""

from __future__ import annotations

import asyncio
import logging
from random import Random

import pytest
from aiohttp import web

from gslb.counters import Counters
from gslb.geo.rtt_prior import rtt_prior_ms
from gslb.native import is_native
from gslb.observe.fetch import Fetcher, FetchFailed, Target
from gslb.observe.watch import Assignment, EndpointWatch, Instruments
from gslb.routing.health import HealthMarks, State
from gslb.routing.view import FleetView
from gslb.types import LoadSample
from tests.observe.conftest import MakeUpstream, Observe
from tests.observe.upstream import (
    FRANKFURT,
    SYDNEY,
    answers,
    endpoint,
    fleet_of,
    hangs,
    settings,
    until,
    view_of,
)

PATIENT = {"interval": "1h", "timeout": "5s"}
"""One probe, and time for its answer on a loaded machine."""


async def test_a_well_endpoint_is_admitted(make_upstream: MakeUpstream, observe: Observe) -> None:
    upstream = await make_upstream()
    one = endpoint("eu/1", upstream.url)
    fleet = fleet_of(one)
    observer = observe(fleet, settings(one, **PATIENT))
    assert await observer.first_round(10)
    view = view_of(fleet, "eu/1")
    assert view.state is State.ADMITTING
    assert view.models == frozenset({"m1"})
    assert fleet.model_cards() == [{"id": "m1", "max_model_len": 4096}]
    await until(lambda: view_of(fleet, "eu/1").load is not None)
    assert not observer.problems("eu/1")


@pytest.mark.parametrize(
    ("status", "words"),
    [(503, "503"), (500, "500"), (302, "redirect"), (401, "key"), (204, "204"), (404, "404")],
)
async def test_fc19_anything_but_200_is_ill_and_says_why(
    status: int, words: str, make_upstream: MakeUpstream, observe: Observe
) -> None:
    """FC-19: 503, 500, a redirect or 401 on the probe path are ill, and the reason is named."""
    upstream = await make_upstream()
    upstream.handlers["/health"] = answers(status, Location="/elsewhere")
    one = endpoint("eu/1", upstream.url)
    fleet = fleet_of(one)
    fleet.configure([one], HealthMarks(fall=1))
    observe(fleet, settings(one, **PATIENT))
    await until(lambda: view_of(fleet, "eu/1").state is State.EJECTED)
    assert words in view_of(fleet, "eu/1").reason
    assert "/elsewhere" not in upstream.hits


async def test_a_probe_without_an_answer_times_out(make_upstream: MakeUpstream, observe: Observe) -> None:
    upstream = await make_upstream()
    upstream.handlers["/health"] = hangs
    one = endpoint("eu/1", upstream.url)
    fleet = fleet_of(one)
    observe(fleet, settings(one, interval="50ms", timeout="30ms"))
    await until(lambda: view_of(fleet, "eu/1").state is State.EJECTED)
    assert "no answer within 0.03 s" in view_of(fleet, "eu/1").reason
    assert upstream.hits["/metrics"] >= 1, "the hanging probe holds up nothing else"


async def test_a_dead_port_is_a_connect_error(make_upstream: MakeUpstream, observe: Observe) -> None:
    upstream = await make_upstream()
    one = endpoint("eu/1", upstream.url)
    await upstream.stop()
    fleet = fleet_of(one)
    observer = observe(fleet, settings(one))
    assert await observer.first_round(10), "a failure is an answer too"
    await until(lambda: view_of(fleet, "eu/1").state is State.EJECTED)
    assert "no connection" in view_of(fleet, "eu/1").reason


@pytest.mark.parametrize(("reason", "due_s"), [("connect_error", [0.5, 0.5, 2.0]), ("timeout", [2.0, 2.0, 2.0])])
async def test_a_refused_probe_is_repeated_soon_until_it_has_ejected(reason: str, due_s: list[float]) -> None:
    """Nobody is there to be given time, as somebody slow is. A dead endpoint is not asked so often for ever."""

    one = endpoint("eu/1", "http://127.0.0.1:1")
    fleet = fleet_of(one)
    generation = settings(one, interval="2s", timeout="1s")
    assignment = Assignment(one, Target(one.url), generation.config.health, None)
    watch = EndpointWatch(assignment, Instruments(fleet, Counters(), lambda: 0.0, Random(1), Fetcher()))
    rhythm = watch._rhythms["probe"]
    found = []
    for _ in range(3):
        rhythm.due_in(2.0)
        watch._conclude_probe(FetchFailed(reason, "no connection"))
        found.append(rhythm._due_s)
    assert view_of(fleet, "eu/1").state is State.EJECTED
    assert found == due_s


async def test_not_http_is_a_protocol_error(observe: Observe, counters: Counters) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"SSH-2.0-something\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        one = endpoint("eu/1", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        fleet = fleet_of(one)
        observer = observe(fleet, settings(one))
        await until(lambda: view_of(fleet, "eu/1").state is State.EJECTED)
        await until(lambda: counters.scrape_errors["eu/1", "protocol_error"] > 0)
        await observer.stop()


async def test_it_comes_back_and_its_models_are_read_anew(make_upstream: MakeUpstream, observe: Observe) -> None:
    upstream = await make_upstream()
    upstream.handlers["/health"] = answers(503)
    one = endpoint("eu/1", upstream.url)
    fleet = fleet_of(one)
    observe(fleet, settings(one, models_interval="1h"))
    await until(lambda: view_of(fleet, "eu/1").state is State.EJECTED)
    await until(lambda: upstream.hits["/v1/models"] >= 1)
    upstream.models = {"data": [{"id": "m2"}]}
    upstream.handlers.clear()
    await until(lambda: view_of(fleet, "eu/1").models == frozenset({"m2"}))
    await until(lambda: view_of(fleet, "eu/1").state is State.ADMITTING)


async def test_lasting_trouble_is_logged_once(
    make_upstream: MakeUpstream, observe: Observe, caplog: pytest.LogCaptureFixture
) -> None:
    upstream = await make_upstream()
    upstream.handlers["/health"] = answers(503)
    one = endpoint("eu/1", upstream.url)
    with caplog.at_level(logging.INFO, "gslb.observe"):
        observe(fleet_of(one), settings(one))
        await until(lambda: upstream.hits["/health"] >= 6)
        upstream.handlers.clear()
        await until(lambda: any("well again" in record.message for record in caplog.records))
    assert sum("eu/1: probe:" in r.message and r.levelno == logging.WARNING for r in caplog.records) == 1


async def test_fc20_e_probe_now_never_makes_two(make_upstream: MakeUpstream, observe: Observe) -> None:
    """FC-20 e: busy is not dead."""
    upstream = await make_upstream()
    answer_now = asyncio.Event()

    async def slow(_request: web.Request) -> web.Response:
        await answer_now.wait()
        return web.Response()

    upstream.handlers["/health"] = slow
    one = endpoint("eu/1", upstream.url)
    fleet = fleet_of(one)
    observer = observe(fleet, settings(one, interval="1h", timeout="20s"))
    await until(lambda: upstream.open_probes == 1)
    for _ in range(5):
        observer.probe_now("eu/1")
    observer.probe_now("nobody")
    await until(lambda: upstream.hits["/metrics"] > 5)
    assert upstream.hits["/health"] == 1, "one is out: the extra one waits for it"
    answer_now.set()
    await until(lambda: upstream.hits["/health"] == 2)
    assert upstream.most_at_once == 1


async def test_first_round_gives_up_in_time(make_upstream: MakeUpstream, observe: Observe) -> None:
    upstream = await make_upstream()
    upstream.handlers["/v1/models"] = hangs
    one = endpoint("eu/1", upstream.url)
    observer = observe(fleet_of(one), settings(one))
    assert await observer.first_round(0.05) is False


class BrokenOnce(FleetView):
    """A fleet with a bug that shows once."""

    is_broken = True

    def probe_passed(self, key: str, now_s: float) -> None:
        if self.is_broken:
            self.is_broken = False
            raise RuntimeError("surprise")
        super().probe_passed(key, now_s)

    def load_sampled(self, key: str, sample: LoadSample) -> None:
        raise KeyError("always")


@pytest.mark.skipif(is_native(), reason="a compiled class is not inherited from by one that is not")
async def test_fc31_an_unexpected_error_costs_one_cycle(
    make_upstream: MakeUpstream, observe: Observe, counters: Counters, caplog: pytest.LogCaptureFixture
) -> None:
    """FC-31: one prober per endpoint, whatever was reloaded."""
    upstream = await make_upstream()
    one = endpoint("eu/1", upstream.url)
    plain = fleet_of(one)
    fleet = BrokenOnce(plain._marks)
    fleet.configure([one], plain._marks)
    observe(fleet, settings(one))
    await until(lambda: view_of(fleet, "eu/1").state is State.ADMITTING)
    await until(lambda: counters.probe_errors["eu/1"] >= 4)
    assert upstream.hits["/metrics"] >= 3, "the loop goes on"
    crashes = [record for record in caplog.records if record.exc_info]
    assert len(crashes) == 2, "a traceback for each kind, not for each cycle"


async def test_round_trips_only_on_kept_connections(make_upstream: MakeUpstream, observe: Observe) -> None:
    upstream = await make_upstream()

    async def closing(_request: web.Request) -> web.Response:
        response = web.Response()
        response.force_close()
        return response

    for path in ("/health", "/metrics", "/v1/models"):
        upstream.handlers[path] = closing
    one = endpoint("eu/1", upstream.url)
    observer = observe(fleet_of(one), settings(one))
    await until(lambda: upstream.hits["/health"] >= 4)
    assert observer.rtt_ms("eu/1") is None, "a fresh connection's handshake is no round trip"
    upstream.handlers.clear()
    await until(lambda: observer.rtt_ms("eu/1") is not None)
    assert observer.rtt_ms("nobody") is None


async def test_round_trips_blend_into_the_prior(make_upstream: MakeUpstream, observe: Observe) -> None:
    upstream = await make_upstream()
    one = endpoint("eu/1", upstream.url, FRANKFURT)
    fleet = fleet_of(one)
    observed = settings(one)
    observed.edge_place = FRANKFURT
    observer = observe(fleet, observed)
    await until(lambda: view_of(fleet, "eu/1").rtt_ms is not None)
    used, measured = view_of(fleet, "eu/1").rtt_ms, observer.rtt_ms("eu/1")
    prior = rtt_prior_ms(FRANKFURT, FRANKFURT)
    assert used is not None
    assert measured is not None
    assert min(prior, measured) - 2 <= used
    assert not observer.rtt_notes


async def test_faster_than_light_is_flagged_not_used(
    make_upstream: MakeUpstream, observe: Observe, caplog: pytest.LogCaptureFixture
) -> None:
    upstream = await make_upstream()
    one = endpoint("ap/1", upstream.url, SYDNEY)
    fleet = fleet_of(one)
    observed = settings(one)
    observed.edge_place = FRANKFURT
    observer = observe(fleet, observed)
    await until(lambda: "ap/1" in observer.rtt_notes)
    hits = upstream.hits["/health"]
    await until(lambda: upstream.hits["/health"] >= hits + 4)
    assert view_of(fleet, "ap/1").rtt_ms is None
    assert observer.rtt_ms("ap/1") is None
    assert sum("faster than light" in record.message for record in caplog.records) == 1
