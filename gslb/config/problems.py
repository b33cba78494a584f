"""What is wrong with a configuration file, and where."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gslb.config.files import FileMark

KeyPath = tuple[str | int, ...]
"""Keys and list indexes from the top of the file down."""

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SECRET_KEY = re.compile(r"key|token|secret|password", re.IGNORECASE)
_SHOWN_CHARACTERS = 80


class Mark(NamedTuple):
    """A position in a text, both counted from 1."""

    line: int
    col: int


def path_text(path: KeyPath) -> str:
    """`("regions", "eu", "endpoints", 0, "url")` -> `regions.eu.endpoints[0].url`; odd keys as `["a b"]`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _BARE_KEY.fullmatch(step):
            text += f".{step}" if text else step
        else:
            text += f"[{json.dumps(step[:_SHOWN_CHARACTERS])}]"
    return text


def is_secret_path(path: KeyPath) -> bool:
    """True where somebody may have pasted a key: the value there is never repeated in a message."""
    return any(isinstance(step, str) and _SECRET_KEY.search(step) for step in path)


def shown(value: str, path: KeyPath) -> str:
    """`value` quoted and shortened for a message about `path`, or stand-in words where it may be a secret."""
    if is_secret_path(path):
        return "this value"
    return repr(value if len(value) <= _SHOWN_CHARACTERS else value[:_SHOWN_CHARACTERS] + "…")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong in a configuration file. `line` and `col` count from 1; `path` may be empty."""

    file: str
    line: int
    col: int
    path: str
    message: str

    def __str__(self) -> str:
        """`file:line:col path: message`, one line."""
        subject = f" {self.path}" if self.path else ""
        return " ".join(f"{self.file}:{self.line}:{self.col}{subject}: {self.message}".split())


class ConfigErrors(Exception):
    """A configuration cannot be used. `problems` has all that is wrong with it, in the order of the file, `files`
    what the files were that it was read from: the cure may come to any of them."""

    def __init__(self, problems: list[Problem], files: Mapping[Path, FileMark] | None = None) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems
        self.files = dict(files or {})


class NeedsRestart(Exception):
    """A changed setting that only a new process can have. `problems` are sentences for the operator."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


REFUSALS = (ConfigErrors, NeedsRestart, OSError)
"""What reading a configuration and building what it needs may raise."""


def problems_of(error: Exception, path: str) -> list[str]:
    """What kept the configuration at `path` from being used, in words for the operator."""
    if isinstance(error, ConfigErrors):
        return [str(problem) for problem in error.problems]
    if isinstance(error, NeedsRestart):
        return error.problems
    return [f"{path}: {error}"]
