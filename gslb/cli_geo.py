"""`gslb geo`: where an address is, and how far apart two places are, as the balancer sees it."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterator
from typing import IO

import click
import orjson
from rich import box
from rich.console import Console
from rich.table import Table

from gslb.geo.addresses import parse_address
from gslb.geo.locate import GeoDatabaseError, Locator, open_database
from gslb.geo.place import UnknownLocation, parse_location
from gslb.geo.rtt_prior import network_path
from gslb.geo.rtt_residual import MeasuredPair, RttResiduals
from gslb.types import Place

_PAIR_COLUMNS = ("from", "to")


@click.group()
def geo() -> None:
    """Where an address is, and the round trip between two places."""


@geo.command()
@click.argument("addresses", metavar="ADDRESS...", nargs=-1, required=True)
@click.option("--mmdb", metavar="PATH", help="Location database to ask before the embedded country table.")
@click.option("--json", "as_json", is_flag=True, help="A JSON array, one object an address.")
def ip(addresses: tuple[str, ...], mmdb: str | None, as_json: bool) -> None:
    """Where each ADDRESS is, who says so, and how sure that is."""
    try:
        database = open_database(mmdb) if mmdb else None
    except GeoDatabaseError as error:
        raise click.ClickException(str(error)) from None
    locator = Locator({}, database)
    located: list[tuple[str, Place]] = []
    has_failed = False
    for text in addresses:
        if parse_address(text) is None:
            click.echo(f"Error: {text!r} is no IP address", err=True)
            has_failed = True
        else:
            located.append((text, locator.locate(text)))
    if as_json:
        _print_json([_as_object(text, place) for text, place in located])
    elif located:
        _print_places(located)
    sys.exit(1 if has_failed else 0)


@geo.command()
@click.argument("from_text", metavar="[FROM]", required=False)
@click.argument("to_text", metavar="[TO]", required=False)
@click.option(
    "--pairs",
    metavar="FILE.csv",
    type=click.File("r", encoding="utf-8-sig"),
    help="Columns from,to; the answer is the same rows with rtt_ms. A dash reads standard input.",
)
@click.option(
    "--measured",
    metavar="FILE.csv",
    type=click.File("r", encoding="utf-8-sig"),
    help="Columns from,to,rtt_ms: round trips you know. What is assumed of others is corrected by them.",
)
@click.option("--json", "as_json", is_flag=True, help="JSON: an object, or an array for --pairs.")
def rtt(
    from_text: str | None, to_text: str | None, pairs: IO[str] | None, measured: IO[str] | None, as_json: bool
) -> None:
    """The round trip in ms that is assumed from FROM to TO until one is measured.

    Both are locations as in the configuration: aws:eu-central-1, a city, a country, lat,lon (write -- before a
    negative latitude).
    """
    if pairs is not None and from_text is not None:
        raise click.UsageError("--pairs takes the places from its file: leave FROM and TO out")
    residuals = RttResiduals(_read_measured(measured) if measured is not None else ())
    if pairs is not None:
        sys.exit(_answer_pairs(pairs, residuals, as_json))
    if from_text is None or to_text is None:
        raise click.UsageError("two places are needed: gslb geo rtt FROM TO, or --pairs FILE.csv")
    try:
        start, end = parse_location(from_text), parse_location(to_text)
    except UnknownLocation as error:
        raise click.ClickException(str(error)) from None
    path = network_path(start, end)
    rtt_ms = round(residuals.corrected_ms(start, end), 1)
    via = path.via if path else ()
    if as_json:
        km = round(path.km) if path else None
        _print_json({"from": from_text, "to": to_text, "rtt_ms": rtt_ms, "km": km, "via": via})
        return
    click.echo(
        f"{rtt_ms:.1f} ms  {' - '.join((from_text, *via, to_text))}" + (f"  {path.km:.0f} km" if path else "")
    )


def _read_measured(file: IO[str]) -> list[MeasuredPair]:
    """The rows of --measured; all that is wrong with them at once, and then the command ends."""
    measured: list[MeasuredPair] = []
    errors: list[str] = []
    try:
        for line, (start, end, text) in _rows(file, (*_PAIR_COLUMNS, "rtt_ms")):
            try:
                measured.append(MeasuredPair(parse_location(start), parse_location(end), _milliseconds(text)))
            except ValueError as error:
                errors.append(f"{file.name}:{line}: {error}")
    except (ValueError, csv.Error) as error:
        errors.append(f"{file.name}: {error}")
    if errors:
        raise click.ClickException("\n".join(errors))
    return measured


def _milliseconds(text: str) -> float:
    try:
        rtt_ms = float(text)
    except ValueError:
        rtt_ms = math.nan
    if not (math.isfinite(rtt_ms) and rtt_ms > 0):
        raise ValueError(f"column 'rtt_ms': {text!r} is no round trip in ms")
    return rtt_ms


def _answer_pairs(pairs: IO[str], residuals: RttResiduals, as_json: bool) -> int:
    """Print the good rows with their round trips and the bad ones' errors; the exit code."""
    answers: list[tuple[str, str, float]] = []
    errors: list[str] = []
    try:
        for line, row in _rows(pairs, _PAIR_COLUMNS):
            places = []
            for column, text in zip(_PAIR_COLUMNS, row, strict=True):
                try:
                    places.append(parse_location(text))
                except UnknownLocation as error:
                    errors.append(f"{pairs.name}:{line}: column {column!r}: {error}")
            if len(places) == 2:
                answers.append((row[0], row[1], round(residuals.corrected_ms(*places), 1)))
    except (ValueError, csv.Error) as error:
        errors.append(f"{pairs.name}: {error}")
    if as_json:
        _print_json([{"from": start, "to": end, "rtt_ms": rtt_ms} for start, end, rtt_ms in answers])
    else:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow((*_PAIR_COLUMNS, "rtt_ms"))
        writer.writerows(answers)
    for message in errors:
        click.echo(f"Error: {message}", err=True)
    return 1 if errors else 0


def _rows(file: IO[str], columns: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Line number and the texts in `columns` of each row. A missing cell is an empty text. Raises ValueError for
    a file that is no UTF-8 or lacks a column, csv.Error for one that is no CSV."""
    reader = csv.DictReader(file, restval="")
    missing = [name for name in columns if name not in (reader.fieldnames or ())]
    if missing:
        raise ValueError(
            f"no column {' and no column '.join(map(repr, missing))}: the first line must name {','.join(columns)}"
        )
    for row in reader:
        yield reader.line_num, tuple(row[name] for name in columns)


def _as_object(address: str, place: Place) -> dict[str, object]:
    members = ("country", "subdivision", "city", "continent", "lat", "lon", "asn", "radius_km", "source")
    return (
        {"address": address} | {name: getattr(place, name) for name in members} | {"precision": _precision(place)}
    )


def _precision(place: Place) -> str:
    """What the place names at best."""
    if place.city:
        return "city"
    if place.country:
        return "country"
    if place.is_located:
        return "coordinates" if place.continent is None else "continent"
    return "unknown"


def _print_places(located: list[tuple[str, Place]]) -> None:
    table = Table(box=box.SIMPLE)
    for heading in ("address", "place", "lat,lon", "how sure", "source"):
        table.add_column(heading, overflow="fold")
    for text, place in located:
        names = (place.city, place.subdivision, place.country or place.continent)
        point = "" if place.lat is None else f"{place.lat:g},{place.lon:g}"
        radius = "" if place.radius_km is None else f", within {place.radius_km:g} km"
        name = ", ".join(part for part in names if part) or "unknown"
        table.add_row(text, name, point, _precision(place) + radius, place.source)
    Console().print(table, markup=False)


def _print_json(value: object) -> None:
    click.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())
