"""Who the client is and where: FC-25 (who vouches), FC-26 (spellings), FC-27 (no country), over real sockets.

Peers are set by the PROXY protocol, so that each row has the very addresses of its case.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.edge import RunningEdge
from tests.support.mmdb import mmdb
from tests.support.raw_client import Answer, chat, request
from tests.support.raw_upstream import RawUpstream
from tests.system.conftest import MakeEdge, MakeUpstream

GEO: dict[str, Any] = {
    "proxy_protocol": True,
    "trusted_proxies": ["127.0.0.0/8", "10.0.0.0/8"],
    "embedded": False,
    "default": "Frankfurt, DE",
    "overrides": {"203.0.113.0/24": "DE", "198.51.100.0/24": "US", "192.0.2.0/24": "JP", "2001:db8::/32": "JP"},
}


async def three_regions(
    edge: MakeEdge, upstream: MakeUpstream, **geo: Any
) -> tuple[RunningEdge, list[RawUpstream]]:
    """An edge that stands beside its clients, with a region for each of the countries."""
    ups = [await upstream() for _ in range(3)]
    fleet = dict(zip(("eu", "us", "ap"), ([up] for up in ups), strict=True))
    return await edge(fleet, geo={**GEO, **geo}), ups


def lines_of(*values: bytes) -> bytes:
    return b"".join(b"X-Forwarded-For: %b\r\n" % value for value in values)


async def ask_from(running: RunningEdge, peer: str, fields: bytes = b"") -> Answer:
    """A request whose connection comes from `peer`, with raw header lines."""
    family = b"TCP6" if ":" in peer else b"TCP4"
    raw = request(chat()).replace(b"Host: api.example\r\n", b"Host: api.example\r\n" + fields)
    return await running.ask(b"PROXY %b %b %b 4711 80\r\n" % (family, peer.encode(), peer.encode()) + raw)


FC_25: dict[str, tuple[str, tuple[bytes, ...], str, str, str, str]] = {
    "1 untrusted peer": ("198.51.100.7", (b"203.0.113.5",), "198.51.100.7", "US", "us", "198.51.100.7"),
    "2 trusted peer": ("10.0.0.1", (b"203.0.113.5",), "203.0.113.5", "DE", "eu", "203.0.113.5, 10.0.0.1"),
    "3 a spoofed entry": (
        "10.0.0.1", (b"192.0.2.1, 203.0.113.5, 10.0.0.9",), "203.0.113.5", "DE", "eu",
        "192.0.2.1, 203.0.113.5, 10.0.0.9, 10.0.0.1",
    ),
    "4 a spoofed line": (
        "10.0.0.1", (b"192.0.2.1", b"203.0.113.5, 10.0.0.9"), "203.0.113.5", "DE", "eu",
        "192.0.2.1, 203.0.113.5, 10.0.0.9, 10.0.0.1",
    ),
    "5 no header": ("10.0.0.1", (), "10.0.0.1", "DE", "eu", "10.0.0.1"),
    "6 garbage on the left": (
        "10.0.0.1", (b"garbage, 203.0.113.5",), "203.0.113.5", "DE", "eu", "garbage, 203.0.113.5, 10.0.0.1",
    ),
    "7 garbage on the right": (
        "10.0.0.1", (b"192.0.2.5, garbage",), "10.0.0.1", "DE", "eu", "192.0.2.5, garbage, 10.0.0.1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", FC_25)
async def test_fc25_the_nearest_vouched_for_address_decides(
    row: str, edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-25: one address for geography and log, one X-Forwarded-For line upstream."""
    peer, values, address, country, region, forwarded_for = FC_25[row]
    running, ups = await three_regions(edge, upstream)
    found = await ask_from(running, peer, lines_of(*values))
    assert (found.status, found.one("x-gslb-region")) == (200, region)
    record = await running.record()
    assert (record["client"], record["country"]) == (address, country)
    (got,) = [one for up in ups for one in up.requests]
    assert got.all("x-forwarded-for") == [forwarded_for]


async def test_fc25_the_limit_of_connections_counts_the_peer_not_the_header(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-25: a header cannot spend another client's share; an untrusted peer is who it is."""
    running = await edge({"eu": [await upstream()]}, geo=GEO, limits={"connections_per_address": 1})
    first = await running.connect()
    start = b"PROXY TCP4 198.51.100.7 198.51.100.7 1 2\r\n"
    assert (await first.ask(start + request(chat()))).status == 200
    second = await running.connect()
    second.write(start + request(chat(), fields=(("X-Forwarded-For", "203.0.113.77"),)))
    await second.end()
    assert second.received == b""
    assert (await ask_from(running, "203.0.113.77")).status == 200


FC_26: dict[bytes, tuple[str, str]] = {
    b"203.0.113.5:4711": ("203.0.113.5", "eu"),
    b"[2001:db8::5]:443": ("2001:db8::5", "ap"),
    b"2001:db8::5": ("2001:db8::5", "ap"),
    b'"[2001:db8::5]"': ("2001:db8::5", "ap"),
    b"198.51.100.5, 10.0.0.9:55000": ("198.51.100.5", "us"),
    b"2001:DB8:0:0::5": ("2001:db8::5", "ap"),
    b"fe80::1%eth0": ("10.0.0.1", "eu"),
    b"203.0.113.05": ("10.0.0.1", "eu"),
    b"unknown": ("10.0.0.1", "eu"),
    b"": ("10.0.0.1", "eu"),
    b",,": ("10.0.0.1", "eu"),
    b"caf\xe9": ("10.0.0.1", "eu"),
}


@pytest.mark.parametrize("value", FC_26)
async def test_fc26_any_spelling_is_read_or_ignored(value: bytes, edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-26: canonical form, trusted hops recognised with their port, never an error."""
    address, region = FC_26[value]
    running, _ = await three_regions(edge, upstream)
    found = await ask_from(running, "10.0.0.1", lines_of(value))
    assert (found.status, found.one("x-gslb-region")) == (200, region)
    assert (await running.record())["client"] == address


async def test_fc26_64_kb_of_commas_meet_the_header_limit(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-26, the last one: 431 above the limit, bounded work below it."""
    running, _ = await three_regions(edge, upstream)
    found = await ask_from(running, "10.0.0.1", lines_of(b"," * 65536))
    assert (found.status, found.error["code"]) == (431, "headers_too_large")
    assert (await ask_from(running, "10.0.0.1", lines_of(b"," * 30_000))).status == 200


RECORDS = {
    "192.0.2.0/28": {"continent": {"code": "AS"}},
    "192.0.2.16/28": {"registered_country": {"iso_code": "US"}},
    "192.0.2.32/28": {"country": {"iso_code": "JP"}},
    "192.0.2.48/28": {"country": {"iso_code": "XK"}},
    "192.0.2.64/28": {"country": {"iso_code": "US"}, "location": {"latitude": 37.4, "longitude": -122.1}},
    "192.0.2.80/28": {"city": {"names": {"en": "Nowhere"}}},
    "192.0.2.96/28": {},
    "192.0.2.112/28": {"country": "JP", "location": [1.0], "continent": {"code": 7}},
}
"""A continent alone, a registered country alone, no location, Kosovo, a city database's record, oddities."""

FC_27: dict[str, tuple[str | None, str]] = {
    "10.1.2.3": ("DE", "eu"), "::1": ("DE", "eu"), "100.64.0.1": ("DE", "eu"),
    "192.0.2.1": (None, "ap"), "192.0.2.17": ("US", "us"), "192.0.2.33": ("JP", "ap"), "192.0.2.49": ("XK", "eu"),
    "192.0.2.65": ("US", "us"), "192.0.2.81": ("DE", "eu"), "192.0.2.97": ("DE", "eu"),
    "2001:db8::5": ("DE", "eu"),
}  # fmt: skip
"""Client -> its country and the region that serves it, where nobody knows: Frankfurt."""


@pytest.mark.parametrize("address", FC_27)
async def test_fc27_whatever_the_database_says_somebody_serves(
    address: str, edge: MakeEdge, upstream: MakeUpstream, tmp_path: Path
) -> None:
    """FC-27: no record, half a record or an IPv4-only file: never an error, and the same region each time."""
    country, region = FC_27[address]
    (tmp_path / "test.mmdb").write_bytes(mmdb(RECORDS))
    running, _ = await three_regions(edge, upstream, database=str(tmp_path / "test.mmdb"), overrides={})
    for _ in range(5):
        found = await ask_from(running, address)
        assert (found.status, found.one("x-gslb-region")) == (200, region)
    assert {(record["client"], record["country"]) for record in running.records()} == {(address, country)}


async def test_fc27_the_default_region_is_down(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-27: the next in the default's order serves, not 503; without a default any region does."""
    running, ups = await three_regions(edge, upstream)
    ups[0].stop()
    found = await ask_from(running, "100.64.0.1")
    assert (found.status, found.one("x-gslb-region")) == (200, "us")


async def test_fc27_unknown_without_a_default_is_served_and_fenced(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-27 and DESIGN section 3: unknown is a place of its own: served, but closed out by residency rules."""
    running, _ = await three_regions(edge, upstream, default=None)
    assert (await ask_from(running, "100.64.0.1")).status == 200
    assert (await running.record())["country"] is None
    fleet = {"eu": [await upstream()]}
    rules = {"rules": [{"countries": ["EU"], "jurisdictions": ["EU"]}]}
    fenced = await edge(fleet, geo={**GEO, "default": None}, residency=rules)
    found = await ask_from(fenced, "100.64.0.1")
    assert (found.status, found.error["code"]) == (403, "residency_denied")
