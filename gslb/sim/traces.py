"""Recorded requests: the column formats of four published traces, recognised from the file itself.

    Azure LLM inference 2023   CSV     TIMESTAMP (date and time), ContextTokens, GeneratedTokens
    BurstGPT                   CSV     Timestamp (s), Request tokens, Response tokens, perhaps Session ID
    Mooncake                   JSONL   timestamp (ms), input_length, output_length, hash_ids (512-token blocks)
    Qwen-Bailian               JSONL   the same with timestamp in s, 16-token blocks, chat_id and parent_chat_id

No trace holds a prompt. Reading takes memory for one line, whatever the length of the file.
"""

from __future__ import annotations

import csv
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zlib import crc32

import orjson

from gslb.sim.trace_clock import TraceClock
from gslb.sim.trace_lines import TraceError, lines_of

_MOST_REMEMBERED = 65_536
_MOST_TOKENS = 1 << 24


@dataclass(slots=True)
class Row:
    """One recorded request. `at_s` counts from the first one. `blocks` are the ids of the prompt's whole blocks.

    Rows of equal `client` belong to one conversation, as told or as their blocks suggest; `session` is set only
    when the trace itself says so.
    """

    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    block_tokens: int = 0
    session: int | None = None
    client: int | None = None


def read_trace(chunks: Iterable[bytes], filename: str) -> Iterator[Row]:
    """The rows of a trace file in order of time; `filename` is what errors name.

    Counts of 0 tokens (a failed request in some traces) become 1. Raises TraceError for whatever is wrong.
    """
    lines = lines_of(chunks, filename)
    first = next(lines, None)
    if first is None:
        raise TraceError(filename, 1, 1, "", "the file is empty")
    read = _read_json if first[1].startswith("{") else _read_csv
    is_empty = True
    for row in read(first, lines, filename):
        is_empty = False
        yield row
    if is_empty:
        raise TraceError(filename, first[0], 1, "", "there is no request below the column names")


# --- CSV --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _CsvFormat:
    title: str
    time: str
    prompt: str
    output: str
    session: str | None
    has_dates: bool

    @property
    def needed(self) -> tuple[str, str, str]:
        return self.time, self.prompt, self.output


_CSV_FORMATS = (
    _CsvFormat("Azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens", None, has_dates=True),
    _CsvFormat("BurstGPT", "Timestamp", "Request tokens", "Response tokens", "Session ID", has_dates=False),
)


def _read_csv(first: tuple[int, str], lines: Iterator[tuple[int, str]], filename: str) -> Iterator[Row]:
    number, header = first
    names = [name.strip() for name in _fields(header, filename, number)]
    form = _csv_format(names, filename, number)
    time, prompt, output = (names.index(name) for name in form.needed)
    session = names.index(form.session) if form.session in names else None
    seconds_of = _Dates().seconds if form.has_dates else _numbers(TraceClock(1.0))
    for number, line in lines:
        fields = _fields(line, filename, number)
        if len(fields) != len(names):
            message = f"{len(fields)} fields where the first line names {len(names)}: was the file cut here?"
            raise TraceError(filename, number, 1, "", message)
        index = time
        try:
            at_s = seconds_of(fields[time])
            index = prompt
            prompt_tokens = _tokens(fields[prompt])
            index = output
            output_tokens = _tokens(fields[output])
        except ValueError as error:
            column = sum(len(field) + 1 for field in fields[:index]) + 1
            raise TraceError(filename, number, column, names[index], str(error)) from None
        told = fields[session] if session is not None else ""
        chat = crc32(told.encode()) if told else None
        yield Row(at_s, prompt_tokens, output_tokens, session=chat, client=chat)


def _fields(line: str, filename: str, number: int) -> Sequence[str]:
    if '"' not in line:
        return line.split(",")
    try:
        return next(csv.reader([line]))
    except csv.Error as error:
        raise TraceError(filename, number, 1, "", f"this is no CSV: {error}") from None


def _csv_format(names: Sequence[str], filename: str, line: int) -> _CsvFormat:
    form = min(_CSV_FORMATS, key=lambda form: len(set(form.needed) - set(names)))
    missing = [name for name in form.needed if name not in names]
    if len(missing) == len(form.needed):
        known = "; ".join(f"{form.title}: {', '.join(form.needed)}" for form in _CSV_FORMATS)
        message = f"this is no known trace: CSV needs the columns of one of ({known}), JSONL starts with {{"
        raise TraceError(filename, line, 1, "", message)
    if missing:
        message = f"the column is missing; a trace like {form.title}'s has {', '.join(form.needed)}"
        raise TraceError(filename, line, 1, missing[0], message)
    return form


def _tokens(text: str) -> int:
    try:
        count = int(text)
    except ValueError:
        raise ValueError(f"{text[:40]!r} is no whole number of tokens") from None
    return _checked_tokens(count)


def _checked_tokens(count: int) -> int:
    if count < 0:
        raise ValueError(f"{count} is negative: a request cannot have so many tokens")
    if count > _MOST_TOKENS:
        raise ValueError(f"{count} tokens are more than any model takes")
    return max(count, 1)


def _numbers(clock: TraceClock) -> Callable[[str], float]:
    def seconds(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"{text[:40]!r} is no number of seconds") from None
        return clock.seconds(value)

    return seconds


class _Dates:
    """Dates and times as `2023-11-16 18:17:03.9799600`, with or without an offset, as seconds since the first."""

    def __init__(self) -> None:
        self._first: datetime | None = None
        self._last: datetime | None = None

    def seconds(self, text: str) -> float:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(f"{text[:40]!r} is no date and time such as 2023-11-16 18:17:03.9799600") from None
        if self._first is None or self._last is None:
            self._first = self._last = moment
        if (moment.tzinfo is None) != (self._first.tzinfo is None):
            raise ValueError("some times have an offset from UTC and some have none")
        if moment < self._last:
            raise ValueError(f"{text} comes after {self._last}: times must not go back")
        self._last = moment
        return (moment - self._first).total_seconds()


# --- JSON lines -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _JsonFormat:
    title: str
    needed: tuple[str, ...]
    unit_s: float
    block_tokens: int


_MOONCAKE = _JsonFormat("Mooncake", ("timestamp", "input_length", "output_length", "hash_ids"), 1e-3, 512)
_BAILIAN = _JsonFormat("Qwen-Bailian", ("chat_id", "parent_chat_id", *_MOONCAKE.needed), 1.0, 16)


def _read_json(first: tuple[int, str], lines: Iterator[tuple[int, str]], filename: str) -> Iterator[Row]:
    number, line = first
    members = _members(line, filename, number)
    form = _BAILIAN if {"chat_id", "parent_chat_id"} & members.keys() else _MOONCAKE
    clock = TraceClock(form.unit_s)
    talks = _Talks()
    while True:
        name = ""
        try:
            for name in form.needed:
                if name not in members:
                    raise ValueError(
                        f"the member is missing; a trace like {form.title}'s has {', '.join(form.needed)}"
                    )
            name = "timestamp"
            at_s = clock.seconds(_number(members[name]))
            name = "input_length"
            prompt_tokens = _checked_tokens(_whole(members[name]))
            name = "output_length"
            output_tokens = _checked_tokens(_whole(members[name]))
            name = "hash_ids"
            blocks = _blocks(members[name], prompt_tokens, form.block_tokens)
            session = None
            if form is _BAILIAN:
                name = "chat_id"
                chat = _whole(members[name])
                name = "parent_chat_id"
                session = talks.told(chat, _whole(members[name]))
        except ValueError as error:
            column = max(line.find(f'"{name}"'), 0) + 1
            raise TraceError(filename, number, column, name, str(error)) from None
        client = session if form is _BAILIAN else talks.suggested(blocks)
        yield Row(at_s, prompt_tokens, output_tokens, blocks, form.block_tokens, session, client)
        number, line = next(lines, (0, ""))
        if not number:
            return
        members = _members(line, filename, number)


def _members(line: str, filename: str, number: int) -> dict[str, Any]:
    try:
        members = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        message = f"this is no JSON ({error.msg}): was the file cut here?"
        raise TraceError(filename, number, error.colno, "", message) from None
    if not isinstance(members, dict):
        raise TraceError(filename, number, 1, "", "every line must be one JSON object")
    return members


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r:.40} is no number")
    return value


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r:.40} is no whole number")
    return value


def _blocks(value: Any, prompt_tokens: int, block_tokens: int) -> tuple[int, ...]:
    """The ids of whole blocks; the last one of a prompt is mostly a part of one."""
    if not isinstance(value, list) or not set(map(type, value)) <= {int}:
        raise ValueError("expected a list of whole numbers")
    if len(value) > -(-prompt_tokens // block_tokens):
        raise ValueError(
            f"{len(value)} blocks of {block_tokens} tokens are more than a prompt of {prompt_tokens} has"
        )
    return tuple(value[: prompt_tokens // block_tokens])


class _Talks:
    """Which requests belong to one conversation; of the latest 65,536 only, so that memory stays flat."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, int] = OrderedDict()
        self._next = 0

    def told(self, chat: int, parent: int) -> int:
        """By the ids of this request and the one it follows (-1: none): the first one's id."""
        first = self._known.pop(parent, parent if parent >= 0 else chat)
        return self._remember(chat, first)

    def suggested(self, blocks: Sequence[int]) -> int:
        """By what a prompt has before it: the conversation in which an earlier prompt ended with such a block."""
        for block in reversed(blocks):
            talk = self._known.pop(block, None)
            if talk is not None:
                return self._remember(blocks[-1], talk)
        self._next += 1
        return self._remember(blocks[-1], self._next) if blocks else self._next

    def _remember(self, key: int, talk: int) -> int:
        self._known[key] = talk
        if len(self._known) > _MOST_REMEMBERED:
            self._known.popitem(last=False)
        return talk
