from __future__ import annotations

import math
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gslb.config.scalars import ScalarTrap, resolve_plain


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None), ("~", None), ("null", None), ("NULL", None),
        ("true", True), ("False", False), ("TRUE", True),
        ("0", 0), ("-12", -12), ("+7", 7), ("0o17", 15), ("0xfF", 255),
        ("1.5", 1.5), (".5", 0.5), ("1e3", 1000.0), ("-1.", -1.0), ("2E-2", 0.02),
        (".inf", math.inf), ("-.INF", -math.inf),
        ("eu", "eu"), ("2026-01-01", "2026-01-01"), ("1.2.3", "1.2.3"), ("127.0.0.1:80", "127.0.0.1:80"),
        ("2001:db8::/32", "2001:db8::/32"), ("nope", "nope"), ("_1", "_1"), ("5s", "5s"), ("nan", "nan"),
        ("1" * 30 + "x", "1" * 30 + "x"), ("8080:80", "8080:80"), ("tRue ", "tRue "),
    ],
)  # fmt: skip
def test_core_schema(text: str, value: object) -> None:
    found = resolve_plain(text)
    assert found == value
    assert type(found) is type(value)


def test_not_a_number_is_a_number() -> None:
    found = resolve_plain(".nan")
    assert isinstance(found, float)
    assert math.isnan(found)


@pytest.mark.parametrize(
    "text",
    [
        "1_000",
        "0x_ff",
        "1_0.5",
        "0b101",
        "9" * 41,
        "0_7",
        "yes",
        "No",
        "ON",
        "off",
        "y",
        "N",
        "tRUE",
        "0100",
        "-007",
        "00",
        "12:30:00",
        "1:59",
        "190:20:30.15",
        ".0_",
        ".1_0e+3",
    ],
)
def test_traps_are_refused_with_a_hint(text: str) -> None:
    with pytest.raises(ScalarTrap, match="quote it"):
        resolve_plain(text)


@given(st.text(alphabet="0123456789_:.+-xobeEyYnNtfalsnuI~", max_size=12))
def test_what_yaml_1_1_reads_as_something_else_is_never_text(text: str) -> None:
    """PyYAML's own resolver follows YAML 1.1: where it sees a boolean, number or null, we see no text."""
    yaml_1_1: Any = yaml.SafeLoader("")
    tag: str = yaml_1_1.resolve(yaml.ScalarNode, text, (True, False))
    try:
        value = resolve_plain(text)
    except ScalarTrap:
        return
    is_1_1_text = tag.rsplit(":", 1)[1] in ("str", "timestamp", "merge", "value")
    if isinstance(value, str):
        assert is_1_1_text, (text, tag)
    elif not is_1_1_text and not isinstance(value, float):
        assert yaml.safe_load(text) == value
