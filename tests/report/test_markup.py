"""Elements: what is not markup is escaped, whatever it is."""

from __future__ import annotations

from math import inf, nan
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gslb.report.markup import Markup, element, join, number


@settings(deadline=None)
@given(st.text(), st.text())
def test_any_text_survives_as_text(child: str, attribute: str) -> None:
    told = ElementTree.fromstring(element("p", child, title=attribute))
    assert told.tag == "p"
    assert list(told) == []
    if child.isprintable():
        assert (told.text or "") == child
    if attribute.isprintable():
        assert told.get("title") == attribute
    element("p", child, title=attribute).encode("utf-8")


def test_markup_is_not_escaped_again() -> None:
    assert element("p", "a<b", element("b", "c")) == "<p>a&lt;b<b>c</b></p>"
    assert join(["<", Markup("<br/>")]) == "&lt;<br/>"


def test_attributes() -> None:
    made = element("input", class_="a", aria_label="b", checked=True, hidden=False, value=None, x=1.50)
    assert made == '<input class="a" aria-label="b" checked="" x="1.5"/>'
    assert element("td") == "<td></td>"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.001, "0"),
        (1.005, "1"),
        (12.346, "12.35"),
        (-3.5, "-3.5"),
        (100, "100"),
        (nan, "0"),
        (inf, "0"),
    ],
)
def test_coordinates(value: float, text: str) -> None:
    assert number(value) == text
