"""Lines that a corpus reaches: `python -m tests.fuzz.reach TARGET [DIRECTORY]` (after `tests.fuzz.run`)."""

from __future__ import annotations

import importlib
import sys
from collections import defaultdict
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tests.fuzz.targets import TARGETS

_NEW_LOCALS = 0x0002
"""Flag of a function's code (CO_NEWLOCALS): the bodies of modules and classes do not have it."""
_MODULES = {
    "request": ("wire.request_reader", "wire.http1", "wire.openai"),
    "response": ("proxy.upstream", "wire.http1"),
    "events": ("wire.sse", "proxy.failure"),
    "exchange": (
        "proxy.listener", "proxy.exchange", "proxy.attempt", "proxy.upstream", "proxy.admission", "proxy.pool",
        "proxy.answer_head", "proxy.record", "proxy.failure", "wire.request_reader", "wire.http1", "wire.sse",
        "wire.openai",
    ),
}  # fmt: skip


def _lines_of(code: CodeType) -> set[int]:
    """Lines of a module's functions (what runs at import is no merit of an input)."""
    found: set[int] = set()
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            if inner.co_flags & _NEW_LOCALS:
                found |= {line for _, _, line in inner.co_lines() if line} - {inner.co_firstlineno}
            found |= _lines_of(inner)
    return found


def main(target: str, directory: Path) -> None:
    """Play the corpus under a tracer and print, for each module, the share of its lines and those not reached."""
    files = {}
    for name in _MODULES[target]:
        module = importlib.import_module(f"gslb.{name}")
        files[str(module.__file__)] = name
    reached: defaultdict[str, set[int]] = defaultdict(set)

    def on_line(frame: FrameType, _event: str, _argument: Any) -> Any:
        reached[frame.f_code.co_filename].add(frame.f_lineno)
        return on_line

    def on_call(frame: FrameType, _event: str, _argument: Any) -> Any:
        return on_line if frame.f_code.co_filename in files else None

    inputs = sorted((directory / target).iterdir())
    sys.settrace(on_call)
    for path in inputs:
        TARGETS[target](path.read_bytes())
    sys.settrace(None)
    print(f"{target}: {len(inputs)} inputs")
    for file, name in files.items():
        lines = _lines_of(compile(Path(file).read_text(), file, "exec"))
        missing = sorted(lines - reached[file])
        print(f"  {name:22} {len(lines) - len(missing):4} of {len(lines):4} lines; not: {missing}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2] if len(sys.argv) > 2 else ".fuzz"))
