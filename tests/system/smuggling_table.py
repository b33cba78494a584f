"""`python -m tests.system.smuggling_table`: each vector, its answers, what its upstream got; fails on a fault."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import uvloop

from tests.support.edge import config_of, running_edge
from tests.support.raw_upstream import RawUpstream
from tests.system.smuggling_bench import CONFIG, Came, try_vector
from tests.system.smuggling_vectors import SMUGGLED, VECTORS, Vector


def line_of(vector: Vector, came: Came) -> str:
    """One row: what was sent, the answers, what crossed, what was smuggled."""
    answers = " ".join(map(str, came.statuses)) + (", closed" if came.is_closed else "")
    crossed = "noise" if came.crossed is None else f"{len(came.crossed)} requests" if came.crossed else "nothing"
    second = "a request of its own" if came.smuggled else "never arrived"
    fault = came.fault(vector)
    note = f"FAULT: {fault}" if fault else vector.choice
    return f"{vector.kind:10} {vector.name[:48]:48} {answers:18} {crossed:11} {second:20} {note}".rstrip()


async def _main() -> int:
    upstream = RawUpstream()
    await upstream.start()
    faults = 0
    print(f"{'kind':10} {'vector':48} {'answers':18} {'upstream':11} {'the second request':20} note")
    with TemporaryDirectory() as directory:
        async with running_edge(config_of({"eu": [upstream]}, **CONFIG), Path(directory)) as edge:
            for vector in VECTORS:
                came = await try_vector(vector, [vector.raw + SMUGGLED], edge, upstream)
                faults += bool(came.fault(vector))
                print(line_of(vector, came))
    upstream.stop()
    print(f"{len(VECTORS)} vectors, {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(_main()))
