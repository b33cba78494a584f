"""What `python -m benchmarks.rtt_prior` computes: ranks, nearest regions, and the gain by measured pairs."""

from __future__ import annotations

import pytest

from benchmarks.rtt_prior import (
    AZURE,
    nearest_right,
    one_edge_figures,
    rank_correlation,
    read_pairs,
    residual_figures,
)
from tests.geo.shared_data import needs_network_tables

A_B, A_C, B_C = ("a", "b"), ("a", "c"), ("b", "c")


def test_rank_correlation_looks_at_order_only() -> None:
    assert rank_correlation({A_B: 1, A_C: 2, B_C: 3}, {A_B: 10, A_C: 11, B_C: 900}) == pytest.approx(1)
    assert rank_correlation({A_B: 1, A_C: 2, B_C: 3}, {A_B: 3, A_C: 2, B_C: 1}) == pytest.approx(-1)
    assert rank_correlation({A_B: 1, A_C: 1, B_C: 3}, {A_B: 5, A_C: 5, B_C: 9}) == pytest.approx(1)


def test_nearest_is_judged_where_all_ways_are_measured() -> None:
    measured = {("a", "x"): 10.0, ("a", "y"): 20.0, ("b", "x"): 30.0, ("b", "y"): 20.0, ("c", "x"): 5.0}
    assumed = {pair: 1.0 if pair[1] == "x" else 2.0 for pair in measured}
    assert nearest_right(measured, assumed, ("x", "y")) == (1, 2)


@needs_network_tables
def test_measured_pairs_improve_the_others() -> None:
    measured = read_pairs(AZURE)
    for k, mark in ((1, 0.042), (3, 0.037), (5, 0.034)):
        row = residual_figures(measured, k, lots=1)
        assert row["median_error"] <= mark < row["median_error_prior"]
        assert row["p90_error"] <= row["p90_error_prior"]
    edge = one_edge_figures(measured, 5, lots=30)
    assert edge["median_error"] <= edge["median_error_prior"]
