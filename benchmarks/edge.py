"""A gslb under test: its configuration, its process, and what it says of itself on its admin address."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.load import CLIENT_ADDRESSES, request_bytes
from benchmarks.processes import BenchmarkError, free_port, running, wait_until_served
from benchmarks.proxies import KEY, NATIVE, PYTHON

ROOT = Path(__file__).resolve().parent.parent
REGIONS = {"eu": "aws:eu-central-1", "us": "aws:us-east-1", "ap": "aws:ap-southeast-1"}
_START_S = 30.0
_ASK_S = 20.0
_LAUNCH = "from gslb.cli import main; main()"
_OPEN_EXCHANGES = re.compile(r"^gslb_open_exchanges(?:\{[^}]*\})? (\S+)$", re.MULTILINE)
_INFLIGHT = re.compile(r"^gslb_inflight\{[^}]*\} (\S+)$", re.MULTILINE)
_ENDED = re.compile(r"^gslb_requests_total\{[^}]*\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Counts:
    """What gslb says it has open, by `/api/v1/status` and by `/metrics`."""

    open_connections: int
    open_exchanges: int
    in_flight: int
    """Summed over the endpoints."""
    metrics_open_exchanges: int
    metrics_in_flight: int
    requests_ended: int
    generation: int
    reload_failures: int

    @property
    def under_way(self) -> tuple[int, int, int, int]:
        """The four figures that are equal when gslb is at rest."""
        return self.open_exchanges, self.in_flight, self.metrics_open_exchanges, self.metrics_in_flight


@dataclass(frozen=True, slots=True)
class RunningEdge:
    """A started gslb. `log` holds its standard error, `config_path` may be rewritten for a reload."""

    process: subprocess.Popen[bytes]
    port: int
    admin_port: int
    config_path: Path
    log: Path
    access_log: Path

    def counts(self) -> Counts:
        """Ask both pages. Raises BenchmarkError when the admin address does not answer."""
        status = json.loads(self._get("/api/v1/status"))
        metrics = self._get("/metrics").decode()
        edge = status["edge"]
        endpoints = [endpoint for region in status["regions"] for endpoint in region["endpoints"]]
        return Counts(
            edge["open_connections"], edge["open_exchanges"],
            sum(endpoint["in_flight"] for endpoint in endpoints), _total(_OPEN_EXCHANGES, metrics),
            _total(_INFLIGHT, metrics), _total(_ENDED, metrics), status["generation"], status["reload_failures"],
        )  # fmt: skip

    def _get(self, path: str) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.admin_port, timeout=_ASK_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
        except OSError as error:
            raise BenchmarkError(f"gslb's admin address does not answer {path}: {error}") from None
        finally:
            connection.close()
        if answer.status != 200:
            raise BenchmarkError(f"gslb's admin address answers {path} with {answer.status}: {body[:200]!r}")
        return body

    def wait_for(self, is_reached: Callable[[Counts], bool], limit_s: float) -> tuple[Counts, bool]:
        """Ask until the counts are as wished; (the last counts, whether they were)."""
        until_s = time.monotonic() + limit_s
        while True:
            counts = self.counts()
            if is_reached(counts):
                return counts, True
            if time.monotonic() > until_s:
                return counts, False
            time.sleep(0.2)

    def rewrite(self, config: Mapping[str, Any]) -> None:
        """Put another configuration in the file's place, whole."""
        beside = self.config_path.with_suffix(".new")
        beside.write_text(json.dumps(config, indent=1))
        os.replace(beside, self.config_path)


def _total(pattern: re.Pattern[str], metrics: str) -> int:
    return round(sum(float(value) for value in pattern.findall(metrics)))


def edge_config(upstreams: Sequence[int], run: Path, workers: int, **sections: Any) -> dict[str, Any]:
    """gslb in front of upstreams on these ports of the loopback, dealt out to three regions; `sections` on top."""
    names = list(REGIONS)
    endpoints: dict[str, list[dict[str, str]]] = {name: [] for name in names}
    for number, port in enumerate(upstreams):
        endpoints[names[number % len(names)]].append({"url": f"http://127.0.0.1:{port}"})
    return {
        "listen": f"127.0.0.1:{free_port()}",
        "admin": f"127.0.0.1:{free_port()}",
        "workers": workers,
        "geo": {"trusted_proxies": ["127.0.0.0/8"]},
        "regions": {
            name: {"location": REGIONS[name], "endpoints": members}
            for name, members in endpoints.items()
            if members
        },
        "observability": {"access_log": str(run / "access.log")},
        **sections,
    }


@contextmanager
def running_edge(
    config: Mapping[str, Any], run: Path, on_cores: set[int], first: bytes | None = None
) -> Iterator[RunningEdge]:
    """Start gslb with this configuration (JSON is YAML) and wait until it serves; compiled where it has been.

    `first` is the request that shows it (None: a chat with the benchmarks' model). Raises BenchmarkError when it
    does not start.
    """
    path, log = run / "gslb.yaml", run / "gslb.log"
    path.write_text(json.dumps(config, indent=1))
    port, admin_port = (int(config[name].rsplit(":", 1)[1]) for name in ("listen", "admin"))
    is_compiled = (NATIVE / ".ready").exists()
    # -P: the checkout, where gslb is started, must not come before the compiled rooms.
    command = [PYTHON, *(["-P"] if is_compiled else []), "-c", _LAUNCH, "serve", "-c", str(path)]
    env = {"GSLB_BENCH_KEY": KEY} | ({"PYTHONPATH": str(NATIVE)} if is_compiled else {})
    with running(command, on_cores=on_cores, log=log, directory=ROOT, env=env) as process:
        first = first or request_bytes(port, KEY, CLIENT_ADDRESSES[0], {})
        wait_until_served(port, first, process, log, _START_S)
        yield RunningEdge(process, port, admin_port, path, log, run / "access.log")


def edge_cores(workers: int) -> tuple[set[int], set[int]]:
    """(cores of gslb, cores of everything else): apart where there are enough, else all for both."""
    available = sorted(os.sched_getaffinity(0))
    if workers < len(available):
        return set(available[:workers]), set(available[workers:])
    return set(available), set(available)


@contextmanager
def helper(module: str, *arguments: str, run: Path, on_cores: set[int]) -> Iterator[subprocess.Popen[bytes]]:
    """A helper process of this package that talks over its standard input and output."""
    command = [PYTHON, "-m", f"benchmarks.{module}", *arguments]
    with running(command, on_cores=on_cores, log=run / "helpers.log", directory=ROOT, talks=True) as process:
        yield process
