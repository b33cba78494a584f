"""What gslb costs while nobody asks: `python -m benchmarks.idle`.

Twelve mock vLLM servers (one process, pages as long as vLLM's) are probed and scraped at the default rhythm, and
`gslb serve` is watched in /proc for a while: CPU time a second, user and system, and how often it woke up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import uvloop

from benchmarks.edge import edge_config, edge_cores, helper, running_edge
from benchmarks.processes import Talker, cpu_ns, stat_fields, tree
from gslb.mock.settings import MockSettings
from gslb.mock.vllm import MockVllm

_SETTLE_S = 5.0
_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")


def _split_ms(root: int) -> tuple[float, float]:
    """User and system time of a process tree, in clock ticks of 10 ms: for their ratio."""
    user = system = 0
    for pid in tree(root):
        fields = stat_fields((Path("/proc") / str(pid) / "stat").read_text())
        user, system = user + int(fields[11]), system + int(fields[12])
    return user * _TICK_MS, system * _TICK_MS


def _wakes(root: int) -> int:
    """Times the processes of a tree have gone to sleep."""
    total = 0
    for pid in tree(root):
        for task in (Path("/proc") / str(pid) / "task").iterdir():
            status = (task / "status").read_text()
            total += int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return total


async def _upstreams(count: int) -> None:
    mocks = [MockVllm(MockSettings(models=("bench-70b",))) for _ in range(count)]
    for mock in mocks:
        await mock.start("127.0.0.1", 0)
    print(json.dumps([int(mock.url.rpartition(":")[2]) for mock in mocks]), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def main() -> None:
    """Measure and print one line a round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of one round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--endpoints", type=int, default=12)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--upstreams", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.upstreams:
        uvloop.run(_upstreams(options.upstreams))
        return
    own, others = edge_cores(options.workers)
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory)
        with helper("idle", "--upstreams", str(options.endpoints), run=run, on_cores=others) as mocks:
            ports = Talker(mocks, run / "helpers.log").hear()
            with running_edge(edge_config(ports, run, options.workers), run, own) as edge:
                time.sleep(_SETTLE_S)
                found = [_measure(edge.process.pid, options.seconds) for _ in range(options.rounds)]
    print(f"median {median(found):.1f} ms/s")


def _measure(pid: int, seconds: float) -> float:
    begun_s, used_ns, wakes, before_ms = time.monotonic(), cpu_ns(pid), _wakes(pid), _split_ms(pid)
    time.sleep(seconds)
    passed_s = time.monotonic() - begun_s
    used_ms = (cpu_ns(pid) - used_ns) / 1e6 / passed_s
    user, system = ((then - ms) / passed_s for then, ms in zip(_split_ms(pid), before_ms, strict=True))
    often = (_wakes(pid) - wakes) / passed_s
    print(f"{used_ms:.1f} ms/s (user {user:.1f}, system {system:.1f}), {often:.0f} wakes/s", flush=True)
    return used_ms


if __name__ == "__main__":
    main()
