"""pydantic's errors in plain words, with a suggestion where a name was misspelt."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ValidationError

from gslb.config.json_schema import known_keys
from gslb.config.problems import KeyPath, is_secret_path, shown
from gslb.config.schema import Config
from gslb.config.yaml_source import Node, Source, kind_of

_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a smaller whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
_LIMITS = {
    "greater_than": ("must be more than", "gt"),
    "greater_than_equal": ("must be at least", "ge"),
    "less_than": ("must be less than", "lt"),
    "less_than_equal": ("must be at most", "le"),
}
_FORMS = {
    "^/[!-~]*$": "a path starts with / and has no spaces",
}
_NAME_FORM = "a name has letters, digits, '.', '_' and '-', starts with a letter or digit, at most 63 long"


def suggestion(wrong: str, known: Iterable[str]) -> str:
    """`: did you mean 'eu'?` for the nearest of `known`; all of them when none is near and they are few."""
    names = sorted(set(known))
    by_lower = {name.lower(): name for name in names}
    near = difflib.get_close_matches(wrong.lower()[:100], list(by_lower), n=1, cutoff=0.6)
    if near:
        return f": did you mean {by_lower[near[0]]!r}?"
    return f"; known: {', '.join(names)}" if 0 < len(names) <= 16 else ""


def shape_problems(
    error: ValidationError, source: Source, model: type[BaseModel] = Config
) -> list[tuple[KeyPath, str, bool]]:
    """(path, message, whether the key rather than the value is meant) for each of pydantic's errors about a file
    of the shape `model`."""
    found = []
    for detail in error.errors(include_url=False):
        path: KeyPath = tuple(detail["loc"])
        kind = detail["type"]
        is_key = bool(path) and path[-1] == "[key]" and len(path) > 1 and kind != "extra_forbidden"
        path = path[:-1] if is_key else path
        if kind == "extra_forbidden":
            message = f"unknown key{suggestion(str(path[-1]), known_keys(path[:-1], model))}"
        elif kind == "missing":
            message = f"the required key {path[-1]!r} is missing"
        else:
            place = source.locate(path)
            node = place.node if place is not None and len(place.path) == len(path) else None
            message = _wording(detail, path, node)
        found.append((path, message, is_key or kind in ("extra_forbidden", "missing")))
    return found


def _wording(detail: Any, path: KeyPath, node: Node | None) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind]}, got {_got(detail['input'], path, node)}{_hint(kind, node)}"
    if kind in _LIMITS:
        words, bound = _LIMITS[kind]
        return f"{words} {_number(context[bound])}, got {_got(detail['input'], path, node)}"
    if kind == "literal_error":
        known = [part.strip().strip("'") for part in context["expected"].replace(" or ", ", ").split(",")]
        if isinstance(detail["input"], str):
            return f"{shown(detail['input'], path)} is not known here{suggestion(detail['input'], known)}"
        return f"expected one of {', '.join(known)}; got {_got(detail['input'], path, node)}"
    if kind == "too_short":
        return "at least one is needed"
    if kind == "string_pattern_mismatch":
        return _FORMS.get(context["pattern"], _NAME_FORM)
    if kind == "value_error":
        return str(context["error"])
    message: str = detail["msg"]
    return message[:1].lower() + message[1:]


def _got(value: object, path: KeyPath, node: Node | None) -> str:
    """`the number 1e3`, `nothing`, `a list`: what stands there, as written."""
    written = node.text if node is not None else str(value) if type(value) in (int, float) else ""
    if value is None or isinstance(value, list | dict) or not written or is_secret_path(path):
        return kind_of(value)
    return f"{kind_of(value).replace('a ', 'the ', 1)} {shown(written, path)}"


def _hint(kind: str, node: Node | None) -> str:
    if node is None:
        return ""
    if node.value is None and kind != "string_type":
        return ": give it a value, or take the key away to have the default"
    if kind == "string_type" and isinstance(node.value, bool | int | float):
        return ": quote it"
    if kind in ("int_type", "float_type", "bool_type") and isinstance(node.value, str):
        return ": write it without quotes if it is one"
    return ""


def _number(bound: Any) -> str:
    return f"{bound:g}" if isinstance(bound, float) else str(bound)
