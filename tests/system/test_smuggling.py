"""FC-02 and FC-36 over real sockets: no vector makes an upstream see a request that the client's bytes are not."""

from __future__ import annotations

import pytest

from tests.support.raw_upstream import RawUpstream
from tests.system.conftest import MakeEdge, MakeUpstream
from tests.system.smuggling_bench import CONFIG, cuts_of, try_vector
from tests.system.smuggling_vectors import KINDS, VECTORS


async def _try_all(kind: str, edge: MakeEdge, one: RawUpstream, *, cuts: bool) -> list[str]:
    running = await edge({"eu": [one]}, **CONFIG)
    faults = []
    for vector in VECTORS:
        if vector.kind != kind:
            continue
        for way in cuts_of(vector)[1:] if cuts else cuts_of(vector)[:1]:
            came = await try_vector(vector, way, running, one)
            if fault := came.fault(vector):
                faults.append(f"{vector.name} (in {len(way)} pieces): {fault}")
    assert running.failures(one) == 0, "an upstream was blamed for a client's framing"
    return faults


@pytest.mark.parametrize("kind", KINDS)
async def test_fc02_fc36_no_vector_smuggles(kind: str, edge: MakeEdge, upstream: MakeUpstream) -> None:
    assert await _try_all(kind, edge, await upstream(), cuts=False) == []


@pytest.mark.parametrize("kind", KINDS)
async def test_fc02_fc36_no_vector_smuggles_when_it_comes_in_pieces(
    kind: str, edge: MakeEdge, upstream: MakeUpstream
) -> None:
    assert await _try_all(kind, edge, await upstream(), cuts=True) == []
