"""Certificates for tests, made by the openssl command; and a TLS server that says what it was asked."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest


class Authority:
    """A certificate authority in a directory. `ca_file` is what to trust."""

    def __init__(self, directory: Path, name: str = "test authority") -> None:
        if shutil.which("openssl") is None:
            pytest.skip("needs openssl to make certificates")
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.ca_file = directory / "ca.pem"
        self._key = directory / "ca.key"
        self._count = 0
        subject = ["-subj", f"/CN={name}", "-days", "2", "-nodes"]
        self._run("req", "-x509", *_NEW_KEY, *subject, "-keyout", str(self._key), "-out", str(self.ca_file))

    def issue(self, *names: str) -> tuple[Path, Path]:
        """A certificate for `names` (`DNS:a.example`, `IP:127.0.0.1`) and its key, in files of their own."""
        self._count += 1
        stem = self.directory / f"leaf-{self._count}"
        cert, key, asked = stem.with_suffix(".pem"), stem.with_suffix(".key"), stem.with_suffix(".csr")
        extensions = stem.with_suffix(".ext")
        lines = ["basicConstraints=CA:FALSE", *([f"subjectAltName={','.join(names)}"] if names else [])]
        extensions.write_text("\n".join(lines))
        subject = ["-subj", f"/CN=leaf {self._count}", "-nodes"]
        self._run("req", "-new", *_NEW_KEY, *subject, "-keyout", str(key), "-out", str(asked))
        signing = ["-CA", str(self.ca_file), "-CAkey", str(self._key), "-CAcreateserial", "-days", "2"]
        self._run("x509", "-req", "-in", str(asked), *signing, "-extfile", str(extensions), "-out", str(cert))
        return cert, key

    def trusting(self, pair: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """A client's context that trusts this authority alone, and shows `pair` if asked."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.ca_file)
        if pair is not None:
            context.load_cert_chain(*pair)
        return context

    def serving(self, pair: tuple[Path, Path], asked_names: list[str | None] | None = None) -> ssl.SSLContext:
        """A server's context; `asked_names` takes the server name of each ClientHello."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*pair)
        if asked_names is not None:
            context.sni_callback = lambda _socket, name, _context: asked_names.append(name)
        return context

    @staticmethod
    def serial(cert: Path) -> str:
        """The serial number, as `getpeercert` spells it."""
        asked = ["openssl", "x509", "-in", str(cert), "-noout", "-serial"]
        return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip().partition("=")[2]

    @staticmethod
    def _run(*command: str) -> None:
        subprocess.run(["openssl", *command], check=True, capture_output=True)


_NEW_KEY: Sequence[str] = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
