"""Contexts from files: names, pairs that fit, and errors that say which file is wrong."""

from __future__ import annotations

import ssl
import subprocess
import time
from pathlib import Path

import pytest

from gslb.tls.certificate import read_certificate
from gslb.tls.contexts import Pair, ServerTls, TlsFileError, client_tls, server_tls
from tests.support.authority import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def shake(server: ssl.SSLContext, client: ssl.SSLContext, name: str | None) -> ssl.SSLObject:
    """A whole handshake in memory; returns the client's side. Raises ssl.SSLError when either side refuses."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname=name)
    other = server.wrap_bio(to_server, to_client, server_side=True)
    left = [one, other]
    for _ in range(8):
        for side in list(left):
            try:
                side.do_handshake()
                left.remove(side)
            except ssl.SSLWantReadError:
                pass
    assert not left
    return one


def names_shown(authority: Authority, server: ssl.SSLContext, name: str | None) -> set[str]:
    client = authority.trusting()
    client.check_hostname = False
    shown = shake(server, client, name).getpeercert()
    assert shown is not None
    return {str(value) for _, value in shown["subjectAltName"]}


def serve(
    *pairs: tuple[Path, Path], client_ca: Path | None = None, version: str = "1.2", requires: bool = True
) -> ServerTls:
    return server_tls(
        [Pair(*pair) for pair in pairs], "1.3" if version == "1.3" else "1.2", client_ca, requires_client=requires
    )


def test_names_and_end_of_a_certificate(authority: Authority) -> None:
    cert, _ = authority.issue("DNS:A.example", "DNS:*.b.example", "IP:127.0.0.1")
    found = read_certificate(cert.read_bytes())
    assert found.names == ("a.example", "*.b.example")
    assert time.time() + 86_400 < found.ends_at < time.time() + 3 * 86_400
    nameless, _ = authority.issue()
    assert read_certificate(nameless.read_bytes()).names == ()


@pytest.mark.parametrize(
    ("not_after", "ends_at"), [("20491231235959Z", 2524607999.0), ("20500101000000Z", 2524608000.0)]
)
def test_both_forms_of_time(authority: Authority, not_after: str, ends_at: float, tmp_path: Path) -> None:
    cert = tmp_path / "c.pem"
    ask = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=x -days 1"
    subprocess.run(
        ["openssl", *ask.split(), "-keyout", str(tmp_path / "k"), "-out", str(tmp_path / "first")],
        capture_output=True, check=True,
    )  # fmt: skip
    database = tmp_path / "db"
    database.write_text("")
    (tmp_path / "serial").write_text("01")
    (tmp_path / "conf").write_text(
        f"[ca]\ndefault_ca=x\n[x]\ndatabase={database}\nserial={tmp_path / 'serial'}\nnew_certs_dir={tmp_path}\n"
        "default_md=sha256\npolicy=p\n[p]\ncommonName=supplied\n"
    )
    subprocess.run(
        ["openssl", "ca", "-batch", "-notext", "-config", str(tmp_path / "conf"),
         "-ss_cert", str(tmp_path / "first"),
         "-cert", str(authority.ca_file), "-keyfile", str(authority.ca_file.with_suffix(".key")),
         "-enddate", not_after, "-out", str(cert)],
        check=True, capture_output=True,
    )  # fmt: skip
    assert read_certificate(cert.read_bytes()).ends_at == ends_at


def test_damaged_certificates_are_errors_wherever_they_are_cut(authority: Authority) -> None:
    cert, _ = authority.issue("DNS:a.example")
    whole = ssl.PEM_cert_to_DER_cert(cert.read_text())
    for cut in range(1, len(whole), 7):
        with pytest.raises(ValueError, match=r"certificate"):
            read_certificate(ssl.DER_cert_to_PEM_cert(whole[:cut]).encode())
    for text in (
        b"",
        b"-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----",
        b"-----BEGIN CERTIFICATE-----",
    ):
        with pytest.raises(ValueError, match=r"certificate"):
            read_certificate(text)


def test_the_name_asked_for_picks_the_certificate(authority: Authority) -> None:
    first = authority.issue("DNS:first.example")
    wild = authority.issue("DNS:*.b.example", "DNS:b.example")
    exact = authority.issue("DNS:x.b.example")
    context = serve(first, wild, exact).context
    for asked, shown in (
        ("first.example", "first.example"),
        ("FIRST.example", "first.example"),
        ("y.b.example", "*.b.example"),
        ("x.b.example", "x.b.example"),
        ("b.example", "b.example"),
        ("z.y.b.example", "first.example"),  # a wildcard is one label
        ("elsewhere.example", "first.example"),
        ("10.0.0.1", "first.example"),
        (None, "first.example"),
    ):
        assert shown in names_shown(authority, context, asked), asked


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_versions_ciphers_and_protocol(authority: Authority) -> None:
    pair = authority.issue("DNS:a.example")
    client = authority.trusting()
    client.set_alpn_protocols(["h2", "http/1.1"])
    done = shake(serve(pair).context, client, "a.example")
    assert (done.version(), done.selected_alpn_protocol()) == ("TLSv1.3", "http/1.1")
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    done = shake(serve(pair).context, client, "a.example")
    cipher = done.cipher()
    assert cipher is not None
    assert cipher[0].startswith("ECDHE-")
    assert "GCM" in cipher[0] or "POLY1305" in cipher[0]
    with pytest.raises(ssl.SSLError):
        shake(serve(pair, version="1.3").context, client, "a.example")
    old = authority.trusting()
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.minimum_version = ssl.TLSVersion.TLSv1
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        shake(serve(pair).context, old, "a.example")


def test_clients_certificates(authority: Authority, tmp_path: Path) -> None:
    pair = authority.issue("DNS:a.example")
    badge = authority.issue("DNS:client")
    stranger = Authority(tmp_path / "other", "another authority").issue("DNS:client")
    # In TLS 1.3 the client is done before the server judges; the server's error shows all the same.
    for requires in (True, False):
        context = serve(pair, client_ca=authority.ca_file, requires=requires).context
        shake(context, authority.trusting(badge), "a.example")
        with pytest.raises(ssl.SSLError):
            shake(context, authority.trusting(stranger), "a.example")
    shake(serve(pair, client_ca=authority.ca_file, requires=False).context, authority.trusting(), "a.example")
    with pytest.raises(ssl.SSLError):
        shake(serve(pair, client_ca=authority.ca_file).context, authority.trusting(), "a.example")


def test_what_is_wrong_and_where(authority: Authority, tmp_path: Path) -> None:
    cert, key = authority.issue("DNS:a.example")
    _, other_key = authority.issue("DNS:a.example")
    encrypted, text, absent = tmp_path / "encrypted.key", tmp_path / "text", tmp_path / "absent"
    subprocess.run(
        ["openssl", "pkey", "-in", str(key), "-aes256", "-passout", "pass:x", "-out", str(encrypted)],
        check=True, capture_output=True,
    )  # fmt: skip
    text.write_text("nothing of the kind")
    for wrong, role, words in (
        ((cert, other_key), "key_file", "not the key"),
        ((cert, encrypted), "key_file", "encrypted"),
        ((cert, text), "key_file", "no PEM private key"),
        ((cert, absent), "key_file", "no file"),
        ((cert, tmp_path), "key_file", "no file"),
        ((text, key), "cert_file", "no PEM certificates"),
        ((absent, key), "cert_file", "no file"),
        ((key, key), "cert_file", "no PEM certificates"),
    ):
        for build in (lambda: serve((cert, key), wrong), lambda: client_tls(None, Pair(*wrong))):  # noqa: B023
            with pytest.raises(TlsFileError, match=words) as caught:
                build()
            assert caught.value.role == role
        with pytest.raises(TlsFileError) as caught:
            serve((cert, key), wrong)
        assert caught.value.index == 1
    for ca in (text, absent, key):
        with pytest.raises(TlsFileError) as caught:
            serve((cert, key), client_ca=ca)
        assert caught.value.role == "ca_file"
        with pytest.raises(TlsFileError):
            client_tls(ca)


def test_equal_contents_are_equal(authority: Authority) -> None:
    one, other = authority.issue("DNS:a.example"), authority.issue("DNS:a.example")
    assert serve(one) == serve(one)
    assert serve(one) != serve(other)
    assert serve(one) != serve(one, version="1.3")
    assert serve(one) != serve(one, client_ca=authority.ca_file)
    assert client_tls(authority.ca_file) == client_tls(authority.ca_file)
    assert client_tls(authority.ca_file) != client_tls()
    assert client_tls(authority.ca_file) != client_tls(authority.ca_file, Pair(*one))
    assert one[1].read_text() not in repr(serve(one))


def test_one_file_may_hold_both(authority: Authority, tmp_path: Path) -> None:
    cert, key = authority.issue("DNS:a.example")
    both = tmp_path / "both.pem"
    both.write_text(key.read_text() + cert.read_text())
    assert "a.example" in names_shown(authority, serve((both, both)).context, "a.example")


def test_a_bundle_with_names_in_any_letters(authority: Authority, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.write_text(f"# Főtanúsítvány\n{authority.ca_file.read_text()}\n# İ\n{authority.ca_file.read_text()}")
    cert = authority.issue("DNS:a.example")
    shake(serve(cert).context, client_tls(bundle).context, "a.example")
