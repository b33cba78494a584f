"""What a request body asks, and the one value that an alias rewrites."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gslb.errors import ApiError
from gslb.wire.openai import merge_models, read_json_facts, read_multipart_facts, read_usage, replace_model


def facts(document: Any) -> tuple[str, bool, int]:
    found = read_json_facts(json.dumps(document).encode())
    return found.model, found.is_stream, found.prompt_tokens


def test_model_and_stream() -> None:
    assert facts({"model": "m", "stream": True})[:2] == ("m", True)
    for value in (False, None, 1, "true", "yes"):
        assert facts({"model": "m", "stream": value})[1] is False


BAD_BODIES = [
    b"", b" ", b"{", b"[]", b'"m"', b"null", b"7", b"{}", b'{"model":null}', b'{"model":""}', b'{"model":7}',
    b'{"model":["m"]}', b'{"model":"' + b"m" * 257 + b'"}', b'{"model":"m"} x', b'{"model":"m",}',
    b"\xef\xbb\xbf{}",
    b'{"model":"m\xff"}', b"{'model':'m'}", b'{"model":NaN}', b"[" * 5000, b'{"model":"SECRET',
]  # fmt: skip


@pytest.mark.parametrize("body", BAD_BODIES)
def test_bad_bodies_are_told_without_quoting(body: bytes) -> None:
    with pytest.raises(ApiError) as raised:
        read_json_facts(body)
    assert raised.value.code == "bad_request"
    assert "SECRET" not in raised.value.message


@given(st.binary(max_size=200))
def test_noise_is_refused_or_read_but_never_anything_else(body: bytes) -> None:
    with suppress(ApiError):
        read_json_facts(body)


@pytest.mark.parametrize(
    ("document", "tokens"),
    [
        ({"messages": []}, 0),
        ({"messages": [{"role": "user", "content": "x" * 400}]}, 4 + 101),
        ({"messages": [{"content": [{"type": "text", "text": "x" * 400}, {"type": "image_url"}]}]}, 105),
        ({"messages": [{"content": None}, {}, "odd"]}, 12),
        ({"messages": [{"content": "x" * 40}], "system": "y" * 40}, 4 + 11 + 11),
        ({"messages": [], "tools": [{"name": "x" * 40}]}, 13),
        ({"messages": [{"content": None, "tool_calls": ["x" * 36]}, {"tool_calls": None}]}, 4 + 10 + 4 + 1),
        ({"messages": [{"content": "x" * 40}], "tools": None}, 15),
        ({"prompt": "x" * 40}, 11),
        ({"prompt": ["x" * 40, "y" * 40]}, 22),
        ({"prompt": [1, 2, 3, 4]}, 4),
        ({"prompt": [[1, 2], [3]]}, 3),
        ({"input": [{"role": "user", "content": "x" * 40}]}, 11),
        ({"text_1": "x" * 40}, 11),
        ({"query": "x" * 40, "documents": ["d"]}, 11),
        ({"prompt": "é" * 40}, 21),
        ({"prompt": 7}, 0),
        ({}, 0),
    ],
)  # fmt: skip
def test_prompt_tokens_are_estimated(document: dict[str, Any], tokens: int) -> None:
    assert facts({"model": "m", **document})[2] == tokens


@pytest.mark.parametrize("depth", [10, 300, 900, 1000])
@pytest.mark.parametrize(("start", "end"), [(b"[", b"]"), (b'{"text":', b"}"), (b'[{"content":', b"}]")])
def test_deep_nesting_is_no_way_to_raise(depth: int, start: bytes, end: bytes) -> None:
    body = b'{"model":"m","prompt":' + start * depth + b"1" + end * depth + b"}"
    with suppress(ApiError):  # the parser has a depth of its own
        assert read_json_facts(body).prompt_tokens <= 1


# --- aliases ------------------------------------------------------------------------------------------

NUMBERS = st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False)
NAMES = st.text(max_size=6) | st.just("model")
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=80, deadline=None)
@given(
    before=st.dictionaries(st.text(max_size=8), JSON, max_size=4),
    after=st.dictionaries(st.text(max_size=8), JSON, max_size=4),
    model=st.text(min_size=1, max_size=20),
    indent=st.sampled_from([None, 0, 2]),
    is_ascii=st.booleans(),
)
def test_only_the_models_value_changes(
    before: dict[str, Any], after: dict[str, Any], model: str, indent: int | None, is_ascii: bool
) -> None:
    before.pop("model", None)
    after.pop("model", None)
    try:
        marked = json.dumps(
            {**before, "model": "\x00mark", **after}, indent=indent, ensure_ascii=is_ascii
        ).encode()
    except UnicodeEncodeError:
        return  # a lone surrogate is no UTF-8
    mark = json.dumps("\x00mark", ensure_ascii=is_ascii).encode()
    if marked.count(mark) != 1:
        return
    assert replace_model(marked, model) == marked.replace(mark, orjson.dumps(model))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"model":"a"}', b'{"model":"b"}'),
        (b' { "model" :\t"a" } ', b' { "model" :\t"b" } '),
        (b'{"mod\\u0065l":"a"}', b'{"mod\\u0065l":"b"}'),
        (b'{"model":"a","model":"c"}', b'{"model":"b","model":"b"}'),
        (b'{"x":{"model":"a"},"model":"a"}', b'{"x":{"model":"a"},"model":"b"}'),
        (b'{"x":["model","a"],"model":"a"}', b'{"x":["model","a"],"model":"b"}'),
        (b'{"x":"\\"model\\":\\"a\\"","model":"a"}', b'{"x":"\\"model\\":\\"a\\"","model":"b"}'),
        (b'{"x":"model","model":"a"}', b'{"x":"model","model":"b"}'),
        (b'{"model":{"model":1},"model":"a"}', b'{"model":{"model":1},"model":"b"}'),
        (b'{"x":"\\\\","model":"a"}', b'{"x":"\\\\","model":"b"}'),
        (b'{"x":1e5,"y":-0.10,"model":"a","z":true}', b'{"x":1e5,"y":-0.10,"model":"b","z":true}'),
    ],
)
def test_replace_model(body: bytes, expected: bytes) -> None:
    assert replace_model(body, "b") == expected
    assert read_json_facts(replace_model(body, "b")).model == "b"


def test_a_long_prompt_is_passed_over_at_once() -> None:
    prompt = b"x\\n" * 2_000_000
    body = b'{"prompt":"' + prompt + b'","model":"a"}'
    assert replace_model(body, "b") == b'{"prompt":"' + prompt + b'","model":"b"}'


# --- forms --------------------------------------------------------------------------------------------


def form(*parts: tuple[str, bytes], boundary: bytes = b"b0") -> bytes:
    pieces = [
        b"--%b\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n" % (boundary, head.encode(), value)
        for head, value in parts
    ]
    return b"".join(pieces) + b"--%b--\r\n" % boundary


@pytest.mark.parametrize(
    "content_type", [b"multipart/form-data; boundary=b0", b'multipart/form-data; boundary="b0"']
)
def test_a_form(content_type: bytes) -> None:
    body = form(
        ('name="file"; filename="model"', b"\x00\r\n\xff"), ('name="model"', b"m"), ('name="stream"', b"true")
    )
    found = read_multipart_facts(body, content_type)
    assert (found.model, found.is_stream) == ("m", True)


def test_forms_without_a_model_or_boundary() -> None:
    for body, content_type in [
        (form(('name="file"', b"x")), b"multipart/form-data; boundary=b0"),
        (form(('name="model"', b"m")), b"multipart/form-data"),
        (form(('name="model"', b"m")), b"multipart/form-data; boundary=other"),
        (form(('name="model"', b"")), b"multipart/form-data; boundary=b0"),
        (form(('name="model"', b"m" * 257)), b"multipart/form-data; boundary=b0"),
        (b"", b"multipart/form-data; boundary=b0"),
    ]:
        with pytest.raises(ApiError, match=r"form|boundary"):
            read_multipart_facts(body, content_type)


@given(st.binary(max_size=200))
def test_noise_in_a_form(body: bytes) -> None:
    with suppress(ApiError):
        read_multipart_facts(body, b"multipart/form-data; boundary=b0")


# --- models and usage ---------------------------------------------------------------------------------


def test_the_merged_list() -> None:
    cards: list[dict[str, Any]] = [
        {"id": "b", "created": 9, "max_model_len": 8192, "extra": 1},
        {"id": "a", "owned_by": "me", "created": "odd"},
        {"id": "b", "created": 5, "max_model_len": 4096, "other": 2},
    ]
    merged = merge_models(cards, {"alias": "b", "dead": "absent", "a": "b"})
    assert [entry["id"] for entry in merged] == ["a", "alias", "b"]
    by_id = {entry["id"]: entry for entry in merged}
    assert by_id["b"] == {
        "id": "b", "object": "model", "created": 5, "max_model_len": 4096, "extra": 1, "other": 2,
        "owned_by": "vllm",
    }  # fmt: skip
    assert by_id["alias"] == {**by_id["b"], "id": "alias"}
    assert by_id["a"]["owned_by"] == "me"
    assert by_id["a"]["created"] == 0
    assert [entry["id"] for entry in merge_models(cards, {"alias": "b"}, frozenset({"alias"}))] == ["alias"]
    assert cards[0] == {"id": "b", "created": 9, "max_model_len": 8192, "extra": 1}, "left as it was"


VLLM_USAGE = b'"usage":{"prompt_tokens":6,"total_tokens":10,"completion_tokens":4'


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        (b'"usage":{"prompt_tokens":7,"completion_tokens":3}', (7, 3, None)),
        (b'"usage" : { "input_tokens": 7, "output_tokens": 3}', (7, 3, None)),
        (b'"usage":{"prompt_tokens":1}} ... "usage":{"prompt_tokens":2,"completion_tokens":5}', (2, 5, None)),
        (b'"usage":null', (None, None, None)),
        (b'"usage":{"prompt_tokens":' + b"9" * 5000 + b',"completion_tokens":3}', (None, 3, None)),
        (b'{"text":"\\"usage\\":{\\"prompt_tokens\\":9}"}', (None, None, None)),
        (b'"usage":{"prompt_tokens":7', (None, None, None)),  # half a number is no number
        (b'"usage":{"input_tokens":7,"input_tokens_details":{"cached_tokens":3', (None, None, None)),
        (b"", (None, None, None)),
        (b'"usage"', (None, None, None)),
        # as vLLM 0.32 writes it
        (VLLM_USAGE + b"}", (6, 4, None)),
        (VLLM_USAGE + b',"completion_tokens_details":null}', (6, 4, None)),
        (VLLM_USAGE + b',"prompt_tokens_details":null,"completion_tokens_details":null}', (6, 4, None)),
        (VLLM_USAGE + b',"prompt_tokens_details":{"cached_tokens":5,"created_cache_tokens":null}}', (6, 4, 5)),
        (VLLM_USAGE + b',"prompt_tokens_details":{"cached_tokens":5}}', (6, 4, 5)),
        (
            b'"usage":{"input_tokens":6,"input_tokens_details":{"cached_tokens":2,"cached_tokens_per_turn":[]},'
            b'"output_tokens":4,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":10}',
            (6, 4, 2),
        ),
        # as others might
        (VLLM_USAGE + b',"prompt_tokens_details":{"audio_tokens":0,"cached_tokens":5}}', (6, 4, 5)),
        (b'"usage": {"prompt_tokens_details": {"cached_tokens": 5}, "prompt_tokens": 6}', (6, None, 5)),
        (b'"usage":{"prompt_tokens":6,"prompt_tokens_details":{"cached_tokens":-1}}', (6, None, None)),
    ],
)
def test_usage(tail: bytes, expected: tuple[int | None, int | None, int | None]) -> None:
    assert read_usage(tail) == expected


@given(st.binary(max_size=100))
def test_usage_of_noise(tail: bytes) -> None:
    read_usage(b'"usage":{' + tail)
