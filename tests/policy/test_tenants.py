"""FC-32: strange bytes, schemes, spaces and double lines in credentials."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gslb.policy.tenants import TenantDirectory, TenantRights

GOOD = TenantRights("acme", expires_at=1000.0)
DIRECTORY = TenantDirectory([(b"sk-good", GOOD), (b"sk-other", TenantRights("other"))])


@pytest.mark.parametrize(
    "value",
    [b"Bearer sk-good", b"bearer sk-good", b"BEARER   sk-good", b"Bearer sk-good ", b"\tBearer sk-good\t "],
)
def test_fc32_accepted(value: bytes) -> None:
    """FC-32: strange bytes in a key are a wrong key."""
    assert DIRECTORY.authenticate([value], 0.0) is GOOD


@pytest.mark.parametrize(
    "value",
    [
        b"Bearer caf\xe9", "Bearer “sk-good”".encode(), b"Bearer", b"Bearer ", b"", b"Basic c2stZ29vZA==",
        b"Bearer " + b"k" * 8192, b"sk-good", b"Bearersk-good", b"Bearer\tsk-good", b"Bearer sk-good x",
        b"Bearer sk-goo", b"Bearer SK-GOOD", b"Bearer sk-good\x00",
    ],
)  # fmt: skip
def test_fc32_refused(value: bytes) -> None:
    """FC-32: strange bytes in a key are a wrong key."""
    assert DIRECTORY.authenticate([value], 0.0) is None


def test_fc32_absent_and_twice() -> None:
    """FC-32: strange bytes in a key are a wrong key."""
    assert DIRECTORY.authenticate([], 0.0) is None
    assert DIRECTORY.authenticate([b"Bearer sk-good"] * 2, 0.0) is None
    assert DIRECTORY.authenticate([b"Bearer sk-good", b"Bearer bad"], 0.0) is None


def test_a_key_ends_at_its_time() -> None:
    assert DIRECTORY.authenticate([b"Bearer sk-good"], 999.9) is GOOD
    assert DIRECTORY.authenticate([b"Bearer sk-good"], 1000.0) is None


def test_the_anthropic_dialect() -> None:
    assert DIRECTORY.authenticate([], 0.0, [b" sk-good\t"]) is GOOD
    assert DIRECTORY.authenticate([], 0.0, [b"Bearer sk-good"]) is None
    assert DIRECTORY.authenticate([], 0.0, [b"sk-good", b"sk-good"]) is None
    assert DIRECTORY.authenticate([b"Bearer sk-good"], 0.0, [b"whatever"]) is GOOD
    assert DIRECTORY.authenticate([b"Bearer wrong"], 0.0, [b"sk-good"]) is None


def test_keys_must_differ_and_exist() -> None:
    with pytest.raises(ValueError, match="'a' and 'b' share a key"):
        TenantDirectory([(b"k", TenantRights("a")), (b"k", TenantRights("b"))])
    with pytest.raises(ValueError, match="'a' is empty"):
        TenantDirectory([(b"", TenantRights("a"))])
    assert len(DIRECTORY) == 2


def test_no_key_in_repr() -> None:
    assert "sk-good" not in repr(DIRECTORY) + repr(GOOD)


@given(st.lists(st.binary(max_size=30), max_size=3), st.lists(st.binary(max_size=30), max_size=3), st.floats())
def test_never_raises_and_never_guesses(lines: list[bytes], keys: list[bytes], wall_s: float) -> None:
    assert DIRECTORY.authenticate(lines, wall_s, keys) is None
