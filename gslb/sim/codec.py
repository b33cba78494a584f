"""Values of the core as JSON and back, exactly: what a recording is written in.

None, true, 1, 2.5, "text"      as they are (numbers keep every bit; Infinity and NaN as Python's json has them)
{"list": [...]}                  a list; also "tuple", "set", and "map" with pairs
{"is": "Facts", "of": {...}}     a dataclass or a class of slots, by its members
{"is": "State", "value": ...}    a member of an enumeration
{"method": "name", "of": {...}}  a bound method
{"the": "fleet"}                 something that both sides know by that name
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from types import MethodType
from typing import Any

from gslb import types
from gslb.policy import residency
from gslb.routing import decision, health, load, refusal, rules, snapshot, view

_MODULES = (types, decision, health, load, refusal, rules, snapshot, view, residency)
"""Whose classes may stand in a recording. Only they are made again when one is read."""

CARRIED: Mapping[str, type] = {
    name: found
    for module in _MODULES
    for name, found in vars(module).items()
    if isinstance(found, type) and found.__module__ == module.__name__
}
"""Class name -> class."""

_SEQUENCES: Mapping[str, Callable[[Any], Any]] = {"list": list, "tuple": tuple, "set": frozenset}


class NotRecordable(TypeError):
    """A value of a kind that recordings do not know."""


class Unreadable(ValueError):
    """What is no recording, or one of another version."""


def encode(value: object, name_of: Callable[[object], str | None]) -> Any:
    """`value` as JSON. `name_of` tells the name of what both sides have, None for all else.

    Raises NotRecordable for a value of another kind.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    name = name_of(value)
    if name is not None:
        return {"the": name}
    if isinstance(value, Enum):
        return {"is": type(value).__name__, "value": value.value}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [encode(member, name_of) for member in value]}
    if isinstance(value, set | frozenset):
        return {"set": sorted((encode(member, name_of) for member in value), key=repr)}
    if isinstance(value, Mapping):
        return {"map": [[encode(key, name_of), encode(member, name_of)] for key, member in value.items()]}
    if isinstance(value, MethodType):
        return {"method": value.__name__, "of": encode(value.__self__, name_of)}
    kind = type(value).__name__
    if CARRIED.get(kind) is not type(value):
        raise NotRecordable(f"a recording cannot hold a {type(value).__module__}.{kind}")
    return {"is": kind, "of": {name: encode(getattr(value, name), name_of) for name in members_of(type(value))}}


def decode(data: Any, named: Mapping[str, object]) -> Any:
    """The value that `encode` was given. Raises Unreadable for what it never writes."""
    if not isinstance(data, dict):
        if isinstance(data, list):
            raise Unreadable("a list stands where a value should")
        return data
    match data:
        case {"the": str(name)}:
            if name not in named:
                raise Unreadable(f"nothing is named {name!r}")
            return named[name]
        case {"is": str(kind), "value": value}:
            return _class_of(kind)(value)
        case {"is": str(kind), "of": dict(members)}:
            return _made(_class_of(kind), {name: decode(member, named) for name, member in members.items()})
        case {"method": str(name), "of": owner}:
            return getattr(decode(owner, named), name)
        case {"map": list(pairs)}:
            return {decode(key, named): decode(member, named) for key, member in pairs}
    if len(data) == 1:
        ((kind, members),) = data.items()
        if kind in _SEQUENCES and isinstance(members, list):
            return _SEQUENCES[kind](decode(member, named) for member in members)
    raise Unreadable(f"a value cannot be read: {str(data)[:80]}")


def members_of(kind: type) -> list[str]:
    """Names of what a value of this class consists of."""
    if is_dataclass(kind):
        return [member.name for member in fields(kind)]
    slots = getattr(kind, "__slots__", None)
    if slots is None:
        raise NotRecordable(f"a recording cannot hold a {kind.__name__}: it is neither dataclass nor slots")
    return [slots] if isinstance(slots, str) else list(slots)


def _class_of(kind: str) -> type:
    if kind not in CARRIED:
        raise Unreadable(f"this gslb has no {kind!r}: it was recorded by another version")
    return CARRIED[kind]


def _made(kind: type, members: Mapping[str, object]) -> object:
    value: object = object.__new__(kind)
    expected = members_of(kind)
    if set(expected) != members.keys():
        raise Unreadable(f"a {kind.__name__} has other members here: it was recorded by another version")
    for name in expected:
        object.__setattr__(value, name, members[name])
    return value
