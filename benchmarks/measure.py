"""One measurement: start a proxy, load it, read what that cost it, stop it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.load import CLIENT_ADDRESSES, request_bytes
from benchmarks.processes import BenchmarkError, Talker, cores, cpu_ns, rss_bytes, running, wait_until_served
from benchmarks.proxies import KEY, PYTHON, Proxy

REGIONS, ENDPOINTS_PER_REGION = 3, 4
EVENTS_PER_STREAM = 100
STEPS = ("start", "idle", "requests", "streams", "paced")
"""What a measurement consists of; `on_step` is called as each ends."""

_ROOT = Path(__file__).resolve().parent.parent
_START_S = 20.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to do. `streams` are open at once, `events_per_s` each, watched for `paced_s`."""

    requests: int = 8000
    streams: int = 500
    connections: int = 16
    events_per_s: float = 20.0
    paced_s: float = 4.0
    warm_up: int = 1000
    settle_s: float = 1.0

    @property
    def bursts(self) -> int:
        """Streams of EVENTS_PER_STREAM sent as fast as they are taken: five events per whole answer."""
        return max(self.requests // 20, self.connections)


@dataclass(frozen=True, slots=True)
class Figures:
    """What one proxy's work cost in one round: CPU time of its process tree, and memory."""

    request_us: float
    stream_us: float
    event_us: float
    paced_event_us: float
    idle_rss_mb: float
    stream_rss_kb: float
    idle_ms_per_s: float
    """CPU at rest: probes, scrapes, timers."""
    events_per_read: float
    """Paced events that reached a client together: well above 1 the machine was too busy to keep the pace."""
    requests: int
    events: int
    errors: int
    first_error: str


@dataclass(frozen=True, slots=True)
class Bench:
    """The running upstreams and load that all measurements share."""

    upstreams: Sequence[int]
    load: Talker
    run: Path


@contextmanager
def bench(run: Path, endpoints: int = REGIONS * ENDPOINTS_PER_REGION) -> Iterator[Bench]:
    """Start upstreams and load, away from the proxy's core; `run` takes logs and configurations."""
    _, others = cores()
    log = run / "helpers.log"

    def helper(module: str, *arguments: str) -> Any:
        command = [PYTHON, "-m", f"benchmarks.{module}", *arguments]
        return running(command, on_cores=others, log=log, directory=_ROOT, talks=True)

    with helper("upstream", str(endpoints)) as upstream, helper("load") as load:
        yield Bench(Talker(upstream, log).hear(), Talker(load, log), run)


class _Meter:
    """Reads what one process tree uses between two moments, and what the load says of the work done."""

    def __init__(self, pid: int, port: int, load: Talker) -> None:
        self._pid = pid
        self._port = port
        self._load = load
        self.errors = 0
        self.first_error = ""
        self.requests = self.events = 0

    def ask(self, do: str, **command: Any) -> dict[str, Any]:
        """One command to the load; its errors are added up when the command is over."""
        told: dict[str, Any] = self._load.ask(do=do, port=self._port, key=KEY, **command)
        if do not in ("open", "look"):
            self.errors += told["errors"]
            self.first_error = self.first_error or told["first_error"]
            self.requests += told.get("good", 0)
            self.events += told.get("events", 0)
        elif told["errors"]:
            raise BenchmarkError(f"streams failed: {told['first_error']}")
        return told

    def cost_us(self, do: str, **command: Any) -> float:
        """CPU time of one command's work per item of its `count`."""
        before_ns = cpu_ns(self._pid)
        self.ask(do, **command)
        return (cpu_ns(self._pid) - before_ns) / 1000 / int(command["count"])

    def idle_ms_per_s(self, for_s: float) -> float:
        """CPU time while nobody asks."""
        before_ns = cpu_ns(self._pid)
        time.sleep(for_s)
        return (cpu_ns(self._pid) - before_ns) / 1e6 / for_s

    def paced(self, plan: Plan) -> tuple[float, float, float]:
        """(us an event, resident bytes a stream, events a read) with `plan.streams` open."""
        idle_bytes = rss_bytes(self._pid)
        opening_s = plan.streams / 1000 + 2 * plan.settle_s + 1.0
        events = max(2, round((opening_s + plan.paced_s) * plan.events_per_s))
        self.ask("open", count=plan.streams, events=events, events_per_s=plan.events_per_s)
        time.sleep(plan.settle_s)
        before_ns, first = cpu_ns(self._pid), self.ask("look")
        time.sleep(plan.paced_s)
        spent_ns, last = cpu_ns(self._pid) - before_ns, self.ask("look")
        seen = max(last["events"] - first["events"], 1)
        stream_bytes = (rss_bytes(self._pid) - idle_bytes) / plan.streams
        self.ask("finish")
        return spent_ns / 1000 / seen, stream_bytes, seen / max(last["reads"] - first["reads"], 1)


def measure(proxy: Proxy, plan: Plan, shared: Bench, label: str, on_step: Callable[[str], None]) -> Figures:
    """One proxy, fresh, through all STEPS. Raises BenchmarkError when it does not start or loses paced streams."""
    run = shared.run / f"{proxy.name}-{label}"
    run.mkdir(mode=0o755)
    start = proxy.start(proxy.program, shared.upstreams, run)
    log = run / "output.log"
    proxy_cores, _ = cores()
    with running(start.command, on_cores=proxy_cores, log=log, directory=_ROOT, env=start.env) as process:
        first = request_bytes(start.port, KEY, CLIENT_ADDRESSES[0], {})
        wait_until_served(start.port, first, process, log, _START_S)
        meter = _Meter(process.pid, start.port, shared.load)
        work = {"connections": plan.connections}
        meter.ask("json", count=plan.warm_up, **work)
        meter.ask("streams", count=plan.connections, events=EVENTS_PER_STREAM, **work)
        on_step("start")
        idle_ms_per_s = meter.idle_ms_per_s(plan.settle_s)
        idle_rss = rss_bytes(process.pid)
        on_step("idle")
        request_us = meter.cost_us("json", count=plan.requests, **work)
        on_step("requests")
        stream_us = meter.cost_us("streams", count=plan.bursts, events=EVENTS_PER_STREAM, **work)
        on_step("streams")
        paced_event_us, stream_bytes, events_per_read = meter.paced(plan)
        on_step("paced")
    return Figures(
        request_us, stream_us, stream_us / EVENTS_PER_STREAM, paced_event_us, idle_rss / 1e6, stream_bytes / 1e3,
        idle_ms_per_s, events_per_read, meter.requests, meter.events, meter.errors, meter.first_error,
    )  # fmt: skip


def log_evidence(run: Path) -> dict[str, Any]:
    """What gslb's access log in `run` says it did: that "everything on" was on.

    Returns lines, how many were not `ok`, and the countries, regions, tenants and reasons found.
    """
    lines = [json.loads(line) for line in (run / "access.log").read_bytes().splitlines()]

    def values(name: str) -> list[str]:
        return sorted({str(line[name]) for line in lines})

    return {
        "lines": len(lines),
        "not_ok": sum(1 for line in lines if line["outcome"] != "ok"),
        "countries": values("country"),
        "regions": values("region"),
        "tenants": values("tenant"),
        "reasons": values("reason"),
    }
