"""Recorded traces: each format however its bytes are cut, and everything that may be wrong with one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gslb.sim.trace_lines import TraceError
from gslb.sim.traces import Row, read_trace

AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens\r
2023-11-16 18:17:03.9799600,4808,10\r
2023-11-16 18:17:04.0319600,3180,8\r
2023-11-16 18:17:04.0319600,110,0"""

BURST = """\
Timestamp,Session ID,Model,Request tokens,Response tokens,Total tokens,Log Type
5,,ChatGPT,472,18,490,Conversation log
45,7,GPT-4,1087,230,1317,"API log, batched"
45,7,GPT-4,417,0,417,API log
"""

MOONCAKE = """\
{"timestamp": 0, "input_length": 1500, "output_length": 52, "hash_ids": [46, 47, 48]}
{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [46]}
{"timestamp": 3003, "input_length": 2100, "output_length": 9, "hash_ids": [46, 47, 60, 61, 62]}
"""

BAILIAN = """\
{"chat_id": 0, "parent_chat_id": -1, "timestamp": 61.5, "input_length": 34, "output_length": 8, "type": "text", \
"turn": 1, "hash_ids": [1, 2, 3]}
{"chat_id": 1, "parent_chat_id": -1, "timestamp": 62, "input_length": 5, "output_length": 8, "type": "search", \
"turn": 1, "hash_ids": [4]}
{"chat_id": 2, "parent_chat_id": 0, "timestamp": 75.25, "input_length": 50, "output_length": 3, "type": "text", \
"turn": 2, "hash_ids": [1, 2, 5, 6]}
{"chat_id": 9, "parent_chat_id": 2, "timestamp": 80, "input_length": 60, "output_length": 3, "type": "text", \
"turn": 3, "hash_ids": [1, 2, 5, 7]}
"""

ALL = {"azure": AZURE, "burst": BURST, "mooncake": MOONCAKE, "bailian": BAILIAN}


def rows_of(text: str) -> list[Row]:
    return list(read_trace([text.encode()], "t"))


def error_of(text: str | bytes) -> TraceError:
    content = text.encode() if isinstance(text, str) else text
    with pytest.raises(TraceError) as caught:
        list(read_trace([content], "trace.csv"))
    return caught.value


def test_azure() -> None:
    rows = rows_of(AZURE)
    assert [row.at_s for row in rows] == pytest.approx([0, 0.052, 0.052])
    assert [(row.prompt_tokens, row.output_tokens) for row in rows] == [(4808, 10), (3180, 8), (110, 1)]
    assert {(row.blocks, row.session, row.client) for row in rows} == {((), None, None)}


def test_azure_with_offsets_as_in_the_traces_of_2024() -> None:
    rows = rows_of(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n"
        "2024-05-10 00:00:01.009930+00:00,2399,6\n"
    )
    assert [row.at_s for row in rows] == [0.0, 1.0]


def test_burstgpt() -> None:
    rows = rows_of(BURST)
    assert [row.at_s for row in rows] == [0, 40, 40]
    assert [(row.prompt_tokens, row.output_tokens) for row in rows] == [(472, 18), (1087, 230), (417, 1)]
    assert rows[0].session is None
    assert rows[1].session == rows[2].session is not None


def test_burstgpt_without_sessions() -> None:
    rows = rows_of("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,M,4,1,5,x\n")
    assert (rows[0].prompt_tokens, rows[0].session) == (4, None)


def test_mooncake() -> None:
    rows = rows_of(MOONCAKE)
    assert [row.at_s for row in rows] == [0, 0, 3.003]
    assert [row.blocks for row in rows] == [(46, 47), (46,), (46, 47, 60, 61)]
    assert {(row.block_tokens, row.session) for row in rows} == {(512, None)}
    assert rows[0].client == rows[2].client != rows[1].client


def test_bailian() -> None:
    rows = rows_of(BAILIAN)
    assert [row.at_s for row in rows] == [0, 0.5, 13.75, 18.5]
    assert [row.blocks for row in rows] == [(1, 2), (), (1, 2, 5), (1, 2, 5)]
    assert [row.session for row in rows] == [0, 1, 0, 0]
    assert {row.block_tokens for row in rows} == {16}


@pytest.mark.parametrize("text", ALL.values(), ids=ALL)
def test_cut_into_chunks_at_each_byte(text: str) -> None:
    whole = rows_of(text)
    content = text.encode()
    for cut in range(len(content) + 1):
        assert list(read_trace([content[:cut], content[cut:]], "t")) == whole
    assert list(read_trace([content[i : i + 1] for i in range(len(content))], "t")) == whole


@pytest.mark.parametrize("text", ALL.values(), ids=ALL)
def test_ends_at_each_byte(text: str) -> None:
    """A file that was cut yields what is whole, and at most a last number that lost digits; else an error."""
    whole = rows_of(text)
    content = text.encode()
    for cut in range(len(content)):
        rows: list[Row] = []
        with suppress(TraceError):
            rows.extend(read_trace([content[:cut]], "t"))
        assert rows[:-1] == whole[: max(len(rows) - 1, 0)]


@pytest.mark.parametrize("text", ALL.values(), ids=ALL)
def test_a_byte_order_mark_blank_lines_and_either_line_end(text: str) -> None:
    lines = text.replace("\r", "").splitlines()
    assert rows_of("\ufeff" + "\r\n".join(lines) + "\r\n\r\n") == rows_of("\n\n".join(lines))


@pytest.mark.parametrize(
    ("text", "line", "column", "name", "words"),
    [
        ("", 1, 1, "", "the file is empty"),
        (" \n\n", 1, 1, "", "the file is empty"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", 1, 1, "", "no request below the column names"),
        ("TIMESTAMP,GeneratedTokens\nx", 1, 1, "ContextTokens", "the column is missing"),
        ("Timestamp,Model,Request tokens\n1,m,2", 1, 1, "Response tokens", "BurstGPT's has Timestamp, Request"),
        ("a,b,c\n1,2,3\n", 1, 1, "", "no known trace"),
        (AZURE + "\n2023-11-16 18:17:05.0,5", 5, 1, "", "2 fields where the first line names 3"),
        (AZURE + "\n2023-11-16 18:17:05.0,5,x", 5, 25, "GeneratedTokens", "'x' is no whole number"),
        (AZURE + "\n2023-11-16 18:17:05.0,-5,1", 5, 23, "ContextTokens", "-5 is negative"),
        (AZURE + "\n2023-11-16 18:17:05.0,99999999999,1", 5, 23, "ContextTokens", "more than any model takes"),
        (AZURE + "\n2023-11-16 18:17:04.0,5,1", 5, 1, "TIMESTAMP", "must not go back"),
        (AZURE + "\n1700158625.5,5,1", 5, 1, "TIMESTAMP", "is no date and time"),
        (AZURE + "\n2023-11-16 18:17:05.0+00:00,5,1", 5, 1, "TIMESTAMP", "some times have an offset"),
        (BURST + "46,7,GPT-4,1.5,4,5,API log", 5, 12, "Request tokens", "'1.5' is no whole number"),
        (BURST + "x,7,GPT-4,1,4,5,API log", 5, 1, "Timestamp", "'x' is no number"),
        (BURST + "nan,7,GPT-4,1,4,5,API log", 5, 1, "Timestamp", "nan is no time"),
        (BURST + "44,7,GPT-4,1,4,5,API log", 5, 1, "Timestamp", "44 comes after 45: times must not go back"),
        (BURST + "46000,7,GPT-4,1,4,5,API log", 5, 1, "Timestamp", "the unit changes here by 1000"),
        (BURST + "1700158625,7,GPT-4,1,4,5,API log", 5, 1, "Timestamp", "from here on they are dates"),
        (MOONCAKE + "{", 4, 2, "", "no JSON"),
        (MOONCAKE + "[1]", 4, 1, "", "one JSON object"),
        (MOONCAKE + '{"timestamp": 4000, "input_length": 1}', 4, 1, "output_length", "the member is missing"),
        (
            MOONCAKE + '{"timestamp": "4", "input_length": 1, "output_length": 1, "hash_ids": []}',
            4, 2, "timestamp", "'4' is no number",
        ),
        (
            MOONCAKE + '{"timestamp": -4, "input_length": 1, "output_length": 1, "hash_ids": []}',
            4, 2, "timestamp", "-4 is no time",
        ),
        (
            MOONCAKE + '{"timestamp": 3.1, "input_length": 1, "output_length": 1, "hash_ids": []}',
            4, 2, "timestamp", "3.1 comes after 3003: the unit changes here by 1000",
        ),
        (
            MOONCAKE + '{"timestamp": 3100, "input_length": true, "output_length": 1, "hash_ids": []}',
            4, 21, "input_length", "True is no whole number",
        ),
        (
            MOONCAKE + '{"timestamp": 3100, "input_length": 3, "output_length": -1, "hash_ids": []}',
            4, 40, "output_length", "-1 is negative",
        ),
        (
            MOONCAKE + '{"timestamp": 3100, "input_length": 513, "output_length": 1, "hash_ids": [1, 2, 3]}',
            4, 62, "hash_ids", "3 blocks of 512 tokens are more than a prompt of 513 has",
        ),
        (
            MOONCAKE + '{"timestamp": 3100, "input_length": 3, "output_length": 1, "hash_ids": ["a"]}',
            4, 60, "hash_ids", "a list of whole numbers",
        ),
        (
            BAILIAN + '{"chat_id": "x", "parent_chat_id": 0, "timestamp": 81, "input_length": 1, '
            '"output_length": 1, "hash_ids": []}',
            5, 2, "chat_id", "'x' is no whole number",
        ),
        (BAILIAN + '{"chat_id": 4}', 5, 1, "parent_chat_id", "Qwen-Bailian's has chat_id, parent_chat_id"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_place(text: str, line: int, column: int, name: str, words: str) -> None:
    error = error_of(text)
    assert (error.line, error.column, error.name) == (line, column, name)
    assert words in str(error)
    assert str(error).startswith(f"trace.csv:{line}:{column}{' ' + name if name else ''}: ")


def test_bytes_that_are_no_text() -> None:
    error = error_of(b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023\xff")
    assert (error.line, error.column) == (2, 5)
    assert "0xff is not UTF-8" in error.message


def test_an_endless_line_is_given_up() -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield b"x" * (1 << 20)

    with pytest.raises(TraceError, match="is it a trace"):
        list(read_trace(endless(), "t"))


def mooncake_line(timestamp: float, length: int = 100) -> str:
    return f'{{"timestamp": {timestamp}, "input_length": {length}, "output_length": 5, "hash_ids": [1]}}\n'


@pytest.mark.parametrize(("first", "unit_s"), [(1.7e9, 1.0), (1.7e12, 1e-3), (1.7e15, 1e-6)])
def test_dates_since_1970_are_read_in_the_unit_their_size_tells(first: float, unit_s: float) -> None:
    rows = rows_of("".join(mooncake_line(int(first + n * 2 / unit_s)) for n in range(3)))
    assert [row.at_s for row in rows] == pytest.approx([0, 2, 4])


def test_dates_that_change_their_unit() -> None:
    error = error_of(
        mooncake_line(1_700_000_000) + mooncake_line(1_700_000_001) + mooncake_line(1_700_000_002_000)
    )
    assert (error.line, error.name) == (3, "timestamp")
    assert "the unit changes here by 1000: one file, one unit" in error.message


@pytest.mark.parametrize("scale", [1000.0, 0.001])
def test_a_unit_that_changes_in_the_middle(scale: float) -> None:
    times = [n * 250 for n in range(400)]
    changed = [*times[:300], *(round(time * scale, 3) for time in times[300:])]
    error = error_of("".join(mooncake_line(time) for time in changed))
    assert (error.line, error.name) == (301, "timestamp")
    assert "unit" in error.message


def test_pauses_are_no_change_of_unit() -> None:
    rows = rows_of("".join(mooncake_line(time) for time in (0, 3, 3003, 9000, 9_000_000, 12_000_000, 40_000_000)))
    assert rows[-1].at_s == 40_000


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=50), st.data())
def test_whatever_is_written_is_read(times: list[int], data: st.DataObject) -> None:
    times.sort()
    lengths = [data.draw(st.integers(1, 5000)) for _ in times]
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
        f"2023-11-16 {18 + time // 3_600_000:02d}:{time // 60_000 % 60:02d}:{time // 1000 % 60:02d}."
        f"{time % 1000:03d}0000,{length},{length + 1}\n"
        for time, length in zip(times, lengths, strict=True)
    )
    rows = rows_of(text)
    assert [row.at_s for row in rows] == pytest.approx([(time - times[0]) / 1000 for time in times])
    assert [row.prompt_tokens for row in rows] == lengths


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_no_bytes_lead_to_another_error(content: bytes) -> None:
    with suppress(TraceError):
        list(read_trace([content], "t"))


@given(st.sampled_from(sorted(ALL)), st.integers(0, 400), st.binary(min_size=1, max_size=3))
def test_no_damage_leads_to_another_error(name: str, at: int, damage: bytes) -> None:
    content = ALL[name].encode()
    try:
        rows = list(read_trace([content[:at] + damage + content[at + len(damage) :]], "t"))
    except TraceError:
        return
    assert all(before.at_s <= after.at_s for before, after in pairwise(rows))
    assert all(row.prompt_tokens > 0 and row.output_tokens > 0 for row in rows)


def test_conversations_are_remembered_for_a_while_only() -> None:
    def lines() -> Iterator[bytes]:
        for number in range(70_000):
            yield (
                b'{"chat_id": %d, "parent_chat_id": %d, "timestamp": 1, "input_length": 1, "output_length": 1, '
                b'"hash_ids": []}\n' % (number, -1 if number < 69_999 else 0)
            )

    *_, last = read_trace(lines(), "t")
    assert last.session == 0  # forgotten, and still its parent's number


SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces"


@pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared/data/traces")
@pytest.mark.parametrize(
    ("name", "count", "span_s", "prompt", "output"),
    [
        ("AzureLLMInferenceTrace_code.csv", 8819, 3436, 2048, 28),
        ("AzureLLMInferenceTrace_conv.csv", 19366, 3502, 1155, 211),
        ("mooncake_conversation_trace.jsonl", 12031, 3537, 12035, 343),
        ("mooncake_synthetic_trace.jsonl", 3993, 1022, 15325, 149),
    ],
)
def test_the_published_files(name: str, count: int, span_s: float, prompt: float, output: float) -> None:
    rows = list(read_trace([(SHARED / name).read_bytes()], name))
    assert len(rows) == count
    assert rows[-1].at_s == pytest.approx(span_s, abs=1)
    assert sum(row.prompt_tokens for row in rows) / count == pytest.approx(prompt, abs=1)
    assert sum(row.output_tokens for row in rows) / count == pytest.approx(output, abs=1)
