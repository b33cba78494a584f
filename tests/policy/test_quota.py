"""Places of tenants and connections of addresses: exact at any moment, nothing left at the end (FC-35)."""

from __future__ import annotations

from collections import Counter
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gslb.policy.quota import ConcurrencyLimit, ConnectionLimit


def test_fc35_of_many_at_once_exactly_as_many_as_may() -> None:
    """FC-35 c: looking and counting are one step."""
    limit = ConcurrencyLimit()
    assert [limit.try_start("acme", 2) for _ in range(20)] == [True, True, *[False] * 18]
    assert limit.try_start("zeta", 2), "each tenant has its own"
    limit.end("acme")
    assert limit.try_start("acme", 2)
    assert not limit.try_start("acme", 2)


def test_fc35_a_limit_that_changes_counts_what_runs() -> None:
    """FC-35 d: unlimited requests count as well, so that a limit set by a reload knows of them."""
    limit = ConcurrencyLimit()
    assert all(limit.try_start("acme", None) for _ in range(3))
    assert not limit.try_start("acme", 2)
    limit.end("acme")
    assert not limit.try_start("acme", 2)
    limit.end("acme")
    assert limit.try_start("acme", 2)


def test_what_was_never_started_cannot_end() -> None:
    limit, connections = ConcurrencyLimit(), ConnectionLimit()
    with pytest.raises(KeyError):
        limit.end("acme")
    with pytest.raises(KeyError):
        connections.close(1)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.sampled_from([None, 1, 2, 5]))))
def test_fc35_against_a_plain_count(steps: list[tuple[str, bool, int | None]]) -> None:
    """FC-35: never negative, exact at any moment, and no memory of tenants that run nothing."""
    kept: dict[str, int] = {}
    limit = ConcurrencyLimit(kept)
    model: Counter[str] = Counter()
    for tenant, is_start, most in steps:
        if is_start:
            may = most is None or model[tenant] < most
            assert limit.try_start(tenant, most) is may
            model[tenant] += may
        elif model[tenant]:
            limit.end(tenant)
            model[tenant] -= 1
        assert limit.running(tenant) == model[tenant]
    assert kept == +model


def test_addresses_count_apart_and_a_subnet_of_64_bits_is_one_client() -> None:
    limit = ConnectionLimit()
    near, same, far = map(IPv6Address, ("2001:db8::1", "2001:db8::ffff:1", "2001:db8:0:1::1"))
    assert limit.try_open(near, 1) is not None
    assert limit.try_open(same, 1) is None
    assert limit.try_open(far, 1) is not None
    assert limit.try_open(IPv4Address("192.0.2.1"), 1) is not None
    assert limit.try_open(IPv4Address("192.0.2.2"), 1) is not None
    assert limit.try_open(IPv4Address("192.0.2.1"), 1) is None
    assert len(limit) == 4


def test_no_address_meets_anothers_count() -> None:
    limit = ConnectionLimit()
    for text in ("0.0.0.0", "0.0.0.1", "255.255.255.255", "::", "0:0:0:1::", "0:0:ffff:ffff::", "ffff::"):
        assert limit.try_open(ip_address(text), 1) is not None, text


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=80))
def test_connections_that_closed_leave_nothing(steps: list[tuple[bool, int]]) -> None:
    limit = ConnectionLimit()
    opened: list[int] = []
    for is_open, last in steps:
        if is_open:
            client = limit.try_open(IPv4Address(last), 3)
            assert (client is None) == (opened.count(~last) == 3)
            if client is not None:
                opened.append(client)
        elif opened:
            limit.close(opened.pop(last % len(opened)))
        assert len(limit) == len(set(opened))
    for client in opened:
        limit.close(client)
    assert len(limit) == 0
