"""HTML and SVG as values: elements whose text and attributes are escaped because nothing else can be built.

What comes out is well-formed XML too, so a page can be checked by any parser.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from math import isfinite

Value = str | float | bool | None


class Markup(str):
    """Text that is markup already and is not escaped again."""

    __slots__ = ()


def element(name: str, *children: str, **attributes: Value) -> Markup:
    """`<name attributes>children</name>`. Children that are not Markup are escaped.

    Attributes are written with `-` for `_` and without a trailing one (`class_`); None and False leave them out,
    True writes the bare name, numbers are shortened to what a drawing needs.
    """
    start = name + "".join(map(_attribute, attributes.items()))
    if not children:
        return Markup(f"<{start}/>" if name in _CHILDLESS else f"<{start}></{name}>")
    return Markup(f"<{start}>{join(children)}</{name}>")


def join(parts: Iterable[str]) -> Markup:
    """Pieces of markup and text, one after the other."""
    return Markup("".join(part if isinstance(part, Markup) else _escaped(part) for part in parts))


def number(value: float) -> str:
    """A coordinate with at most two decimals. What is no number (a figure gone wrong) is drawn at 0."""
    if not isfinite(value):
        return "0"
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _escaped(text: str) -> str:
    """`text` for markup. Control characters and half surrogates, which no document may hold, are replaced."""
    if not text.isprintable():
        text = "".join(char if char.isprintable() else " " if char.isspace() else "\ufffd" for char in text)
    return escape(text)


_CHILDLESS = frozenset({
    "meta", "input", "br", "col", "path", "line", "circle", "rect", "polygon", "polyline", "use",
})  # fmt: skip


def _attribute(item: tuple[str, Value]) -> str:
    name, value = item
    if value is None or value is False:
        return ""
    key = name.removesuffix("_").replace("_", "-")
    if value is True:
        return f' {key}=""'
    text = value if isinstance(value, str) else number(value)
    return f' {key}="{_escaped(text)}"'
