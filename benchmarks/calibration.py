"""The simulated engine beside a running one: `python -m benchmarks.calibration --upstream URL [--slots N]`.

First its profile is fitted by a short series: lone prompts of growing length (prefill per token, and what
a step without decoders costs), then streams at once as batches of growing size (a decoding step). Then
the same arrivals go to the running engine and to the simulated one of that profile, and their TTFT quantiles are
shown side by side, and the series is repeated: an engine that was not the same at the end (a busy machine) cannot
be what the simulated one still is. It should serve nobody else; without `--upstream` it is a mock vLLM server.

What passes outside the engine (HTTP, tokenizing) is told apart by its own `request_prefill_time_seconds` and
`request_queue_time_seconds`, as far as lone prompts show it, and added to the simulated times.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil, inf
from pathlib import Path
from random import Random
from statistics import fmean, linear_regression, median
from typing import Any

import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.claims import show, stop_on_sigterm, write_json
from benchmarks.edge import helper
from benchmarks.open_loop import (
    Question,
    add_load_options,
    ask,
    body_of,
    capacity_per_s,
    ids_of,
    lengths_of,
    loads_of,
    model_of,
    open_loop,
    quantile,
    questions,
)
from benchmarks.processes import BenchmarkError, Neighbours, Talker
from gslb.mock.settings import MockSettings
from gslb.mock.vllm import MockVllm
from gslb.routing.profiles import LONG_FROM_TOKENS, Profile
from gslb.sim.engine import Engine
from gslb.sim.sequence import Sequence as EngineSequence
from gslb.sim.setting import EngineSpec

_PROMPTS = (32, 64, 128, 192, 256, 512, 1024, 1536, 2048, 3072, 4096)
_PROMPT_ROUNDS = 5
_BATCH_TOKENS = 60
_BATCH_ROUNDS = 4
_BATCH_PROMPT = 16
_SHARES = (0.5, 0.9)
_COUNTED_S = 0.3
"""A request is in the metrics a little after its answer's end."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What the series said. `outside_ms` passes before and after the engine; `prefill` lists (prompt tokens, ms in
    the engine), `steps` (batch, ms a step), each what the profile is a line through."""

    profile: Profile
    outside_ms: float
    prefill: list[tuple[int, float]]
    steps: list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Compared:
    """TTFT quantiles in ms under one load, of the same arrivals."""

    load: float
    count: int
    share: float
    engine_ms: float
    simulated_ms: float

    @property
    def off(self) -> float:
        """How far the simulated one is off, as a share."""
        return (self.simulated_ms - self.engine_ms) / self.engine_ms


# --- the running engine ----------------------------------------------------------------------------


_FIRST_TOKENS = ("request_prefill_time_seconds", "request_queue_time_seconds")
_GAPS = ("inter_token_latency_seconds",)


def _counted(url: str, names: Sequence[str]) -> tuple[float, float]:
    """(observations of the first of these histograms, seconds in all of them together) so far."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        text = answer.read().decode()

    def total(name: str) -> float:
        found = re.findall(rf"^vllm:{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        if not found:
            raise BenchmarkError(f"{url}/metrics has no vllm:{name}: is this a vLLM server?")
        return sum(map(float, found))

    return total(f"{names[0]}_count"), sum(total(f"{name}_sum") for name in names)


def _kv_tokens(url: str) -> int | None:
    """The KV memory the engine tells of, in tokens."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    told = dict(
        re.findall(r'(\w+)="([^"]*)"', "".join(re.findall(r"^vllm:cache_config_info{.*", text, re.MULTILINE)))
    )
    try:
        return int(told["num_gpu_blocks"]) * int(told["block_size"])
    except (KeyError, ValueError):
        return None


async def _lone_prompts(url: str, model: str, longest: int) -> list[tuple[int, float, float]]:
    """(prompt tokens, TTFT ms here, the same ms inside the engine) of prompts that are alone: medians, since
    whoever shares the machine may get in between. Raises BenchmarkError when the engine serves others too."""

    async def one(tokens: int) -> tuple[float, float]:
        before = await asyncio.to_thread(_counted, url, _FIRST_TOKENS)
        answer = await ask(url, body_of(model, Question(0.0, tokens, 1, ids_of(tokens))))
        if not answer.token_s:
            raise BenchmarkError(f"{url}: no token for {tokens} prompt tokens: {answer.status} {answer.error}")
        await asyncio.sleep(_COUNTED_S)
        after = await asyncio.to_thread(_counted, url, _FIRST_TOKENS)
        if after[0] - before[0] != 1:
            raise BenchmarkError(f"{url} serves others too: its times are not those of these prompts")
        return answer.ttft_ms, 1000 * (after[1] - before[1])

    await one(64)  # whatever is made up on first use
    found = []
    for tokens in (size for size in _PROMPTS if size <= longest):
        seen, inside = zip(*[await one(tokens) for _ in range(_PROMPT_ROUNDS)], strict=True)
        found.append((tokens, median(seen), median(inside)))
    return found


async def _steps(url: str, model: str, slots: int) -> list[tuple[int, float]]:
    """(batch, ms a decoding step) for batches up to all slots: the engine's own mean gap between tokens, medians
    over rounds. Seen from here several tokens may come together."""
    found = []
    for batch in sorted({1, *(slots * part // 4 for part in (1, 2, 3, 4))} - {0}):
        means: list[float] = []
        for _ in range(_BATCH_ROUNDS):
            before = await asyncio.to_thread(_counted, url, _GAPS)
            asked = [Question(0.0, _BATCH_PROMPT, _BATCH_TOKENS, ids_of(_BATCH_PROMPT)) for _ in range(batch)]
            await open_loop(url, model, asked)
            await asyncio.sleep(_COUNTED_S)
            after = await asyncio.to_thread(_counted, url, _GAPS)
            if after[0] == before[0]:
                raise BenchmarkError(f"{url} does not count gaps between tokens: steps cannot be told")
            means.append(1000 * (after[1] - before[1]) / (after[0] - before[0]))
        found.append((batch, median(means)))
    return found


async def fit(url: str, model: str, asked: argparse.Namespace) -> Fit:
    """Measure and draw lines. Raises BenchmarkError when the engine does not answer, or serves others too."""
    lone = await _lone_prompts(url, model, asked.longest)
    steps = await _steps(url, model, asked.slots)
    prefill = [(tokens, ms) for tokens, _, ms in lone]
    profile = profile_of(prefill, steps, asked.step_tokens)
    return Fit(profile, median(seen - ms for _, seen, ms in lone), prefill, steps)


def profile_of(
    prefill: Sequence[tuple[int, float]], steps: Sequence[tuple[int, float]], step_tokens: int
) -> Profile:
    """Least squares. A lone prompt of up to LONG_FROM_TOKENS takes `a * ceil(tokens / step_tokens) + b * tokens`;
    what a longer one takes beyond that is the price of its later tokens. Raises BenchmarkError when longer ones do
    not take longer."""
    short = [(ceil(tokens / step_tokens), tokens, ms) for tokens, ms in prefill if tokens <= LONG_FROM_TOKENS]
    aa, bb = sum(a * a for a, _, _ in short), sum(b * b for _, b, _ in short)
    ab, ay, by = (sum(one) for one in zip(*((a * b, a * ms, b * ms) for a, b, ms in short), strict=True))
    determinant = aa * bb - ab * ab
    per_step = max((ay * bb - by * ab) / determinant, 0.0)
    per_token = (by - ab * per_step) / bb
    if per_token <= 0:
        raise BenchmarkError(f"prefill cannot be told from noise (tokens, ms: {prefill}): is the machine busy?")
    long = [
        (ms - per_step * ceil(tokens / step_tokens) - per_token * LONG_FROM_TOKENS) / (tokens - LONG_FROM_TOKENS)
        for tokens, ms in prefill
        if tokens > LONG_FROM_TOKENS
    ]
    per_seq, step = linear_regression(*zip(*steps, strict=True)) if len(steps) > 1 else (0.0, steps[0][1])
    return Profile(step, max(per_seq, 0.0), 0.0, per_token, fmean(long) if long else per_token, per_step)


# --- the simulated engine --------------------------------------------------------------------------


class _Asked(EngineSequence):
    """One request in the simulated engine."""

    def __init__(self, question: Question) -> None:
        super().__init__(question.prompt_tokens, question.output_tokens)
        self.at_s = question.at_s
        self.first_s = inf


class _Listener:
    """Writes down first tokens."""

    def first_token(self, sequence: _Asked, now_s: float) -> None:
        sequence.first_s = now_s

    def finished(self, sequence: _Asked, now_s: float) -> None:
        """Not of interest."""


def simulated_ttfts_ms(spec: EngineSpec, asked: Sequence[Question]) -> list[float]:
    """What the simulated engine makes of the same arrivals, one time each."""
    engine: Engine[_Asked] = Engine(spec, _Listener())
    sequences = [_Asked(question) for question in asked]
    for sequence in sequences:
        _advance(engine, sequence.at_s)
        engine.submit(sequence, sequence.at_s)
    _advance(engine, sys.float_info.max)
    return [1000 * (one.first_s - one.at_s) for one in sequences]


def _advance(engine: Engine[_Asked], until_s: float) -> None:
    while engine.due_s <= until_s:
        engine.advance(engine.due_s)


# --- both ------------------------------------------------------------------------------------------


def compare(url: str, model: str, asked: argparse.Namespace) -> dict[str, Any]:
    """Fit, then both under each load. Raises BenchmarkError."""
    dice = Random(asked.seed)
    lengths = lengths_of(asked)
    found = uvloop.run(fit(url, model, asked))
    print(f"fitted: {found.profile}, outside {found.outside_ms:.1f} ms", file=sys.stderr, flush=True)
    capacity = uvloop.run(capacity_per_s([url], model, asked.slots, lengths, dice, as_ids=True))
    print(f"capacity {capacity:.2f} requests/s", file=sys.stderr, flush=True)
    spec = EngineSpec(
        "engine", found.profile, slots=asked.slots, kv_tokens=_kv_tokens(url) or 1 << 20,
        step_tokens=asked.step_tokens, has_prefix_cache=False,
    )  # fmt: skip
    compared: list[Compared] = []
    for load in loads_of(asked):
        arrivals = questions(load * capacity, asked.seconds, lengths, dice, as_ids=True)
        answers = uvloop.run(open_loop(url, model, arrivals))
        lost = [answer for answer in answers if not answer.token_s]
        if lost:
            raise BenchmarkError(f"{len(lost)} of {len(answers)} got no token: {lost[0].status} {lost[0].error}")
        theirs = [answer.ttft_ms for answer in answers]
        ours = [ms + found.outside_ms for ms in simulated_ttfts_ms(spec, arrivals)]
        compared += [
            Compared(load, len(arrivals), share, quantile(theirs, share), quantile(ours, share))
            for share in _SHARES
        ]
    again = uvloop.run(fit(url, model, asked))
    return {"fit": found, "fit_after": again, "capacity_per_s": capacity, "compared": compared}


async def _serve_mock(slots: int, step_tokens: int) -> None:
    settings = MockSettings(
        slots=slots, itl_ms=25.0, itl_per_seq_ms=0.5, prefill_ms_per_token=0.1, kv_blocks=1 << 16,
        max_batched_tokens=step_tokens,
    )  # fmt: skip
    mock = MockVllm(settings)
    await mock.start("127.0.0.1", 0)
    print(json.dumps(mock.url), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def table(compared: Sequence[Compared]) -> Table:
    """One line per load and quantile."""
    shown = Table(title="TTFT, ms")
    for heading in ("load", "n", "quantile", "engine", "simulated", "off %"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for one in compared:
        shown.add_row(
            f"{one.load:g}", str(one.count), f"p{100 * one.share:.0f}", f"{one.engine_ms:.1f}",
            f"{one.simulated_ms:.1f}", f"{100 * one.off:+.1f}",
        )  # fmt: skip
    return shown


def _arguments() -> argparse.Namespace:
    summary = (__doc__ or "").split(":")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calibration", description=summary)
    parser.add_argument("--upstream", metavar="URL", help="a vLLM server that runs already (default: a mock one)")
    parser.add_argument("--slots", type=int, default=8, help="its max_num_seqs")
    parser.add_argument("--step-tokens", type=int, default=2048, help="its max_num_batched_tokens")
    add_load_options(parser, loads="0.5,0.8,1.0", seconds=30.0, prompt=500.0, longest=4096)
    parser.add_argument("--json", metavar="FILE", help="all figures; - for standard output")
    parser.add_argument("--serve-mock", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    """Measure and print."""
    asked = _arguments()
    if asked.serve_mock:
        uvloop.run(_serve_mock(asked.slots, asked.step_tokens))
        return 0
    stop_on_sigterm()
    neighbours = Neighbours()
    try:
        if asked.upstream:
            url = asked.upstream.rstrip("/")
            found = compare(url, model_of(url), asked)
        else:
            found = _against_mock(asked)
    except BenchmarkError as error:
        print(f"calibration: {error}", file=sys.stderr)
        return 2
    if asked.json != "-":
        _show(found, neighbours.share())
    told = {
        **found, "fit": asdict(found["fit"]), "fit_after": asdict(found["fit_after"]),
        "compared": [{**asdict(one), "off": one.off} for one in found["compared"]],
    }  # fmt: skip
    write_json(asked.json, told, [])
    return 0


def _show(found: dict[str, Any], others: float) -> None:
    before, after = found["fit"], found["fit_after"]
    figures = {
        name: f"{value:.3f} ms, after the runs {getattr(after.profile, name):.3f} ms"
        for name, value in asdict(before.profile).items()
    }
    figures["outside the engine"] = f"{before.outside_ms:.1f} ms, after the runs {after.outside_ms:.1f} ms"
    figures["capacity"] = f"{found['capacity_per_s']:.2f} requests/s"
    figures["others' share of this machine, a server's too"] = f"{others:.0%}"
    console = Console()
    show(console, "profile", figures, [])
    console.print(table(found["compared"]))


def _against_mock(asked: argparse.Namespace) -> dict[str, Any]:
    arguments = ("--serve-mock", "--slots", str(asked.slots), "--step-tokens", str(asked.step_tokens))
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory)
        with helper("calibration", *arguments, run=run, on_cores=os.sched_getaffinity(0)) as mock:
            url = Talker(mock, run / "helpers.log").hear()
            return compare(url, model_of(url), asked)


if __name__ == "__main__":
    sys.exit(main())
