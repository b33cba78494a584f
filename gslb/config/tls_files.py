"""Certificates, keys and authorities named in the configuration, made into ssl contexts while it is checked.

The check builds what will be used: what `gslb check` accepts is what the listener and the pools then have, and a
reload that fails here has changed nothing.
"""

from __future__ import annotations

from pathlib import Path

from gslb.config.files import FileMark, mark_file
from gslb.config.problems import KeyPath
from gslb.config.report import Report
from gslb.tls.contexts import ClientTls, Pair, ServerTls, TlsFileError, client_tls, server_tls


class TlsFiles:
    """Reads TLS files of one configuration, noting them in `marks`. Relative paths start at `base_dir`."""

    def __init__(self, report: Report, base_dir: Path, marks: dict[Path, FileMark]) -> None:
        self._report = report
        self._base_dir = base_dir
        self._marks = marks

    def endpoints(self) -> dict[KeyPath, ClientTls]:
        """By the path of each https endpoint. Endpoints of equal settings share one: an authority store takes
        10 ms to load and half a MB to keep."""
        made: dict[tuple[str | None, ...], ClientTls | TlsFileError] = {}
        found: dict[KeyPath, ClientTls] = {}
        for url_path, url in self._report.source.texts("regions", "*", "endpoints", "*", "url"):
            if not url.startswith("https:"):
                continue
            path = url_path[:-1]
            named = tuple(self._text(path, key) for key in ("tls_ca_file", "tls_cert_file", "tls_key_file"))
            if named not in made:
                made[named] = self._client_tls(*named)
            tls = made[named]
            if isinstance(tls, TlsFileError):
                self._report.add((*path, f"tls_{tls.role}"), str(tls))
            else:
                found[path] = tls
        return found

    def _client_tls(self, ca: str | None, cert: str | None, key: str | None) -> ClientTls | TlsFileError:
        try:
            pair = Pair(self._file(cert), self._file(key)) if cert is not None and key is not None else None
            return client_tls(self._file(ca) if ca is not None else None, pair)
        except TlsFileError as error:
            return error

    def listener(self) -> ServerTls | None:
        """The listener's, None when it speaks plain HTTP (or when its section is wrong, which is reported)."""
        pairs: list[Pair] = []
        for path, _ in self._report.source.find("tls", "certificates", "*"):
            cert, key = self._text(path, "cert_file"), self._text(path, "key_file")
            if cert is None or key is None:
                return None  # reported with the shape
            pairs.append(Pair(self._file(cert), self._file(key)))
        if not pairs:
            return None
        ca = self._text(("tls",), "client_ca_file")
        wants_13 = any(node.text == "1.3" for _, node in self._report.source.find("tls", "min_version"))
        try:
            return server_tls(
                pairs,
                "1.3" if wants_13 else "1.2",
                self._file(ca) if ca is not None else None,
                requires_client=self._text(("tls",), "client_auth") != "optional",
            )
        except TlsFileError as error:
            is_pairs = error.role != "ca_file"
            at: KeyPath = ("certificates", error.index, error.role) if is_pairs else ("client_ca_file",)
            self._report.add(("tls", *at), str(error))
            return None

    def _text(self, section: KeyPath, key: str) -> str | None:
        return next((text for _, text in self._report.source.texts(*section, key)), None)

    def _file(self, name: str) -> Path:
        path = (self._base_dir / name).absolute()
        self._marks[path] = mark_file(path)
        return path
