"""The house has floors: a module imports only what lies below it, and the lower floors stay pure.

Everything is read from the source with `ast`: imports inside functions and under TYPE_CHECKING count too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

FLOORS: dict[str, int] = {
    "gslb": 0,
    "gslb.types": 0,
    "gslb.clock": 0,
    "gslb.counters": 0,
    "gslb.errors": 0,
    "gslb.config.schema": 0,
    "gslb.config.schema_fleet": 0,
    "gslb.config.units": 0,
    "gslb.config.fields": 0,
    "gslb.config.scenario_schema": 0,
    "gslb.config.files": 0,
    "gslb.geo": 1,
    "gslb.wire": 1,
    "gslb.policy": 1,
    "gslb.tls": 1,
    "gslb.routing": 2,
    "gslb.config.settings": 2,
    "gslb.config": 3,
    "gslb.proxy": 3,
    "gslb.state": 3,
    "gslb.sim": 3,
    "gslb.observe": 4,
    "gslb.admin": 4,
    "gslb.mock": 4,
    "gslb.report": 4,
    "gslb.control": 5,
    "gslb.app": 5,
    "gslb.supervisor": 5,
    "gslb.worker": 5,
    "gslb.worker_process": 5,
    "gslb.serve": 5,
    "gslb.explain": 5,
    "gslb.native": 0,
    "gslb.demo": 5,
    "gslb.simulate": 5,
    "gslb.cli": 6,
    "gslb.cli_*": 6,
    "gslb.__main__": 6,
}
"""A new package or top-level module gets a row here, with thought. A row holds for what lies below it, too."""

PURE = (
    "gslb.types", "gslb.clock", "gslb.counters", "gslb.errors", "gslb.config.schema", "gslb.config.units",
    "gslb.config.fields", "gslb.geo", "gslb.wire", "gslb.policy", "gslb.routing",
    "gslb.sim", "gslb.report",
)  # fmt: skip

IMPURE_MODULES = frozenset({"asyncio", "socket", "threading", "logging", "time"})

Sources = Mapping[str, str]
"""Module names to source text; a package stands under its own name."""


def row_of(module: str) -> str | None:
    """The row of FLOORS that holds for `module`: its own, or that of its nearest package but the root."""
    name = module
    while name:
        for row in FLOORS:
            if fnmatchcase(name, row):
                return row if row != "gslb" or module == "gslb" else None
        name = name.rpartition(".")[0]
    return None


def package_of(module: str, sources: Sources) -> str:
    """The top package a module belongs to; top-level modules all belong to `gslb` itself."""
    top = ".".join(module.split(".")[:2])
    is_package = any(name.startswith(top + ".") for name in sources)
    return top if is_package or module != top else "gslb"


def imported_names(tree: ast.AST, module: str, sources: Sources) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of everything imported, `from package import module` resolved."""
    is_package = any(name.startswith(module + ".") for name in sources)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                cut = len(parts) - node.level + (1 if is_package else 0)
                base = ".".join([*parts[:cut], *([base] if base else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield node.lineno, full if full in sources else base


def module_dice(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Uses of the module-level dice: anything of `random` but the type `Random`."""
    aliases = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "random"
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "random" and not node.level:
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name != "Random")
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in aliases
            and node.attr != "Random"
        ):
            yield node.lineno, node.attr


def broken_rules(sources: Sources) -> list[str]:
    """Every breach in `sources`, one sentence each."""
    found: list[str] = []
    for module, text in sources.items():
        row = row_of(module)
        if row is None:
            found.append(f"{module}: has no floor; give its package a row in FLOORS")
            continue
        tree = ast.parse(text)
        is_pure = row in PURE
        for line, name in imported_names(tree, module, sources):
            if is_pure and name.split(".")[0] in IMPURE_MODULES:
                found.append(f"{module}:{line}: is pure and imports {name}")
            if name.split(".")[0] != "gslb" or name == "gslb":
                continue
            target = row_of(name)
            if target is None:
                found.append(f"{module}:{line}: imports {name}, which has no floor")
            elif FLOORS[target] > FLOORS[row]:
                found.append(f"{module}:{line}: is on floor {FLOORS[row]} and imports {name} of {FLOORS[target]}")
            elif FLOORS[target] == FLOORS[row] and package_of(name, sources) != package_of(module, sources):
                found.append(f"{module}:{line}: imports {name}, a neighbour on floor {FLOORS[row]}")
        if is_pure:
            found += [f"{module}:{line}: is pure and throws random.{use}" for line, use in module_dice(tree)]
    return found


def house_sources() -> dict[str, str]:
    sources: dict[str, str] = {}
    for path in sorted((ROOT / "gslb").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        sources[name] = path.read_text("utf-8")
    return sources


def test_the_house_keeps_its_floors() -> None:
    assert broken_rules(house_sources()) == []


def test_every_row_of_the_table_holds_for_something() -> None:
    used = {row_of(module) for module in house_sources()}
    assert [row for row in FLOORS if row not in used] == []


HOUSE = {
    "gslb": "",
    "gslb.types": "",
    "gslb.geo": "",
    "gslb.geo.place": "from gslb.types import Place",
    "gslb.wire": "",
    "gslb.wire.http1": "",
    "gslb.routing": "",
    "gslb.routing.view": "from random import Random\nfrom gslb.geo.place import distance",
    "gslb.config": "",
    "gslb.config.schema": "",
    "gslb.config.load": "from gslb.config.schema import Config\nfrom gslb.geo import place",
    "gslb.proxy": "",
    "gslb.proxy.pool": "import asyncio\nfrom gslb.routing.view import Snapshot",
    "gslb.app": "from gslb.proxy.pool import Pool",
    "gslb.serve": "from gslb.app import App",
    "gslb.cli": "def main():\n    from gslb.serve import serve",
}


def test_a_good_house_has_no_breach() -> None:
    assert broken_rules(HOUSE) == []


@pytest.mark.parametrize(
    ("module", "text", "breach"),
    [
        ("gslb.geo.place", "from gslb.routing.view import Snapshot", "is on floor 1 and imports gslb.routing"),
        ("gslb.geo.place", "import gslb.wire.http1", "imports gslb.wire.http1, a neighbour on floor 1"),
        ("gslb.geo.place", "from gslb.wire import http1", "imports gslb.wire.http1, a neighbour"),
        ("gslb.geo.place", "from ..wire import http1", "imports gslb.wire.http1, a neighbour"),
        ("gslb.geo.place", "from ..routing.view import Snapshot", "is on floor 1 and imports gslb.routing.view"),
        ("gslb.geo", "from ..routing import view", "is on floor 1 and imports gslb.routing.view"),
        ("gslb.proxy.pool", "def f():\n    import gslb.app", "is on floor 3 and imports gslb.app"),
        ("gslb.proxy.pool", "if TYPE_CHECKING:\n    from gslb.config.load import load", "a neighbour on floor 3"),
        ("gslb.config.schema", "from gslb.config.load import load", "is on floor 0 and imports gslb.config.load"),
        ("gslb.serve", "from gslb.cli import main", "is on floor 5 and imports gslb.cli"),
        ("gslb.routing.view", "import asyncio", "is pure and imports asyncio"),
        ("gslb.routing.view", "from time import monotonic", "is pure and imports time"),
        ("gslb.routing.view", "import logging.handlers", "is pure and imports logging.handlers"),
        ("gslb.routing.view", "from random import Random, choice", "is pure and throws random.choice"),
        ("gslb.routing.view", "import random as dice\nx = dice.random()", "is pure and throws random.random"),
        ("gslb.steer.dns", "", "has no floor"),
        ("gslb.sundries", "", "has no floor"),
        ("gslb.serve", "import gslb.sundries", "imports gslb.sundries, which has no floor"),
    ],
)
def test_a_planted_breach_is_found(module: str, text: str, breach: str) -> None:
    (found,) = broken_rules({**HOUSE, module: text})
    assert breach in found
    assert found.startswith(module)


def test_random_as_a_type_is_no_dice() -> None:
    text = "import random\ndef f(dice: random.Random) -> None: ..."
    assert broken_rules({**HOUSE, "gslb.routing.view": text}) == []
