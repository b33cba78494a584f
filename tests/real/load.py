"""A small load through the official client, and what became of each request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import openai
from openai import AsyncOpenAI

from tests.real.processes import MODEL


@dataclass(slots=True)
class Outcome:
    """One request: when it began, whether any content came, and how it ended. Times are monotonic seconds."""

    is_stream: bool
    begun_s: float
    has_content: bool = False
    tokens: int = 0
    region: str = ""
    attempts: int = 0
    error: str | None = None
    ended_s: float = 0.0

    @property
    def is_cut(self) -> bool:
        """True when it failed after content had come."""
        return self.error is not None and self.has_content


@dataclass
class Load:
    """Outcomes, also of requests that still run."""

    outcomes: list[Outcome] = field(default_factory=list)

    def begun_after(self, moment_s: float) -> list[Outcome]:
        """Requests begun after a moment."""
        return [outcome for outcome in self.outcomes if outcome.begun_s >= moment_s]

    @property
    def failed_without_content(self) -> list[Outcome]:
        """Requests that failed although nothing had come yet: there must be none."""
        return [outcome for outcome in self.outcomes if outcome.error is not None and not outcome.has_content]

    def streaming_from(self, region: str) -> int:
        """Streams that have content from a region and still run: the ones its loss may cut."""
        return sum(
            outcome.has_content and outcome.region == region and not outcome.ended_s for outcome in self.outcomes
        )

    async def stream(self, client: AsyncOpenAI, prompt: str, tokens: int) -> None:
        """One streamed completion of exactly `tokens` tokens; short without an error counts as an error."""
        outcome = Outcome(True, time.monotonic())
        self.outcomes.append(outcome)
        try:
            stream = await client.completions.create(
                model=MODEL, prompt=prompt, max_tokens=tokens, stream=True,
                stream_options={"include_usage": True}, extra_body={"ignore_eos": True},
            )  # fmt: skip
            _note_head(outcome, stream.response.headers)
            async for chunk in stream:
                if chunk.choices and chunk.choices[0].text:
                    outcome.has_content = True
                if chunk.choices and chunk.choices[0].finish_reason not in (None, "length"):
                    outcome.error = f"ended with finish_reason {chunk.choices[0].finish_reason}"
                if chunk.usage is not None:
                    outcome.tokens = chunk.usage.completion_tokens
            if outcome.tokens != tokens and outcome.error is None:
                outcome.error = f"looked complete after {outcome.tokens} of {tokens} tokens"
        except Exception as error:  # the client raises its own errors and its transport's: all are outcomes here
            outcome.error = f"{type(error).__name__}: {error}"
        outcome.ended_s = time.monotonic()

    async def whole(self, client: AsyncOpenAI, prompt: str, tokens: int) -> None:
        """One completion in one piece."""
        outcome = Outcome(False, time.monotonic())
        self.outcomes.append(outcome)
        try:
            raw = await client.completions.with_raw_response.create(
                model=MODEL, prompt=prompt, max_tokens=tokens, extra_body={"ignore_eos": True}
            )
            _note_head(outcome, raw.headers)
            usage = raw.parse().usage
            outcome.tokens = usage.completion_tokens if usage is not None else 0
            if outcome.tokens != tokens:
                outcome.error = f"looked complete after {outcome.tokens} of {tokens} tokens"
        except openai.OpenAIError as error:
            outcome.error = f"{type(error).__name__}: {error}"
        outcome.ended_s = time.monotonic()

    async def keep_asking(
        self, client: AsyncOpenAI, stopping: asyncio.Event, *, is_stream: bool, tokens: int
    ) -> None:
        """One request after the other until `stopping`."""
        ask = self.stream if is_stream else self.whole
        while not stopping.is_set():
            await ask(client, f"Request {len(self.outcomes)}:", tokens)


def _note_head(outcome: Outcome, headers: Mapping[str, str]) -> None:
    outcome.region = headers["x-gslb-region"]
    outcome.attempts = int(headers["x-gslb-attempts"])
