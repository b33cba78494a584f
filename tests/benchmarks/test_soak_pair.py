"""The soak's clients against its upstreams, no proxy between: what one breaks the other sees, and no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.soak_clients import Crowd
from benchmarks.soak_faults import CUTTING
from benchmarks.soak_upstream import Crew

_DEADLINE_S = 60.0


@asynccontextmanager
async def _crew(break_share: float) -> AsyncIterator[Crew]:
    crew = Crew(1, 7, break_share)
    (endpoint,) = crew.endpoints
    await endpoint.listen()
    try:
        yield crew
    finally:
        endpoint.close()


async def _soaked(crew: Crew, requests: int, leave_share: float = 0.0) -> Crowd:
    crowd = Crowd(
        {"port": crew.endpoints[0].port, "connections": 16, "key": "k", "seed": 3, "pause_s": 0.0,
         "leave_share": leave_share}
    )  # fmt: skip
    async with asyncio.timeout(_DEADLINE_S):
        while crowd.counts["requests"] < requests:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await crowd.stop()
    return crowd


async def test_well_upstreams_make_no_incident() -> None:
    async with _crew(0.0) as crew:
        crowd = await _soaked(crew, 60)
        assert crowd.look()["incidents"] == []
        assert crowd.counts["json"] + crowd.counts["streams"] == crowd.counts["requests"] >= 60
        assert min(crowd.counts["json"], crowd.counts["streams"]) > 0
        assert (await crew.obey({"do": "tell"}))["under_way"] == 0


async def test_broken_answers_are_seen_as_cut_or_dropped_and_never_as_wrong() -> None:
    async with _crew(1.0) as crew:
        incidents = (await _soaked(crew, 120)).look()["incidents"]
        faults = await crew.obey({"do": "faults", "seeds": [incident["seed"] for incident in incidents]})
        assert {incident["kind"] for incident in incidents} == {"cut", "dropped"}
        for incident in incidents:
            met = set(faults[str(incident["seed"])].values())
            if incident["kind"] == "cut":
                assert met <= CUTTING | {"before_content"}
                assert met
            else:  # or its connection was closed behind the answer before
                assert not met & CUTTING


async def test_leaving_clients_are_counted_apart_and_leave_nothing_behind() -> None:
    async with _crew(0.0) as crew:
        crowd = await _soaked(crew, 60, leave_share=1.0)
        assert crowd.look()["incidents"] == []
        assert crowd.counts["left"] > 0
        async with asyncio.timeout(_DEADLINE_S):
            while (await crew.obey({"do": "tell"}))["under_way"]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_a_refusing_endpoint_keeps_its_port() -> None:
    async with _crew(0.0) as crew:
        (endpoint,) = crew.endpoints
        port = endpoint.port
        endpoint.refuse()
        crowd = await _soaked(crew, 0)
        assert {incident["kind"] for incident in crowd.look()["incidents"]} <= {"dropped"}
        try:
            await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            pass
        else:
            raise AssertionError("it was to refuse")
        await endpoint.listen()
        assert endpoint.port == port
        assert (await _soaked(crew, 20)).look()["incidents"] == []
