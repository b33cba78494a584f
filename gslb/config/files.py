"""The files a configuration was made of, and whether they have changed since.

Looked at by polling: what counts is what a path leads to now, so that Kubernetes' swap of a `..data` link and an
editor's rename are changes like any other, and no watch dies with an old inode (FC-29).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_Identity = tuple[int, int, int, int] | None
"""Device, inode, mtime in ns and size of what a path leads to; None: nothing that could be looked at."""

_MOST_BYTES_COMPARED = 1024 * 1024
"""Larger files (location databases) have changed when their identity has; to read one takes too long here."""


@dataclass(frozen=True, slots=True)
class FileMark:
    """What a file was when it was read. `digest` is None for a large file and for none."""

    identity: _Identity
    digest: bytes | None


def mark_file(path: Path) -> FileMark:
    """What stands at `path` now. Never raises. Take the mark before reading the file: a change in between then
    shows as one."""
    identity = _identity(path)
    if identity is None or identity[3] > _MOST_BYTES_COMPARED or not path.is_file():
        return FileMark(identity, None)
    try:
        return FileMark(identity, hashlib.sha256(path.read_bytes()).digest())
    except OSError:
        return FileMark(None, None)


def _identity(path: Path) -> _Identity:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)


class FileWatch:
    """Tells when any of the files has changed and stands still."""

    def __init__(self, marks: Mapping[Path, FileMark]) -> None:
        self._marks = dict(marks)
        self._moving: dict[Path, _Identity] | None = None

    def expect(self, marks: Mapping[Path, FileMark]) -> None:
        """The files have been read: these are what they were then."""
        self._marks = dict(marks)
        self._moving = None

    def expect_refused(self, marks: Mapping[Path, FileMark]) -> None:
        """Reading them came to nothing; `marks` are of what was read. Look at those files, too, and tell of none
        until it changes again."""
        self.expect({path: mark_file(path) for path in self._marks} | dict(marks))

    def look(self) -> bool:
        """True when something has changed, and looks as it did at the last look: a file may be written in pieces,
        a certificate before its key. The same content with another date is no change."""
        found = {path: _identity(path) for path in self._marks}
        changed = [path for path, identity in found.items() if identity != self._marks[path].identity]
        if not changed:
            self._moving = None
            return False
        if found != self._moving:
            self._moving = found
            return False
        self._moving = None
        is_new = False
        for path in changed:
            before, now = self._marks[path], mark_file(path)
            if now.digest is None or now.digest != before.digest:
                is_new = True
            else:
                self._marks[path] = now
        return is_new
