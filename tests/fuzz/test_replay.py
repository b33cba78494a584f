"""What the fuzzer starts from and what it has found holds (the fuzzer itself: `make fuzz`)."""

from __future__ import annotations

import pytest

from gslb.native import is_native
from tests.fuzz.seeds import found_for, seeds_of
from tests.fuzz.targets import TARGETS

NO_WORLD = pytest.mark.skipif(is_native(), reason="its pool inherits from one that is compiled")
TESTED = [pytest.param(name, marks=NO_WORLD) if name == "exchange" else name for name in TARGETS]


@pytest.mark.parametrize("target", TESTED)
def test_seeds_hold_however_they_are_cut(target: str) -> None:
    for data in seeds_of(target).values():
        for cut in (data, b"\x05\x10\x30\x50\x90\xc0" + data[1:]) if target != "exchange" else (data,):
            TARGETS[target](cut)


FOUND = [
    pytest.param(target, name, marks=[NO_WORLD] if target == "exchange" else [])
    for target in TARGETS
    for name, _ in found_for(target)
]


@pytest.mark.parametrize(("target", "name"), FOUND)
def test_what_was_found_holds(target: str, name: str) -> None:
    TARGETS[target](dict(found_for(target))[name])
