"""Clients that come when they come: streamed completions at Poisson times, whoever is still being answered.

Prompts are noise that no dice repeat, so nothing of them is cached anywhere, not even from an earlier run.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import fmean
from typing import Any
from urllib.parse import urlsplit

from benchmarks.processes import BenchmarkError
from gslb.sim.lengths import Independent, Lengths, Lognormal

PATH = "/v1/completions"
_LIMIT_S = 180.0
_PROMPT_MEAN, _OUTPUT_MEAN = 1.4, 1.3
"""Mean lengths, in medians."""
_LONGEST_OUTPUT = 400


@dataclass(frozen=True, slots=True)
class Question:
    """One request: when it is sent, and how long its prompt and its answer are. `prompt` is text or token ids."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    prompt: str | list[int] = field(repr=False)


@dataclass(slots=True)
class Answer:
    """What came of it. `token_s` are the moments of its events with tokens, seconds after the request was sent."""

    status: int = 0
    error: str = ""
    begun_s: float = 0.0
    token_s: list[float] = field(default_factory=list)
    is_whole: bool = False

    @property
    def ttft_ms(self) -> float:
        """Request sent to first token. Raises IndexError when there was none."""
        return 1000 * self.token_s[0]


def text_of(tokens: int) -> str:
    """Noise of four characters a token, which is what the edge and the mock take for one."""
    return base64.b32encode(os.urandom(5 * tokens // 2 + 5)).decode()[: 4 * tokens]


def ids_of(tokens: int) -> list[int]:
    """Noise as token ids, small ones that every vocabulary has: exactly so many tokens to any engine."""
    return [3 + byte % 250 for byte in os.urandom(tokens)]


def questions(
    per_s: float, seconds: float, lengths: Lengths, dice: Random, *, as_ids: bool = False
) -> list[Question]:
    """Poisson arrivals for so long; `dice` make times and lengths."""
    made, at_s = [], dice.expovariate(per_s)
    while at_s < seconds:
        prompt, output = lengths(dice)
        made.append(Question(at_s, prompt, output, ids_of(prompt) if as_ids else text_of(prompt)))
        at_s += dice.expovariate(per_s)
    return made


def body_of(model: str, question: Question) -> bytes:
    """The request's JSON."""
    asked = {
        "model": model, "prompt": question.prompt, "max_tokens": question.output_tokens, "stream": True,
        "temperature": 0.0, "ignore_eos": True,
    }  # fmt: skip
    return json.dumps(asked).encode()


async def ask(url: str, body: bytes, headers: Mapping[str, str] | None = None) -> Answer:
    """Send one request over a connection of its own and read its stream. Failures are in the answer."""
    parts, answer = urlsplit(url), Answer()
    lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\n{lines}Content-Length: {len(body)}\r\n\r\n"
    )
    try:
        async with asyncio.timeout(_LIMIT_S):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            try:
                answer.begun_s = time.monotonic()  # the loop's own time goes by whole milliseconds
                writer.write(head.encode() + body)
                await _read(reader, answer)
            finally:
                writer.close()
    except (OSError, TimeoutError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    return answer


async def _read(reader: asyncio.StreamReader, answer: Answer) -> None:
    first = await reader.readline()
    answer.status = int(first.split(b" ")[1]) if first.startswith(b"HTTP/1.1 ") else 0
    while line := await reader.readline():
        if not line.startswith(b"data: "):
            continue
        if line.startswith(b"data: [DONE]"):
            answer.is_whole = True
        elif b'"error"' in line[:20]:
            answer.error = line.decode(errors="replace").strip()
        elif b'"text":' in line:
            answer.token_s.append(time.monotonic() - answer.begun_s)


async def open_loop(
    url: str, model: str, asked: Sequence[Question], headers: Sequence[Mapping[str, str]] = ()
) -> list[Answer]:
    """Ask all, each at its time; returns when all are answered. `headers` go with the requests, one by one."""
    loop = asyncio.get_running_loop()
    bodies = [body_of(model, question) for question in asked]
    begun_s = loop.time()

    async def one(number: int) -> Answer:
        await asyncio.sleep(max(0.0, begun_s + asked[number].at_s - loop.time()))
        return await ask(url, bodies[number], headers[number] if headers else None)

    return list(await asyncio.gather(*(one(number) for number in range(len(asked)))))


async def capacity_per_s(
    urls: Sequence[str],
    model: str,
    slots: int,
    lengths: Lengths,
    dice: Random,
    each: int = 4,
    *,
    as_ids: bool = False,
) -> float:
    """Requests a second that engines of so many slots end when all slots are always taken (Little's law): each
    slot's client asks `each` times in a row, and its last answer, beside which others have ended, is left out.

    Raises BenchmarkError when an answer is not whole.
    """

    async def client(url: str, own: Random) -> list[float]:
        took_s = []
        for _ in range(each):
            prompt, output = lengths(own)
            question = Question(0.0, prompt, output, ids_of(prompt) if as_ids else text_of(prompt))
            begun_s = time.monotonic()
            answer = await ask(url, body_of(model, question))
            if not answer.is_whole:
                raise BenchmarkError(f"{url} does not answer well: status {answer.status} {answer.error}")
            took_s.append(time.monotonic() - begun_s)
        return took_s[:-1]

    clients = [client(url, Random(dice.random())) for url in urls for _ in range(slots)]
    durations = [took_s for one in await asyncio.gather(*clients) for took_s in one]
    return len(clients) / fmean(durations)


def model_of(url: str) -> str:
    """The first model an endpoint serves. Raises BenchmarkError when it does not tell."""
    try:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=10) as answer:
            told: dict[str, Any] = json.loads(answer.read())
        return str(told["data"][0]["id"])
    except (OSError, ValueError, LookupError) as error:
        raise BenchmarkError(f"{url}/v1/models does not name a model: {error}") from None


def quantile(values: Sequence[float], share: float) -> float:
    """The value that `share` (0..1) of them do not exceed. Raises ValueError without values."""
    if not values:
        raise ValueError("no values: there is no quantile of nothing")
    return sorted(values)[round(share * (len(values) - 1))]


# --- what a command is told of it -----------------------------------------------------------------


def add_load_options(
    parser: argparse.ArgumentParser, *, loads: str, seconds: float, prompt: float, longest: int
) -> None:
    """The options that say what is offered, with these defaults: `loads_of` and `lengths_of` read them."""
    parser.add_argument("--loads", default=loads, metavar="A,B", help="shares of capacity")
    parser.add_argument("--seconds", type=float, default=seconds, help="measured, per load")
    for name, median, mean in (("--prompt", prompt, _PROMPT_MEAN), ("--output", 40.0, _OUTPUT_MEAN)):
        told = f"median; the mean is {mean} times it"
        parser.add_argument(name, type=float, default=median, metavar="TOKENS", help=told)
    parser.add_argument("--longest", type=int, default=longest, metavar="TOKENS", help="prompt")
    parser.add_argument("--seed", type=int, default=1)


def loads_of(asked: argparse.Namespace) -> list[float]:
    """Shares of capacity to offer, one after the other."""
    return [float(load) for load in asked.loads.split(",")]


def lengths_of(asked: argparse.Namespace) -> Independent:
    """Lognormal lengths as the options say."""
    prompts = Lognormal(asked.prompt, _PROMPT_MEAN * asked.prompt, asked.longest)
    return Independent(prompts, Lognormal(asked.output, _OUTPUT_MEAN * asked.output, _LONGEST_OUTPUT))
