"""What an unquoted YAML scalar means: the core schema of YAML 1.2.2 section 10.3, without YAML 1.1's traps.

Texts that YAML 1.1 parsers read as something else than they look (`no`, `0100`, `12:30:00`, `1_000`) are
refused rather than read either way: whoever wrote them may have had either version in mind.
"""

from __future__ import annotations

import re

Plain = str | int | float | bool | None

_NULL = frozenset(("", "~", "null", "Null", "NULL"))
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_INFINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)")
_NAN = frozenset((".nan", ".NaN", ".NAN"))

_OLD_BOOL = frozenset(("yes", "no", "on", "off", "y", "n", "true", "false"))
_OLD_OCTAL = re.compile(r"[-+]?0[0-9_]+")
_OLD_BINARY = re.compile(r"[-+]?0b[01_]+")
_OLD_BASE_60 = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?")
_OLD_UNDERSCORE = re.compile(
    r"[-+]?(?=[^_]*_)(?:0x[0-9a-fA-F_]+|(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?)"
)
_LONGEST_NUMBER = 40


class ScalarTrap(ValueError):
    """An unquoted text that YAML versions read differently. `reading` completes "<the text> is ..."."""

    def __init__(self, reading: str, other_remedy: str = "") -> None:
        super().__init__(f"is {reading}: quote it{other_remedy}")
        self.reading = reading


def resolve_plain(text: str) -> Plain:
    """The value of the unquoted scalar `text`. Raises ScalarTrap for the traps of YAML 1.1."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    _refuse_traps(text)
    if len(text) > _LONGEST_NUMBER:
        return text
    if _INT.fullmatch(text):
        return int(text)
    if _OCTAL.fullmatch(text):
        return int(text[2:], 8)
    if _HEX.fullmatch(text):
        return int(text[2:], 16)
    if _INFINITE.fullmatch(text) or text in _NAN:
        return float(text.replace(".", "", 1))
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def _refuse_traps(text: str) -> None:
    if text.lower() in _OLD_BOOL:
        raise ScalarTrap("a boolean in YAML 1.1", ", or write true or false")
    if _OLD_OCTAL.fullmatch(text):
        raise ScalarTrap("an octal number in YAML 1.1", " or drop the leading zero")
    if _OLD_BASE_60.fullmatch(text):
        raise ScalarTrap("a number to base 60 in YAML 1.1")
    if _OLD_BINARY.fullmatch(text):
        raise ScalarTrap("a binary number in YAML 1.1", " or write it in decimal")
    if _OLD_UNDERSCORE.fullmatch(text):
        raise ScalarTrap("a number in YAML 1.1", " or write it without _")
    if len(text) > _LONGEST_NUMBER and any(number.fullmatch(text) for number in (_INT, _HEX, _OCTAL)):
        raise ScalarTrap("a number too long to keep exactly")
