"""Edges that speak TLS, for the tests of this directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.authority import Authority

LOCALHOST = ("DNS:localhost", "IP:127.0.0.1")


def section(*pairs: tuple[Path, Path], **more: Any) -> dict[str, Any]:
    """The `tls` section with these certificates."""
    return {"certificates": [{"cert_file": str(cert), "key_file": str(key)} for cert, key in pairs], **more}


class Rotating:
    """A certificate and its key at fixed paths whose contents change, as a renewal changes them."""

    def __init__(self, authority: Authority, directory: Path) -> None:
        self._authority = authority
        self.cert, self.key = directory / "tls.crt", directory / "tls.key"
        self.serial = self.issue()
        self.put_cert()
        self.put_key()

    def issue(self) -> str:
        """Make the next pair, without putting it in place; returns its serial number."""
        self._next = self._authority.issue(*LOCALHOST)
        self.serial = self._authority.serial(self._next[0])
        return self.serial

    def put_cert(self) -> None:
        """Put the next certificate in place."""
        replace(self.cert, self._next[0].read_text())

    def put_key(self) -> None:
        """Put the next key in place."""
        replace(self.key, self._next[1].read_text())


def replace(path: Path, text: str) -> None:
    """Write beside `path` and rename over it, as editors do."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text)
    fresh.rename(path)
