"""ssl contexts for the listener and for endpoints, from PEM files.

A context is built whole or not at all: certificate and key are checked against each other while it is built, so
that a pair caught between two writes never serves (FC-06). Equal files make equal results, whatever their
contexts: whoever reloads keeps the old one then, and with it sessions and warm connections.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gslb.tls.certificate import Certificate, read_certificate

_MOST_BYTES = 4 * 1024 * 1024
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""For TLS 1.2: forward secrecy and authenticated encryption only. TLS 1.3 has no others."""
_PROTOCOLS = ["http/1.1"]
_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}

Role = Literal["cert_file", "key_file", "ca_file"]
MinVersion = Literal["1.2", "1.3"]


class TlsFileError(ValueError):
    """A file that cannot be used. `role` says which one, `index` of which pair (0 where there is one at most), the
    message why; it repeats neither path nor content."""

    def __init__(self, role: Role, message: str, index: int = 0) -> None:
        super().__init__(message)
        self.role: Role = role
        self.index = index


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate, with the chain below its root, and its key: two PEM files or twice the same."""

    cert_file: Path
    key_file: Path


@dataclass(frozen=True, slots=True)
class ClientTls:
    """How an endpoint is spoken to. Equal when made of the same contents."""

    context: ssl.SSLContext = field(compare=False, repr=False)
    fingerprint: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ServerTls:
    """How clients are answered: `context` for new handshakes. Equal when made of the same contents."""

    context: ssl.SSLContext = field(compare=False, repr=False)
    fingerprint: str = field(repr=False)
    certificates: tuple[Certificate, ...] = ()


def client_tls(ca_file: Path | None = None, pair: Pair | None = None) -> ClientTls:
    """Verify endpoints by the authorities in `ca_file`, or by the system's; show `pair` to those that ask.

    Verification cannot be turned off: whoever cannot prove the name is no endpoint. Raises TlsFileError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies chain and name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.hostname_checks_common_name = False  # RFC 9525 section 2
    context.set_alpn_protocols(_PROTOCOLS)
    contents: list[bytes] = []
    if ca_file is None:
        context.load_default_certs()
    else:
        contents.append(_trust(context, ca_file))
    if pair is not None:
        contents += _show(context, pair)[1]
    return ClientTls(context, _fingerprint(contents, str(ca_file is None)))


def server_tls(
    pairs: Sequence[Pair], min_version: MinVersion, client_ca_file: Path | None, *, requires_client: bool
) -> ServerTls:
    """Answer each client with the certificate for the name it asks for, the first of `pairs` if none is.

    With `client_ca_file` clients are asked for a certificate, and turned away without one if `requires_client`.
    Raises TlsFileError.
    """
    contexts: list[ssl.SSLContext] = []
    certificates: list[Certificate] = []
    contents: list[bytes] = []
    for index, pair in enumerate(pairs):
        context = _server_context(min_version)
        try:
            certificate, shown = _show(context, pair)
        except TlsFileError as error:
            raise TlsFileError(error.role, str(error), index) from None
        if client_ca_file is not None:
            shown.append(_trust(context, client_ca_file))
            context.verify_mode = ssl.CERT_REQUIRED if requires_client else ssl.CERT_OPTIONAL
        contexts.append(context)
        certificates.append(certificate)
        contents += shown
    if len(contexts) > 1:
        contexts[0].sni_callback = _Names(contexts, certificates)
    options = f"{min_version} {client_ca_file is not None} {requires_client}"
    return ServerTls(contexts[0], _fingerprint(contents, options), tuple(certificates))


class _Names:
    """Picks the context for the name a client asks for (an `SSLContext.sni_callback`).

    The whole name first, then a wildcard for its first label (RFC 9525 section 6.3); whoever asks for an unknown
    name, or for none, stays with the first certificate, as with other proxies: the client is the one to judge.
    """

    def __init__(self, contexts: Sequence[ssl.SSLContext], certificates: Sequence[Certificate]) -> None:
        self._by_name: dict[str, ssl.SSLContext] = {}
        for context, certificate in zip(contexts, certificates, strict=True):
            for name in certificate.names:
                self._by_name.setdefault(name, context)

    def __call__(self, handshake: ssl.SSLObject, name: str | None, _first: ssl.SSLContext) -> None:
        if name is None:
            return
        wanted = name.lower().rstrip(".")
        found = self._by_name.get(wanted) or self._by_name.get(f"*.{wanted.partition('.')[2]}")
        if found is not None:
            handshake.context = found


def _server_context(min_version: MinVersion) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[min_version]
    context.set_ciphers(_CIPHERS)
    context.set_alpn_protocols(_PROTOCOLS)
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE | ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    return context


def _trust(context: ssl.SSLContext, ca_file: Path) -> bytes:
    """Have `context` trust the authorities in a PEM file; returns the file's content."""
    content = _read("ca_file", ca_file)
    try:
        # PEM is ASCII; bundles have names in other letters between the blocks.
        context.load_verify_locations(cadata=content.decode("ascii", "ignore"))
    except (ssl.SSLError, ValueError):
        raise TlsFileError("ca_file", "the file holds no PEM certificates") from None
    return content


def _show(context: ssl.SSLContext, pair: Pair) -> tuple[Certificate, list[bytes]]:
    """Have `context` prove itself with `pair`; returns the certificate and both files' contents."""
    contents = [_read("cert_file", pair.cert_file), _read("key_file", pair.key_file)]
    try:
        certificate = read_certificate(contents[0])
    except ValueError as error:
        raise TlsFileError("cert_file", str(error)) from None
    try:
        # Only paths can be loaded from. Files that changed since they were read above show as changed to whoever
        # watches them; that they belong together is checked on what is loaded.
        context.load_cert_chain(pair.cert_file, pair.key_file, password=_no_password)
    except ssl.SSLError as error:
        reason = error.reason or ""
        if reason == "KEY_VALUES_MISMATCH":
            raise TlsFileError("key_file", "this is not the key of the certificate beside it") from None
        if reason in ("EE_KEY_TOO_SMALL", "CA_MD_TOO_WEAK", "CA_KEY_TOO_SMALL"):
            raise TlsFileError("cert_file", "the certificate's key or signature is too weak") from None
        raise TlsFileError("key_file", "the file holds no PEM private key that can be read") from None
    except _Encrypted:
        raise TlsFileError("key_file", "the key is encrypted: store it in plain, readable for gslb only") from None
    except OSError as error:
        raise TlsFileError("key_file", f"the pair cannot be read: {error.strerror}") from None
    return certificate, contents


class _Encrypted(Exception):
    """OpenSSL asks for a pass phrase, which would else be asked of the terminal."""


def _no_password() -> str:
    raise _Encrypted


def _read(role: Role, path: Path) -> bytes:
    try:
        if not path.is_file():
            raise TlsFileError(role, "there is no file at this path")
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise TlsFileError(role, f"the file cannot be read: {error.strerror}") from None
    if len(content) > _MOST_BYTES:
        raise TlsFileError(role, f"the file is larger than {_MOST_BYTES} bytes")
    return content


def _fingerprint(contents: Sequence[bytes], options: str) -> str:
    digest = hashlib.sha256(options.encode())
    for content in contents:
        digest.update(len(content).to_bytes(8, "big"))
        digest.update(content)
    return digest.hexdigest()
