"""How good the round trip prior is: `python -m benchmarks.rtt_prior [--json]`.

Against published tables of round trips between cloud regions, read from `../shared/data/network` beside the
checkout (without it nothing is measured, and that is said). A pair counts once, with the mean of both
directions; error is |prior / measured - 1|. Map and rates were made with the Azure P50 table in view, the
others only afterwards.

Then what a few measured pairs do for the others (`gslb.geo.rtt_residual`): each region measures k pairs drawn
by lot, and the error is taken over all pairs that nobody measured; `one edge` is a single edge that has
measured k regions, judged by its other pairs (what a client's way to that edge would gain).
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from gslb.geo.atlas import cloud_regions
from gslb.geo.place import parse_location
from gslb.geo.rtt_prior import rtt_prior_ms
from gslb.geo.rtt_residual import MeasuredPair, RttResiduals

TABLES = Path(__file__).resolve().parents[2] / "shared" / "data" / "network"

PairsMs = Mapping[tuple[str, str], float]
"""Measured ms by two region names in alphabetical order."""

SIX = tuple(
    f"azure:{name}" for name in ("eastus", "westus2", "westeurope", "southeastasia", "japaneast", "australiaeast")
)
"""A fleet spread over the world: for every other Azure region the nearest of these is asked for."""

KS = (1, 3, 5)
LOTS = 5
ONE_EDGE_LOTS = 100


@dataclass(frozen=True, slots=True)
class Table:
    """A file of the data set."""

    title: str
    provider: str
    file: str
    column: str


AZURE = Table("Azure P50 2025", "azure", "azure_rtt_p50_2025-06.csv", "p50_rtt_ms")
ALL_TABLES = (
    AZURE,
    Table("Azure P95 2026", "azure", "azure_rtt_p95_2026-07.csv", "p95_rtt_ms"),
    Table("AWS P50 2025", "aws", "aws_rtt_p50_2025-05.csv", "p50_rtt_ms"),
    Table("IBM mean 2025", "ibm", "ibm_rtt_avg_2025-09.csv", "avg_rtt_ms"),
)


def read_pairs(table: Table) -> dict[tuple[str, str], float]:
    """The measured pairs of regions that gslb knows, without those of a region with itself."""
    both_ways: dict[tuple[str, str], list[float]] = {}
    with (TABLES / table.file).open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            one, other = sorted(f"{table.provider}:{row[column]}" for column in ("from_region", "to_region"))
            if one != other and {one, other} <= cloud_regions().keys():
                both_ways.setdefault((one, other), []).append(float(row[table.column]))
    return {pair: statistics.mean(values) for pair, values in both_ways.items()}


def priors(pairs: PairsMs) -> dict[tuple[str, str], float]:
    """What the prior says of the same pairs."""
    return {(a, b): rtt_prior_ms(parse_location(a), parse_location(b)) for a, b in pairs}


def median_p90(errors: Sequence[float]) -> tuple[float, float]:
    """Median and ninth decile."""
    ordered = sorted(errors)
    return statistics.median(ordered), ordered[int(0.9 * len(ordered))]


def rank_correlation(one: PairsMs, other: PairsMs) -> float:
    """Spearman's: 1 when both put the pairs in the same order."""
    pairs = sorted(one)
    return statistics.correlation(*(_ranks([table[pair] for pair in pairs]) for table in (one, other)))


def _ranks(values: Sequence[float]) -> list[float]:
    """Rank of each value; equal values share the mean of theirs."""
    where: dict[float, list[int]] = {}
    for rank, value in enumerate(sorted(values)):
        where.setdefault(value, []).append(rank)
    return [statistics.mean(where[value]) for value in values]


def nearest_right(measured: PairsMs, assumed: PairsMs, fleet: Sequence[str] = SIX) -> tuple[int, int]:
    """For how many regions outside `fleet` the prior names the nearest member, and of how many."""
    right = judged = 0
    for client in sorted({name for pair in measured for name in pair} - set(fleet)):
        ways = {region: (min(client, region), max(client, region)) for region in fleet}
        if all(pair in measured for pair in ways.values()):
            judged += 1
            truth = min(fleet, key=lambda region: measured[ways[region]])
            right += truth == min(fleet, key=lambda region: assumed[ways[region]])
    return right, judged


def prior_figures(table: Table) -> dict[str, float]:
    """One row of the first table."""
    measured = read_pairs(table)
    assumed = priors(measured)
    median, p90 = median_p90([abs(assumed[pair] / ms - 1) for pair, ms in measured.items()])
    figures: dict[str, float] = {
        "pairs": len(measured), "median_error": median, "p90_error": p90,
        "rank_correlation": rank_correlation(measured, assumed),
    }  # fmt: skip
    if table.provider == "azure":
        figures["nearest_of_six_right"], figures["nearest_of_six_judged"] = nearest_right(measured, assumed)
    return figures


def _pairs_by_region(pairs: PairsMs) -> dict[str, list[tuple[str, str]]]:
    by_region: dict[str, list[tuple[str, str]]] = {}
    for pair in sorted(pairs):
        for name in pair:
            by_region.setdefault(name, []).append(pair)
    return by_region


def errors_given(
    measured: PairsMs, told: set[tuple[str, str]], asked: Sequence[tuple[str, str]]
) -> list[tuple[float, float]]:
    """Errors on `asked` of the prior, and of what `told` makes of it."""
    learnt = RttResiduals(
        MeasuredPair(parse_location(a), parse_location(b), measured[a, b]) for a, b in sorted(told)
    )
    errors = []
    for a, b in asked:
        places = parse_location(a), parse_location(b)
        estimates = rtt_prior_ms(*places), learnt.corrected_ms(*places)
        errors.append((abs(estimates[0] / measured[a, b] - 1), abs(estimates[1] / measured[a, b] - 1)))
    return errors


def residual_figures(measured: PairsMs, k: int, lots: int = LOTS) -> dict[str, float]:
    """Every region has measured `k` pairs: error on the pairs that nobody has."""
    dice = Random(k)
    by_region = _pairs_by_region(measured)
    errors: list[tuple[float, float]] = []
    for _ in range(lots):
        told = {pair for pairs in by_region.values() for pair in dice.sample(pairs, min(k, len(pairs)))}
        errors += errors_given(measured, told, [pair for pair in sorted(measured) if pair not in told])
    return _before_and_after(k, errors)


def one_edge_figures(measured: PairsMs, k: int, lots: int = ONE_EDGE_LOTS) -> dict[str, float]:
    """One edge has measured `k` regions: error on its other pairs."""
    dice = Random(k)
    by_region = _pairs_by_region(measured)
    errors: list[tuple[float, float]] = []
    for _ in range(lots):
        pairs = by_region[dice.choice(sorted(by_region))]
        told = set(dice.sample(pairs, min(k, len(pairs) - 1)))
        errors += errors_given(measured, told, [pair for pair in pairs if pair not in told])
    return _before_and_after(k, errors)


def _before_and_after(k: int, errors: Sequence[tuple[float, float]]) -> dict[str, float]:
    before, after = zip(*errors, strict=True) if errors else ((0.0,), (0.0,))
    figures: dict[str, float] = {"k": k}
    figures["median_error_prior"], figures["p90_error_prior"] = median_p90(before)
    figures["median_error"], figures["p90_error"] = median_p90(after)
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rtt_prior", description="Error of the RTT prior.")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of tables")
    asked = parser.parse_args()
    if not TABLES.is_dir():
        sys.exit("Nothing measured: there is no ../shared/data/network beside this checkout.")
    by_prior = {table.title: prior_figures(table) for table in ALL_TABLES}
    measured = {table.title: read_pairs(table) for table in (AZURE, ALL_TABLES[2])}
    by_residual = {title: [residual_figures(pairs, k) for k in KS] for title, pairs in measured.items()}
    one_edge = {title: [one_edge_figures(pairs, k) for k in KS] for title, pairs in measured.items()}
    if asked.json:
        print(json.dumps({"prior": by_prior, "residual": by_residual, "one_edge": one_edge}, indent=2))
        return
    print(f"{'prior':16}  pairs  median     p90  rank corr.  nearest of six")
    for title, row in by_prior.items():
        right = row.get("nearest_of_six_right")
        nearest = "" if right is None else f"{right} of {row['nearest_of_six_judged']}"
        print(
            f"{title:16} {row['pairs']:6} {row['median_error']:7.1%} {row['p90_error']:7.1%} "
            f"{row['rank_correlation']:11.4f}  {nearest}"
        )
    for heading, figures in (("k pairs a region", by_residual), ("one edge, k pairs", one_edge)):
        print(f"\n{heading:17} k   median: prior -> learnt      p90: prior -> learnt")
        for title, rows in figures.items():
            for row in rows:
                print(
                    f"{title:17} {row['k']}  {row['median_error_prior']:13.1%} -> {row['median_error']:6.1%}"
                    f"  {row['p90_error_prior']:14.1%} -> {row['p90_error']:6.1%}"
                )


if __name__ == "__main__":
    main()
