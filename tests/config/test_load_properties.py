"""No text makes loading raise anything but ConfigErrors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gslb.config.json_schema import config_json_schema
from tests.config.texts import refusal_of

EXAMPLE = (Path(__file__).parents[2] / "config" / "example.yaml").read_text("utf-8")
WITHOUT_PROSE = "\n".join(line for line in EXAMPLE.splitlines() if not line.lstrip().startswith("#"))


def load_or_refuse(text: str) -> None:
    problems = refusal_of(text, {"K": "key"}, Path("/nonexistent"))
    assert problems != [], "refused without a reason"
    for problem in problems or ():
        assert problem.message
        assert "\n" not in str(problem)
        assert problem.line >= 1
        assert problem.col >= 1


_KEYS = sorted(
    {key for part in config_json_schema()["$defs"].values() for key in part["properties"]}
    | set(config_json_schema()["properties"])
)
_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 100_000)
    | st.floats()
    | st.sampled_from(
        ["eu", "K", "5s", "0s", "32KiB", "DE", "EU", "aws:us-east-1", "127.0.0.1:80", "http://a", "a\nb"]
    )
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(_KEYS) | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(_KEYS), _VALUES, max_size=6))
def test_any_tree(tree: dict[str, Any]) -> None:
    load_or_refuse(json.dumps(tree))


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60))
def test_any_text(text: str) -> None:
    load_or_refuse(text)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_good_file_with_one_piece_replaced(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(WITHOUT_PROSE)))
    end = data.draw(st.integers(start, min(start + 12, len(WITHOUT_PROSE))))
    piece = data.draw(st.text(alphabet="aZ0:-[]{}&*!|>'\"# \n\t,~_.", max_size=6))
    load_or_refuse(WITHOUT_PROSE[:start] + piece + WITHOUT_PROSE[end:])


def test_a_file_cut_at_every_third_byte() -> None:
    for end in range(0, len(WITHOUT_PROSE), 3):
        load_or_refuse(WITHOUT_PROSE[:end])
