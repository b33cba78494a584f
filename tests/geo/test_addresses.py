from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gslb.geo.addresses import Address, PrefixTable, parse_address, parse_network


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("203.0.113.5", "203.0.113.5"),
        ("2001:DB8:0:0::5", "2001:db8::5"),
        ("::ffff:203.0.113.5", "203.0.113.5"),
        ("::ffff:cb00:7105", "203.0.113.5"),
        ("0000:0000:0000:0000:0000:ffff:203.000.113.005", None),
        ("fe80::1%eth0", None),
        ("203.0.113.05", None),
        ("1.2.3.4:80", None),
        ("[::1]", None),
        (" 1.2.3.4", None),
        ("1.2.3", None),
        ("", None),
        ("٣.1.1.1", None),
        ("9" * 100_000, None),
    ],
)
def test_one_reading_of_every_spelling(text: str, canonical: str | None) -> None:
    address = parse_address(text)
    assert (None if address is None else str(address)) == canonical


@given(st.text())
def test_no_text_raises(text: str) -> None:
    parse_address(text)


def test_mapped_networks_are_ipv4_networks() -> None:
    assert str(parse_network("::ffff:10.0.0.0/104")) == "10.0.0.0/8"
    assert str(parse_network("::ffff:0:0/96")) == "0.0.0.0/0"
    assert str(parse_network("10.1.2.3/8")) == "10.0.0.0/8"
    assert str(parse_network("::/0")) == "::/0"


@pytest.mark.parametrize("text", ["", "10.0.0.0/33", "fe80::%eth0/10", "home", "10.0.0.0/8/8"])
def test_what_is_no_network_is_quoted(text: str) -> None:
    with pytest.raises(ValueError, match="is no network: write ADDRESS/BITS") as caught:
        PrefixTable([(text, 1)])
    assert repr(text) in str(caught.value)


def test_the_longest_prefix_wins_in_any_order() -> None:
    entries = [("10.0.0.0/8", "wide"), ("10.1.2.3", "host"), ("10.1.0.0/16", "narrow"), ("::/0", "v6")]
    for table in (PrefixTable(entries), PrefixTable(reversed(entries))):
        found = [
            table.find(address)
            for address in (IPv4Address("10.1.2.3"), IPv4Address("10.1.2.4"), IPv4Address("10.2.0.0"))
        ]
        assert found == ["host", "narrow", "wide"]
        assert table.find(IPv4Address("11.0.0.0")) is None
        assert table.find(IPv6Address("2001:db8::1")) == "v6"
    assert not PrefixTable([])


NETWORKS = st.one_of(
    st.builds(lambda n, bits: f"{IPv4Address(n)}/{bits}", st.integers(0, 2**32 - 1), st.integers(0, 32)),
    st.builds(lambda n, bits: f"{IPv6Address(n)}/{bits}", st.integers(0, 2**128 - 1), st.integers(0, 128)),
)


@given(st.lists(NETWORKS, max_size=8), st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)))
def test_the_table_agrees_with_a_search(networks: list[str], address: Address) -> None:
    read = [parse_network(text) for text in networks]
    holding = [network.prefixlen for network in read if address in network]
    found = PrefixTable((text, parse_network(text).prefixlen) for text in networks).find(address)
    assert found == (max(holding) if holding else None)
    assert all(ip_network(text, strict=False).version in (4, 6) for text in networks)
