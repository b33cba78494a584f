from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gslb.geo.addresses import parse_address
from gslb.geo.client_address import MOST_BYTES_READ, ClientAddress, TrustedProxies
from gslb.geo.locate import Locator
from gslb.types import Place

TRUSTED = TrustedProxies(["10.0.0.0/8"])
PROXY = "10.0.0.1"


def client(*x_forwarded_for: bytes, peer: str = PROXY) -> str:
    return TRUSTED.client_address(peer, x_forwarded_for).address


class TestFC25TheClientPicksItsOwnCountry:
    """FC-25: the nearest vouched-for address is the client's."""

    @pytest.mark.parametrize(
        ("row", "peer", "lines", "address", "country"),
        [
            (1, "198.51.100.7", [b"203.0.113.5"], "198.51.100.7", "US"),
            (2, PROXY, [b"203.0.113.5"], "203.0.113.5", "DE"),
            (3, PROXY, [b"192.0.2.1, 203.0.113.5, 10.0.0.9"], "203.0.113.5", "DE"),
            (4, PROXY, [b"192.0.2.1", b"203.0.113.5, 10.0.0.9"], "203.0.113.5", "DE"),
            (5, PROXY, [], PROXY, None),
            (6, PROXY, [b"garbage, 203.0.113.5"], "203.0.113.5", "DE"),
            (7, PROXY, [b"203.0.113.5, garbage"], PROXY, None),
        ],
    )
    def test_fc25_row(self, row: int, peer: str, lines: list[bytes], address: str, country: str | None) -> None:
        networks = {"203.0.113.0/24": "DE", "198.51.100.0/24": "US", "192.0.2.0/24": "JP"}
        locator = Locator({cidr: Place(country=code) for cidr, code in networks.items()}, None)
        assert client(*lines, peer=peer) == address
        assert locator.locate(address).country == country

    @pytest.mark.parametrize(
        ("peer", "lines", "forwarded_for"),
        [
            ("198.51.100.7", [b"203.0.113.5"], "198.51.100.7"),
            (PROXY, [b"192.0.2.1, 203.0.113.5, 10.0.0.9"], "192.0.2.1, 203.0.113.5, 10.0.0.9, 10.0.0.1"),
            (PROXY, [b"192.0.2.1", b"203.0.113.5, 10.0.0.9"], "192.0.2.1, 203.0.113.5, 10.0.0.9, 10.0.0.1"),
            (PROXY, [], "10.0.0.1"),
            (PROXY, [b"unknown", b",, "], "10.0.0.1"),
            (PROXY, [b"garbage, 203.0.113.5"], "garbage, 203.0.113.5, 10.0.0.1"),
            (PROXY, [b"1.1.1.1, a\xff\r\nX: y, 203.0.113.5"], "1.1.1.1, unknown, 203.0.113.5, 10.0.0.1"),
        ],
    )
    def test_fc25_one_line_goes_upstream(self, peer: str, lines: list[bytes], forwarded_for: str) -> None:
        assert TRUSTED.client_address(peer, lines).forwarded_for == forwarded_for

    def test_fc25_without_trusted_proxies_only_the_peer_counts(self) -> None:
        nobody = TrustedProxies([])
        assert nobody.client_address(PROXY, [b"203.0.113.5"], [b"for=1.1.1.1"]) == ClientAddress(PROXY, PROXY)

    def test_fc25_the_leftmost_address_when_every_hop_is_trusted(self) -> None:
        assert client(b"10.3.0.1, 10.2.0.1") == "10.3.0.1"

    def test_fc25_mapped_peers_and_networks_are_unmapped(self) -> None:
        assert client(b"203.0.113.5", peer="::ffff:10.0.0.1") == "203.0.113.5"
        mapped = TrustedProxies(["::ffff:10.0.0.0/104"])
        assert mapped.client_address(PROXY, [b"::ffff:203.0.113.5"]).address == "203.0.113.5"
        assert client(peer="::ffff:198.51.100.7") == "198.51.100.7"

    def test_fc25_a_peer_without_an_address_is_never_trusted(self) -> None:
        assert TRUSTED.client_address("", [b"203.0.113.5"]) == ClientAddress("", "unknown")

    def test_fc25_the_zone_of_a_link_local_peer_is_dropped(self) -> None:
        link = TrustedProxies(["fe80::/10"])
        assert link.client_address("fe80::1%eth0", [b"203.0.113.5"]).address == "203.0.113.5"


class TestFC26OtherSpellings:
    """FC-26: spellings within X-Forwarded-For."""

    @pytest.mark.parametrize(
        ("value", "address"),
        [
            (b"203.0.113.5:4711", "203.0.113.5"),
            (b"[2001:db8::5]:443", "2001:db8::5"),
            (b"2001:db8::5", "2001:db8::5"),
            (b'"[2001:db8::5]"', "2001:db8::5"),
            (b'"[2001:db8::5]:443"', "2001:db8::5"),
            (b"203.0.113.5, 10.0.0.9:55000", "203.0.113.5"),
            (b"2001:DB8:0:0::5", "2001:db8::5"),
            (b"[::ffff:203.0.113.5]:1", "203.0.113.5"),
            (b"203.0.113.5:_obfuscated", "203.0.113.5"),
            (b"\t203.0.113.5 ", "203.0.113.5"),
            (b"203.0.113.5,,", "203.0.113.5"),
        ],
    )
    def test_fc26_is_read(self, value: bytes, address: str) -> None:
        assert client(value) == address

    @pytest.mark.parametrize(
        "value",
        [
            *(b"fe80::1%eth0", b"203.0.113.05", b"unknown", b"Unknown", b"", b",,", b" , ,", b"_hidden"),
            *(b"[203.0.113.5]", b"[2001:db8::5", b'"203.0.113.5', b"203.0.113.5:", b"203.0.113.5:999999"),
            *(b"203.0.113", b"::1::", b"1.2.3.4 5", b"\xd9\xa3.1.1.1", b"203.0.113.5\x00", b"x" * 100_000),
        ],
        ids=lambda value: repr(value[:20]),
    )
    def test_fc26_is_not_an_address(self, value: bytes) -> None:
        assert client(value) == PROXY
        assert client(b"192.0.2.1, " + value if value.strip(b" ,") else value) == PROXY

    def test_fc26_64_kb_of_commas_is_bounded_work(self) -> None:
        """At most MOST_BYTES_READ are looked at (0.3 ms here), so what stands before them changes nothing."""
        assert TRUSTED.client_address(PROXY, [b"," * 65_536]) == ClientAddress(PROXY, PROXY)
        buried = b"203.0.113.5" + b"," * 65_536
        assert TRUSTED.client_address(PROXY, [buried]) == ClientAddress(PROXY, PROXY)

    def test_fc26_of_a_long_list_the_newest_entries_count(self) -> None:
        answer = TRUSTED.client_address(PROXY, [b"192.0.2.1, " * 50_000 + b"203.0.113.5"])
        assert answer.address == "203.0.113.5"
        assert len(answer.forwarded_for) < 2 * MOST_BYTES_READ
        # The cut falls inside an entry: that half is dropped, not read as another address.
        assert answer.forwarded_for.startswith("192.0.2.1, ")


class TestForwarded:
    @pytest.mark.parametrize(
        ("value", "address"),
        [
            (b"for=203.0.113.5", "203.0.113.5"),
            (b'proto=https;For="[2001:db8::5]:4711";by=10.0.0.1', "2001:db8::5"),
            (b"for=192.0.2.1, for=203.0.113.5;proto=http, for=10.0.0.9", "203.0.113.5"),
            (b"for=203.0.113.5, for=unknown", PROXY),
            (b"for=203.0.113.5, proto=http", PROXY),
            (b"for=_secret", PROXY),
            (b'for=203.0.113.5;ext="a,b"', PROXY),
            (b"", PROXY),
            (b";;=,=", PROXY),
        ],
    )
    def test_forwarded_is_read_like_x_forwarded_for(self, value: bytes, address: str) -> None:
        assert TRUSTED.client_address(PROXY, [], [value]).address == address

    def test_forwarded_goes_upstream_as_x_forwarded_for(self) -> None:
        answer = TRUSTED.client_address(PROXY, [], [b"for=192.0.2.1, for=203.0.113.5"])
        assert answer.forwarded_for == "192.0.2.1, 203.0.113.5, 10.0.0.1"

    def test_x_forwarded_for_wins(self) -> None:
        assert TRUSTED.client_address(PROXY, [b"203.0.113.5"], [b"for=192.0.2.1"]).address == "203.0.113.5"
        assert TRUSTED.client_address(PROXY, [b" ,"], [b"for=192.0.2.1"]).address == "192.0.2.1"

    def test_a_proxy_that_hides_its_peer_does_not_open_the_other_header(self) -> None:
        assert TRUSTED.client_address(PROXY, [b"unknown"], [b"for=192.0.2.1"]).address == PROXY


@given(st.text(), st.lists(st.binary(), max_size=4), st.lists(st.binary(), max_size=3))
def test_no_bytes_raise_and_the_upstream_value_is_printable(
    peer: str, lines: list[bytes], forwarded: list[bytes]
) -> None:
    TRUSTED.client_address(peer, lines, forwarded)
    answer = TRUSTED.client_address(PROXY, lines, forwarded)
    assert parse_address(answer.address) is not None
    assert answer.forwarded_for.endswith(PROXY)
    assert all(character == "\t" or " " <= character <= "~" for character in answer.forwarded_for)


@given(st.lists(st.ip_addresses(v=4), max_size=6), st.lists(st.ip_addresses(v=4), max_size=3))
def test_what_stands_left_of_an_untrusted_hop_never_matters(spoofed: list[object], hops: list[object]) -> None:
    real = "203.0.113.5"
    trusted = [str(hop) for hop in hops if str(hop).startswith("10.")]
    chain = ", ".join([*map(str, spoofed), real, *trusted]).encode()
    assert client(chain) == real


@given(st.lists(st.sampled_from([b"192.0.2.1", b"10.0.0.9", b"x", b"", b"unknown"]), max_size=6), st.data())
def test_lines_combine_in_order(entries: list[bytes], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(entries)))
    one = TRUSTED.client_address(PROXY, [b", ".join(entries)])
    assert TRUSTED.client_address(PROXY, [b",".join(entries[:cut]), b",".join(entries[cut:])]) == one
