from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gslb.config.fields import endpoint_address, split_host_port
from gslb.config.units import format_duration, parse_duration_s, parse_size_bytes, parse_time_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("300ms", 0.3),
        ("5s", 5.0),
        ("2m", 120.0),
        ("1h", 3600.0),
        ("1.5 s", 1.5),
        ("0s", 0.0),
        ("0.05ms", 0.00005),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("value", ["5", "", "s", "5 sec", "-1s", "1e3s", "٣s", "9999h", "5s\n", 5, True, None, []])
def test_what_is_no_duration(value: object) -> None:
    with pytest.raises(ValueError, match=r"duration|longer"):
        parse_duration_s(value)


@given(st.integers(0, 10**7).map(lambda us: us / 1e6))
def test_a_formatted_duration_reads_back(seconds: float) -> None:
    assert parse_duration_s(format_duration(seconds)) == pytest.approx(seconds, rel=1e-9)


def test_formatted_durations() -> None:
    assert [format_duration(s) for s in (0.012, 2.0, 0.00005, 3.9, 0.0)] == [
        "12ms",
        "2s",
        "0.05ms",
        "3.9s",
        "0s",
    ]


@pytest.mark.parametrize(
    ("text", "size"),
    [("32KiB", 32768), ("1MiB", 2**20), ("500KB", 500_000), (7, 7), ("7", 7), ("2 GB", 2 * 10**9)],
)
def test_sizes(text: object, size: int) -> None:
    assert parse_size_bytes(text) == size


@pytest.mark.parametrize("value", ["", "KiB", "-1", "1.5MiB", "1TB", "999999GiB", True, None, 1.0])
def test_what_is_no_size(value: object) -> None:
    with pytest.raises(ValueError, match=r"size|larger"):
        parse_size_bytes(value)


def test_times() -> None:
    assert parse_time_s("1970-01-02T00:00:00Z") == 86400
    assert parse_time_s("1970-01-01T01:00:00+01:00") == 0
    for text in ("2026-01-01", "2026-01-01T00:00:00", "soon", "", "0001-01-01T00:00:00+14:00x"):
        with pytest.raises(ValueError, match=r"2027-01-01T00:00:00Z"):
            parse_time_s(text)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://a:8000", "a:8000"),
        ("http://a", "a:80"),
        ("https://A.example/base/", "a.example:443/base"),
        ("http://[2001:DB8::1]:9", "[2001:db8::1]:9"),
    ],
)
def test_endpoint_addresses(url: str, address: str) -> None:
    assert endpoint_address(url) == address


def test_host_and_port() -> None:
    assert split_host_port("127.0.0.1:0") == ("127.0.0.1", 0)
    assert split_host_port("[::]:8080") == ("::", 8080)
    for text in ("8080", ":8080", "a:", "a:65536", "::1:80", "a:b", "a:²", "http://a:1", "a:1\n"):
        with pytest.raises(ValueError, match="HOST:PORT"):
            split_host_port(text)


@pytest.mark.parametrize("host", ["a..b", ".a", "a" * 64, ".".join(["a" * 60] * 5)])
def test_a_host_that_cannot_be_looked_up_is_no_endpoint(host: str) -> None:
    with pytest.raises(ValueError, match="no host name"):
        endpoint_address(f"http://{host}:8000")
