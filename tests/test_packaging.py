"""The Dockerfile copies only what exists, and the lock files name no place to fetch from."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_dockerfile_copies_only_what_exists() -> None:
    copied = []
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        words = line.split()
        if words[:1] == ["COPY"] and not words[1].startswith("--from"):
            copied += words[1:-1]
    assert copied
    missing = [name for name in copied if not (ROOT / name).exists()]
    assert missing == []


def test_dockerfile_is_multi_stage_non_root_and_has_a_health_check() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert len(re.findall(r"^FROM ", text, re.MULTILINE)) == 2
    assert re.search(r"^USER \d+$", text, re.MULTILINE)
    assert "HEALTHCHECK" in text


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-test.lock"])
def test_lock_pins_every_package_with_hashes_and_names_no_host(name: str) -> None:
    text = (ROOT / name).read_text()
    assert "://" not in text
    blocks = re.split(r"\n(?=[a-z])", text)
    assert all("--hash=sha256:" in block and "==" in block for block in blocks if block.strip())


def test_lock_holds_every_declared_dependency() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    locked = {
        line.split("==")[0] for line in (ROOT / "requirements.lock").read_text().splitlines() if "==" in line
    }
    wanted = {re.split(r"[<>=]", item)[0].lower() for item in declared}
    assert wanted <= locked
