from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gslb.config import yaml_source
from gslb.config.yaml_source import Source, parse_yaml


@pytest.fixture(params=["libyaml", "python"], autouse=True)
def _both_parsers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python":
        monkeypatch.setattr(yaml_source, "_LOADER", yaml.SafeLoader)


def found(text: str) -> list[tuple[int, int, str]]:
    return [(problem.line, problem.col, problem.path) for problem in parse_yaml(text, "f").problems]


def good(text: str) -> Source:
    source = parse_yaml(text, "f")
    assert source.problems == []
    return source


def test_values_and_positions() -> None:
    source = good("a: 1\nb:\n  - x\n  - {c: 'NO', d: [2, 0x10]}\ne: |\n  yes\n  no\nf: !!str 012\n")
    assert source.plain() == {
        "a": 1, "b": ["x", {"c": "NO", "d": [2, 16]}], "e": "yes\nno\n", "f": "012",
    }  # fmt: skip
    place = source.locate(("b", 1, "d", 1))
    assert place is not None
    assert place.node.mark == (4, 22)
    deepest = source.locate(("b", 1, "zz", "y"))
    assert deepest is not None
    assert deepest.path == ("b", 1)
    assert [path for path, _ in source.find("b", "*", "d", "*")] == [("b", 1, "d", 0), ("b", 1, "d", 1)]


def test_a_bom_and_windows_line_ends_shift_nothing() -> None:
    source = good("\ufeffa: 1\r\nb: x\r\n")
    assert source.plain() == {"a": 1, "b": "x"}
    place = source.locate(("b",))
    assert place is not None
    assert place.node.mark == (2, 4)


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n", "~\n", "null"])
def test_an_empty_file(text: str) -> None:
    source = parse_yaml(text, "f")
    assert source.root is None
    assert len(source.problems) == 1


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("- a\n", (1, 1, "")),
        ("just text", (1, 1, "")),
        ("a: 1\n---\nb: 2\n", (2, 1, "")),
        ("a: [1\n", (2, 1, "")),
        ("a: b: c\n", (1, 5, "")),
        ("a:\n\tb: 1\n", (2, 1, "")),
        ("a: *gone\n", (1, 4, "")),
        ("a: &x [*x]\n", (1, 8, "")),
        ("&k a: 1\n*k : 2\n", (2, 1, "")),
        ("? [a]\n: b\n", (1, 3, "")),
        ("a: \x07\n", (1, 4, "")),
        ("a: 1\nb: \ud800\n", (2, 4, "")),
        ("a: " + "[" * 40 + "]" * 40, (1, 35, "")),
    ],
)
def test_what_stops_the_reading(text: str, where: tuple[int, int, str]) -> None:
    source = parse_yaml(text, "f")
    assert source.root is None
    line, col, path = found(text)[0]
    if text == "a: [1\n":  # the two parsers place the end of the text differently
        line, col = where[:2]
    assert (line, col, path) == where
    assert len(source.problems) == 1


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a: 1\na: 2\n", (2, 1, "a")),
        ("x: {a: 1, b: 2, a: 3}\n", (1, 17, "x.a")),
        ("no: 1\n", (1, 1, "no")),
        ("x: {1: a}\n", (1, 5, "x.1")),
        ("x: {~: a}\n", (1, 5, 'x["~"]')),
        ("x: [a, NO]\n", (1, 8, "x[1]")),
        ("x: {<<: {a: 1}}\n", (1, 5, 'x["<<"]')),
        ("x: !!int '3'\n", (1, 4, "x")),
        ("x: !thing {a: 1}\n", (1, 4, "x")),
    ],
)
def test_flaws_that_do_not_stop_the_reading(text: str, where: tuple[int, int, str]) -> None:
    assert found(text) == [where]
    assert parse_yaml(text, "f").root is not None


def test_quoting_is_the_way_out() -> None:
    good("'no': 'yes'\n\"<<\": \"0100\"\n'1': '1e3'\n")


def test_a_tab_between_tokens_is_refused_whichever_parser_reads() -> None:
    for text in ("a:\tb\n", "a: [\n\tb]\n"):
        assert any("tab" in problem.message for problem in parse_yaml(text, "f").problems)
    good("a: 'x\ty'  # comment\twith a tab\n")


def test_aliases_share_values_but_cannot_explode() -> None:
    assert good("a: &x {k: [1]}\nb: *x\n").plain() == {"a": {"k": [1]}, "b": {"k": [1]}}
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    source = parse_yaml("\n".join(lines), "f")
    assert source.root is None
    assert "aliases expanded" in source.problems[0].message


_YAML = """\
listen: 127.0.0.1:8080   # comment
regions:
  "eu": &r {location: 'x', list: [1, no, {a: *q}]}
  us:
    - - nested: |
          block
      other: >-
          folded
"""


def test_a_file_cut_anywhere_never_raises() -> None:
    for end in range(len(_YAML) + 1):
        parse_yaml(_YAML[:end], "f")


@settings(max_examples=200)
@given(st.text(alphabet="ab:-[]{}&*!|>'\"#%@`,? \n\t\r~0_x<é\u2028\x85\x00", max_size=40))
def test_no_text_raises(text: str) -> None:
    source = parse_yaml(text, "f")
    assert source.root is not None or len(source.problems) >= 1
    lines = text.count("\n") + text.count("\r") + text.count("\u2028") + text.count("\x85") + 2
    assert all(1 <= problem.line <= lines and problem.col >= 1 for problem in source.problems)
