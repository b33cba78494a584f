"""How well the first token is predicted, live: `python -m benchmarks.prediction [--loads 0.5,0.8,1.1]`.

gslb in Frankfurt before four mock vLLM servers, two there and two a WAN delay away in Virginia; it has to learn
their slots (`--tell-slots`: they stand in its configuration). Requests come at Poisson times with lognormal
lengths, as shares of what all slots together can serve (measured before). For each load a warm-up, then the access
log is read: what was predicted, what came. `--upstream URL` (repeated) takes servers that run already instead of
the mocks, real vLLM ones say, as two regions in turn.

Both figures of the log are the edge's: from the request to the first token, time held included. A held request's
error is also shown without the hold, which is known when its place is predicted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.claims import Claim, at_most, exit_code, show, stop_on_sigterm, write_json
from benchmarks.edge import REGIONS, edge_cores, helper, running_edge
from benchmarks.open_loop import (
    Question,
    add_load_options,
    body_of,
    capacity_per_s,
    lengths_of,
    loads_of,
    model_of,
    open_loop,
    quantile,
    questions,
)
from benchmarks.processes import BenchmarkError, Neighbours, Talker, free_port
from gslb.mock.settings import MockSettings
from gslb.mock.vllm import MockVllm
from gslb.sim.lengths import Lengths

HOME, AWAY = "eu", "us"
_WAN_MS = {HOME: 3.0, AWAY: 92.0}
_MOCK_MODEL = "bench-70b"
_CLIENT = "192.0.2.7"
_KINDS = ("home", "spilled", "held", "all")
_LIMIT_SHARE = 0.20
"""Must-show: median error against mock servers over the loopback."""


@dataclass(frozen=True, slots=True)
class Error:
    """Of one kind of requests under one load: shares of the measured time, and medians in ms. `signed` above 0 is
    predicted too long."""

    load: float
    kind: str
    count: int
    median: float
    p90: float
    signed: float
    predicted_ms: float
    measured_ms: float
    held_ms: float
    median_after_hold: float


def mock_settings(region: str, slots: int) -> MockSettings:
    """An engine about as quick as a 70B model on A100s, seen over the region's way."""
    return MockSettings(
        models=(_MOCK_MODEL,), slots=slots, itl_ms=40.0, itl_per_seq_ms=0.4, prefill_ms_per_token=0.1,
        max_batched_tokens=8192, kv_blocks=1 << 16, wan_default_ms=_WAN_MS[region],
    )  # fmt: skip


async def _serve_mocks(slots: int) -> None:
    mocks = [MockVllm(mock_settings(region, slots)) for region in (HOME, HOME, AWAY, AWAY)]
    for mock in mocks:
        await mock.start("127.0.0.1", 0)
    print(json.dumps([mock.url for mock in mocks]), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def config_of(
    urls: Mapping[str, Sequence[str]], run: Path, capacity: int | None, *, is_placed: bool
) -> dict[str, Any]:
    """gslb before these; an edge that is not placed takes itself to stand beside its clients."""
    told = {} if capacity is None else {"capacity": capacity}
    return {
        "listen": f"127.0.0.1:{free_port()}",
        "admin": f"127.0.0.1:{free_port()}",
        "workers": 1,
        "edge": {"location": REGIONS[HOME]} if is_placed else {},
        "geo": {"trusted_proxies": ["127.0.0.0/8"], "overrides": {f"{_CLIENT}/32": "Frankfurt, DE"}},
        "regions": {
            name: {"location": REGIONS[name], "endpoints": [{"url": url, **told} for url in members]}
            for name, members in urls.items()
        },
        "observability": {"access_log": str(run / "access.log")},
    }


def errors_of(load: float, records: Iterable[Mapping[str, Any]]) -> list[Error]:
    """Errors by kind of the access log's records that have both times; kinds without any are left out."""
    found: dict[str, list[tuple[float, float, float]]] = {kind: [] for kind in _KINDS}
    for record in records:
        predicted_ms, measured_ms = record["predicted_ttft_ms"], record["ttft_ms"]
        if record["outcome"] != "ok" or predicted_ms is None or not measured_ms:
            continue
        kind = "held" if record["held_ms"] else "home" if record["region"] == record["home"] else "spilled"
        for name in (kind, "all"):
            found[name].append((predicted_ms, measured_ms, record["held_ms"]))
    return [_error(load, kind, triples) for kind, triples in found.items() if triples]


def _error(load: float, kind: str, triples: Sequence[tuple[float, float, float]]) -> Error:
    signed = [(predicted - measured) / measured for predicted, measured, _ in triples]
    off = [abs(one) for one in signed]
    after_hold = [abs(predicted - measured) / max(measured - held, 1.0) for predicted, measured, held in triples]
    predicted_ms, measured_ms, held_ms = (median(column) for column in zip(*triples, strict=True))
    return Error(
        load, kind, len(triples), median(off), quantile(off, 0.9), median(signed), predicted_ms, measured_ms,
        held_ms, median(after_hold),
    )  # fmt: skip


async def _offer(url: str, model: str, asked: Sequence[Question], mark: str) -> int:
    """Ask through gslb; (those that were not answered in whole). Request ids begin with `mark`."""
    headers = [{"X-Forwarded-For": _CLIENT, "X-Request-Id": f"{mark}-{number}"} for number in range(len(asked))]
    return sum(not answer.is_whole for answer in await open_loop(url, model, asked, headers))


@dataclass(frozen=True, slots=True)
class Plan:
    """What is offered."""

    loads: Sequence[float]
    seconds: float
    warm_up_s: float
    lengths: Lengths
    slots: int
    seed: int
    tells_slots: bool
    keep_log: Path | None


def measure(
    urls: Mapping[str, Sequence[str]], model: str, plan: Plan, run: Path, *, is_placed: bool
) -> dict[str, Any]:
    """Capacity, then gslb under each load. Raises BenchmarkError."""
    dice = Random(plan.seed)
    every = [url for members in urls.values() for url in members]
    capacity = uvloop.run(capacity_per_s(every, model, plan.slots, plan.lengths, dice))
    print(f"capacity {capacity:.2f} requests/s", file=sys.stderr, flush=True)
    errors: list[Error] = []
    lost = 0
    config = config_of(urls, run, plan.slots if plan.tells_slots else None, is_placed=is_placed)
    edge_url = f"http://{config['listen']}"
    first = Question(0.0, 8, 1, "a first question")
    with running_edge(config, run, edge_cores(1)[0], _raw(config["listen"], body_of(model, first))) as edge:
        for load in plan.loads:
            per_s = load * capacity
            asked = questions(per_s, plan.warm_up_s + plan.seconds, plan.lengths, dice)
            lost += uvloop.run(_offer(edge_url, model, asked, f"load-{load:g}"))
            edge.wait_for(lambda counts: not counts.open_exchanges, 30.0)
            warm = sum(question.at_s < plan.warm_up_s for question in asked)
            errors += errors_of(load, _records(edge.access_log, f"load-{load:g}-", warm))
            print(f"load {load:g} done", file=sys.stderr, flush=True)
    if plan.keep_log is not None:
        shutil.copy(edge.access_log, plan.keep_log)
    return {"capacity_per_s": capacity, "not_answered": lost, "errors": errors}


def _records(log: Path, mark: str, warm: int) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in log.read_text().splitlines()]
    return [
        record
        for record in records
        if (name := record["request_id"]).startswith(mark) and int(name.removeprefix(mark)) >= warm
    ]


def _raw(listen: str, body: bytes) -> bytes:
    return (
        f"POST /v1/completions HTTP/1.1\r\nHost: {listen}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def table(errors: Sequence[Error]) -> Table:
    """One line per load and kind."""
    shown = Table(title="|predicted - measured| / measured TTFT, %; medians in ms")
    for heading in (
        "load", "kind", "n", "median", "p90", "signed", "predicted", "measured", "held", "past hold",
    ):  # fmt: skip
        shown.add_column(heading, justify="left" if heading == "kind" else "right", no_wrap=True)
    for one in errors:
        shown.add_row(
            f"{one.load:g}", one.kind, str(one.count), f"{100 * one.median:.1f}", f"{100 * one.p90:.1f}",
            f"{100 * one.signed:+.1f}", f"{one.predicted_ms:.0f}", f"{one.measured_ms:.0f}", f"{one.held_ms:.0f}",
            f"{100 * one.median_after_hold:.1f}", end_section=one.kind == "all",
        )  # fmt: skip
    return shown


def claims_of(errors: Sequence[Error]) -> list[Claim]:
    """Must-show, against mock servers, by the harder figure."""
    return [
        at_most(
            f"median error at {one.load:g} of capacity, holds left out",
            100 * one.median_after_hold,
            100 * _LIMIT_SHARE,
            "%",
        )
        for one in errors
        if one.kind == "all"
    ]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.prediction", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--upstream", action="append", metavar="URL", help="a server that runs already; repeat")
    parser.add_argument("--slots", type=int, default=16, help="of each server (mocks get so many)")
    add_load_options(parser, loads="0.5,0.8,1.1", seconds=45.0, prompt=600.0, longest=6000)
    parser.add_argument("--warm-up", type=float, default=20.0, metavar="S", help="before those, per load")
    parser.add_argument("--tell-slots", action="store_true", help="put them into the configuration as `capacity`")
    parser.add_argument("--keep-log", type=Path, metavar="FILE", help="put gslb's access log there")
    parser.add_argument("--json", metavar="FILE", help="all figures; - for standard output")
    parser.add_argument("--serve-mocks", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    """Measure and print."""
    asked = _arguments()
    if asked.serve_mocks:
        uvloop.run(_serve_mocks(asked.slots))
        return 0
    stop_on_sigterm()
    plan = Plan(
        loads_of(asked), asked.seconds, asked.warm_up, lengths_of(asked), asked.slots, asked.seed,
        asked.tell_slots, asked.keep_log,
    )  # fmt: skip
    neighbours = Neighbours()
    try:
        found = _against_running(asked.upstream, plan) if asked.upstream else _against_mocks(plan)
    except BenchmarkError as error:
        print(f"prediction: {error}", file=sys.stderr)
        return 2
    errors: list[Error] = found["errors"]
    claims = [] if asked.upstream else claims_of(errors)
    figures = {
        "capacity": f"{found['capacity_per_s']:.2f} requests/s", "not answered": str(found["not_answered"]),
        "others' share of this machine": f"{neighbours.share():.0%}",
    }  # fmt: skip
    if asked.json != "-":
        console = Console()
        console.print(table(errors))
        show(console, "run", figures, claims)
    write_json(asked.json, {**found, "errors": [asdict(one) for one in errors]}, claims)
    return exit_code(claims)


def _against_mocks(plan: Plan) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory)
        mocks = helper(
            "prediction", "--serve-mocks", "--slots", str(plan.slots), run=run, on_cores=edge_cores(1)[1]
        )
        with mocks as process:
            urls = Talker(process, run / "helpers.log").hear()
            return measure({HOME: urls[:2], AWAY: urls[2:]}, _MOCK_MODEL, plan, run, is_placed=True)


def _against_running(urls: Sequence[str], plan: Plan) -> dict[str, Any]:
    regions: dict[str, list[str]] = {}
    for number, url in enumerate(urls):
        regions.setdefault((HOME, AWAY)[number % 2], []).append(url.rstrip("/"))
    with tempfile.TemporaryDirectory() as directory:
        return measure(regions, model_of(urls[0]), plan, Path(directory), is_placed=False)


if __name__ == "__main__":
    sys.exit(main())
