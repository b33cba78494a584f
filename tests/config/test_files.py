"""Files that a configuration names: what has changed, and what is wrong where."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gslb.config.files import FileMark, FileWatch, mark_file
from tests.config.texts import problems_of
from tests.support.authority import Authority

REGIONS = "regions: {eu: {location: DE, endpoints: [{url: 'http://a'}]}}\n"


def watch_of(*paths: Path) -> FileWatch:
    return FileWatch({path: mark_file(path) for path in paths})


def looks(watch: FileWatch, times: int = 4) -> list[bool]:
    return [watch.look() for _ in range(times)]


def test_a_change_counts_once_it_stands_still(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("1")
    watch = watch_of(file)
    assert looks(watch) == [False] * 4
    file.write_text("22")
    assert not watch.look()
    file.write_text("333")
    assert not watch.look(), "it moves"
    assert watch.look()
    watch.expect({file: mark_file(file)})
    assert looks(watch) == [False] * 4


def test_two_files_that_change_after_another_are_one_change(tmp_path: Path) -> None:
    one, other = tmp_path / "crt", tmp_path / "key"
    one.write_text("1")
    other.write_text("1")
    watch = watch_of(one, other)
    one.write_text("22")
    assert not watch.look()
    other.write_text("22")
    assert [watch.look(), watch.look()] == [False, True]


def test_the_same_content_is_no_change(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("1")
    watch = watch_of(file)
    os.utime(file, ns=(1, 1))
    assert looks(watch) == [False] * 4
    file.write_text("2")
    os.utime(file, ns=(2, 2))
    assert looks(watch, 2) == [False, True]


def test_a_large_file_is_judged_by_its_date(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(bytes(2 * 1024 * 1024))
    mark = mark_file(file)
    assert mark.digest is None
    watch = FileWatch({file: mark})
    os.utime(file, ns=(1, 1))
    assert looks(watch, 2) == [False, True]


@pytest.mark.parametrize("kind", ["absent", "directory", "link to nothing", "through a file"])
def test_what_is_no_file_is_marked_all_the_same(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    if kind == "directory":
        path.mkdir()
    elif kind == "link to nothing":
        path.symlink_to("nowhere")
    elif kind == "through a file":
        path.write_text("")
        path /= "y"
    assert mark_file(path).digest is None
    assert looks(watch_of(path)) == [False] * 4


def test_loss_and_return(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("1")
    watch = watch_of(file)
    file.unlink()
    assert looks(watch, 2) == [False, True]
    watch.expect_refused({file: mark_file(file)})
    assert looks(watch) == [False] * 4
    file.write_text("1")
    assert looks(watch, 2) == [False, True]


def test_after_a_refusal_every_file_waits_for_its_next_change(tmp_path: Path) -> None:
    config, key, new = tmp_path / "c", tmp_path / "k", tmp_path / "n"
    config.write_text("1")
    key.write_text("1")
    watch = watch_of(config, key)
    config.write_text("22")
    key.write_text("22")
    assert looks(watch, 2) == [False, True]
    # Only the configuration was read, and named a file that is not there.
    watch.expect_refused({config: mark_file(config), new: FileMark(None, None)})
    assert looks(watch) == [False] * 4
    new.write_text("1")
    assert looks(watch, 2) == [False, True]


@pytest.mark.parametrize(
    ("tls", "start", "words"),
    [
        ("{certificates: [{cert_file: a.pem}]}", "f:2:22 tls.certificates[0]", "'key_file' is missing"),
        ("{certificates: [{cert_file: no, key_file: a.key}]}", "f:2:", "quote it"),
        ("{certificates: [{cert_file: absent, key_file: a.key}]}",
         "f:2:34 tls.certificates[0].cert_file", "no file"),
        ("{certificates: [{cert_file: a.pem, key_file: b.key}]}",
         "f:2:51 tls.certificates[0].key_file", "not the key"),
        ("{certificates: [{cert_file: a.pem, key_file: a.key}, {cert_file: a.key, key_file: a.key}]}",
         "f:2:71 tls.certificates[1].cert_file", "no PEM"),
        ("{certificates: [{cert_file: a.pem, key_file: a.key}], client_ca_file: a.key}",
         "f:2:76 tls.client_ca_file", "no PEM"),
        ("{client_ca_file: ca.pem}", "f:2:6 tls", "needs certificates"),
        ("{client_auth: optional}", "f:2:6 tls", "needs client_ca_file"),
        ("{min_version: '1.1'}", "f:2:20 tls.min_version", "'1.1' is not known"),
        ("{min_version: 1.1}", "f:2:20 tls.min_version", "1.1"),
        ("{certificate: []}", "f:2:7 tls.certificate", "did you mean 'certificates'?"),
    ],
)  # fmt: skip
def test_tls_mistakes_are_told_with_their_place(tls: str, start: str, words: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    for name in ("a", "b"):
        cert, key = authority.issue("DNS:a.example")
        cert.rename(tmp_path / f"{name}.pem")
        key.rename(tmp_path / f"{name}.key")
    (problem,) = problems_of(f"{REGIONS}tls: {tls}\n", {}, tmp_path)
    assert words in problem
    assert problem.startswith(start)


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        ("{url: https://a, tls_cert_file: a.pem}", "belong together"),
        ("{url: http://a, tls_cert_file: a.pem, tls_key_file: a.key}", "https://"),
        ("{url: https://a, tls_cert_file: a.pem, tls_key_file: absent}", "tls_key_file: there is no file"),
        ("{url: https://a, tls_ca_file: absent}", "tls_ca_file: there is no file"),
    ],
)
def test_endpoint_mistakes_are_told_with_their_place(endpoint: str, words: str, tmp_path: Path) -> None:
    cert, key = Authority(tmp_path).issue("DNS:a.example")
    cert.rename(tmp_path / "a.pem")
    key.rename(tmp_path / "a.key")
    (problem,) = problems_of(f"regions: {{eu: {{location: DE, endpoints: [{endpoint}]}}}}", {}, tmp_path)
    assert "regions.eu.endpoints[0]" in problem
    assert words in problem
