"""Keys named in the configuration: read once, never shown.

No message repeats the name of a variable or file unless it looks like one: people paste the key itself there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{0,39}")
_KEY = re.compile(r"[\x21-\x7e]+")
_MOST_BYTES = 64 * 1024


def key_from_variable(name: str, environ: Mapping[str, str]) -> str:
    """The key in environment variable `name`. Raises ValueError when it is unset or no key."""
    value = environ.get(name)
    if value is None:
        named = f"environment variable {name}" if _VARIABLE.fullmatch(name) else "the variable named here"
        raise ValueError(f"{named} is not set: export it before gslb starts (its name goes here, not the key)")
    return _checked(value, "the variable")


def key_from_file(path: Path) -> str:
    """The key in file `path`, without the line end. Raises ValueError when it cannot be read or is no key."""
    try:
        if not path.is_file():
            raise ValueError("there is no file at this path: name a file that holds the key (not the key itself)")
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"the key file cannot be read: {error.strerror}") from None
    if len(content) > _MOST_BYTES:
        raise ValueError("the file is too long to hold one key")
    return _checked(content.decode("latin-1"), "the file")


def _checked(value: str, holder: str) -> str:
    key = value.rstrip("\r\n")
    if not key:
        raise ValueError(f"{holder} is empty: it must hold the key")
    if not _KEY.fullmatch(key):
        raise ValueError(f"{holder} holds no key: a key is one line of visible ASCII characters without spaces")
    return key
