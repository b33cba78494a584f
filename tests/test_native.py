"""What compiled rooms must not contain, because mypyc 2.4 does not do there as Python does."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from gslb.native import HOT_ROOMS, SIMULATED_ROOMS

PACKAGE = Path(__file__).parent.parent / "gslb"
PLAIN = {"len", "start", "end"}
"""Calls whose repetition does no harm."""


def calls_in_bounds(source: str) -> list[int]:
    """Lines of slices whose bounds call something: the compiled code may call it twice."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Slice):
            for call in ast.walk(node):
                if isinstance(call, ast.Call):
                    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
                    if name not in PLAIN:
                        found.append(node.lower.lineno if node.lower else call.lineno)
    return found


@pytest.mark.parametrize("room", [*HOT_ROOMS, *SIMULATED_ROOMS])
def test_slices_of_compiled_rooms_call_nothing(room: str) -> None:
    assert calls_in_bounds((PACKAGE / f"{room}.py").read_text()) == []


def endless(source: str) -> list[int]:
    """Lines of generator expressions without end: the compiled code makes a list of each."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.GeneratorExp)
        for call in ast.walk(node.generators[0].iter)
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") in ("count", "cycle", "repeat")
    ]


@pytest.mark.parametrize("room", [*HOT_ROOMS, *SIMULATED_ROOMS])
def test_generator_expressions_of_compiled_rooms_end(room: str) -> None:
    assert endless((PACKAGE / f"{room}.py").read_text()) == []


@pytest.mark.parametrize("room", [*HOT_ROOMS, *SIMULATED_ROOMS])
def test_compiled_rooms_exist(room: str) -> None:
    assert (PACKAGE / f"{room}.py").is_file()


def test_the_checks_see_what_they_look_for() -> None:
    assert endless("x = 1\ny = (n * 2 for n in count(1))") == [2]
    assert calls_in_bounds("data = data[os.write(1, data) :]") == [1]
    assert calls_in_bounds("data[len(x) : match.end()]") == []
