from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gslb.cli_geo import geo
from tests.geo.shared_data import SHARED, needs_test_databases


def run(*arguments: str) -> Result:
    return CliRunner().invoke(geo, arguments, catch_exceptions=False)


def test_ip_shows_a_table() -> None:
    result = run("ip", "8.8.8.8", "::1")
    assert result.exit_code == 0
    assert "US" in result.stdout
    assert "within 2270 km" in result.stdout
    assert "unknown" in result.stdout


def test_ip_json_is_complete_and_bad_addresses_do_not_hide_good_ones() -> None:
    result = run("ip", "--json", "8.8.8.8", "bogus", "::1")
    assert result.exit_code == 1
    assert "'bogus' is no IP address" in result.stderr
    first, second = json.loads(result.stdout)
    assert first == {
        "address": "8.8.8.8",
        "country": "US",
        "subdivision": None,
        "city": None,
        "continent": "NA",
        "lat": 38.8,
        "lon": -93.5,
        "asn": None,
        "radius_km": 2270.0,
        "source": "embedded",
        "precision": "country",
    }
    assert (second["source"], second["precision"]) == ("unknown", "unknown")


def test_ip_names_a_database_that_cannot_be_opened(tmp_path: Path) -> None:
    result = run("ip", "8.8.8.8", "--mmdb", str(tmp_path / "absent.mmdb"))
    assert result.exit_code == 1
    assert "absent.mmdb: cannot read this location database" in result.stderr


@needs_test_databases
def test_ip_asks_the_database_first() -> None:
    database = str(SHARED / "geoip/GeoIP2-City-Test.mmdb")
    result = run("ip", "--json", "81.2.69.160", "--mmdb", database)
    (place,) = json.loads(result.stdout)
    assert (place["city"], place["source"], place["precision"]) == ("London", "mmdb", "city")


def test_rtt_prints_milliseconds_and_the_path() -> None:
    result = run("rtt", "aws:eu-central-1", "Tokyo")
    assert result.exit_code == 0
    assert result.stdout.startswith("2")
    assert " ms  aws:eu-central-1 - EU_S - SUEZ - DJI - CMB - SG - JP - Tokyo  " in result.stdout
    as_json = json.loads(run("rtt", "Frankfurt", "Lagos", "--json").stdout)
    assert as_json == {
        "from": "Frankfurt",
        "to": "Lagos",
        "rtt_ms": 97.4,
        "km": 7466,
        "via": ["EU_W", "DKR", "LOS"],
    }
    assert run("rtt", "--", "-23.5,-46.6", "Tokyo").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["Frankfrt", "Tokyo"], 1, "did you mean Frankfurt, DE"),
        (["Tokyo"], 2, "two places are needed"),
        ([], 2, "two places are needed"),
        (["--pairs", "/absent/pairs.csv"], 2, "/absent/pairs.csv"),
    ],
)
def test_rtt_says_what_is_wrong(arguments: list[str], exit_code: int, message: str) -> None:
    result = run("rtt", *arguments)
    assert result.exit_code == exit_code
    assert message in result.stderr


def test_rtt_pairs_keep_the_texts(tmp_path: Path) -> None:
    file = tmp_path / "pairs.csv"
    file.write_text('\ufeffnote,from,to\n1, são paulo ,"50.1,8.6"\n2,NA,aws:af-south-1\n', encoding="utf-8")
    result = run("rtt", "--pairs", str(file))
    assert (result.exit_code, result.stderr) == (0, "")
    rows = list(csv.reader(io.StringIO(result.stdout)))
    assert rows[0] == ["from", "to", "rtt_ms"]
    assert [row[:2] for row in rows[1:]] == [[" são paulo ", "50.1,8.6"], ["NA", "aws:af-south-1"]]
    as_json = json.loads(run("rtt", "--pairs", str(file), "--json").stdout)
    assert [str(row["rtt_ms"]) for row in as_json] == [row[2] for row in rows[1:]]
    assert run("rtt", "A", "B", "--pairs", str(file)).exit_code == 2


def test_rtt_pairs_name_file_line_and_column_of_every_bad_cell(tmp_path: Path) -> None:
    file = tmp_path / "pairs.csv"
    file.write_text("from,to\nTokyo,Lndon\nTokyo,Osaka\nnowhere,\nTokyo\n", encoding="utf-8")
    result = run("rtt", "--pairs", str(file))
    assert result.exit_code == 1
    assert result.stdout.splitlines()[1].startswith("Tokyo,Osaka,")
    assert f"{file}:2: column 'to': 'Lndon' names no known place: did you mean London, GB" in result.stderr
    assert f"{file}:4: column 'from': 'nowhere'" in result.stderr
    assert f"{file}:4: column 'to': ''" in result.stderr
    assert f"{file}:5: column 'to': ''" in result.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no column 'from' and no column 'to'"),
        (b"from,where\nTokyo,Osaka\n", "no column 'to'"),
        (b"from,to\nTokyo,Osaka\n\xff\xfe,x\n", "pairs.csv"),
    ],
)
def test_rtt_pairs_of_a_file_that_is_no_table(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "pairs.csv"
    file.write_bytes(content)
    result = run("rtt", "--pairs", str(file))
    assert result.exit_code == 1
    assert message in result.stderr


def test_rtt_measured_corrects_what_nobody_measured(tmp_path: Path) -> None:
    known = tmp_path / "known.csv"
    known.write_text("from,to,rtt_ms\nFrankfurt,Mumbai,140\nFrankfurt,Tokyo,270\nFrankfurt,Virginia,110\n")
    plain = json.loads(run("rtt", "Frankfurt", "Singapore", "--json").stdout)["rtt_ms"]
    asked = run("rtt", "Frankfurt", "Singapore", "--measured", str(known), "--json")
    assert asked.exit_code == 1, "Virginia is no city"
    known.write_text("from,to,rtt_ms\nFrankfurt,Mumbai,140\nFrankfurt,Tokyo,270\nFrankfurt,New York,105\n")
    asked = run("rtt", "Frankfurt", "Singapore", "--measured", str(known), "--json")
    assert json.loads(asked.stdout)["rtt_ms"] > plain
    far = run("rtt", "Lima", "Santiago", "--measured", str(known))
    assert far.stdout == run("rtt", "Lima", "Santiago").stdout


def test_rtt_measured_names_every_bad_row(tmp_path: Path) -> None:
    file = tmp_path / "known.csv"
    file.write_text("from,to,rtt_ms\nTokyo,Lndon,200\nTokyo,London,fast\nTokyo,London,-1\n")
    result = run("rtt", "Tokyo", "London", "--measured", str(file))
    assert result.exit_code == 1
    for line, message in ((2, "Lndon"), (3, "'fast' is no round trip in ms"), (4, "'-1' is no round trip in ms")):
        assert f"known.csv:{line}: " in result.stderr
        assert message in result.stderr
    file.write_text("from,to\nTokyo,London\n")
    assert (
        "no column 'rtt_ms': the first line must name from,to,rtt_ms"
        in run("rtt", "Tokyo", "London", "--measured", str(file)).stderr
    )
