"""Counting: every request has one fate, and the figures of the document follow from the fates."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gslb.demo.tally import Answer, Outage, Outcome, Tally, judge, nearest_rank

HOMES = {"DE": "frankfurt", "US": "virginia", "JP": "singapore"}


def a_tally() -> Tally:
    return Tally(HOMES, Outage("virginia"))


def an_answer(region: str = "virginia", sent_s: float = 1.0, first_s: float | None = 1.1, **more: Any) -> Answer:
    fields: dict[str, Any] = {"status": 200, "is_whole": first_s is not None, "ended_s": sent_s + 0.5, **more}
    return Answer(sent_s=sent_s, first_content_s=first_s, region=region, **fields)


@pytest.mark.parametrize(
    ("answer", "must_be_fenced", "outcome"),
    [
        (an_answer(), False, Outcome.OK),
        (an_answer(is_whole=False, problem="reset"), False, Outcome.CUT),
        (an_answer(is_whole=False, has_left=True), False, Outcome.ABORTED),
        (an_answer(first_s=None, status=0, problem="reset"), False, Outcome.FAILED),
        (an_answer(first_s=None, status=503, problem="saturated"), False, Outcome.FAILED),
        (an_answer(first_s=None, status=403, problem="residency_denied"), False, Outcome.FAILED),
        (an_answer(first_s=None, status=403, problem="residency_denied"), True, Outcome.FENCED),
        (an_answer(first_s=None, status=503, problem="no_healthy_region"), True, Outcome.FAILED),
        (an_answer(), True, Outcome.FAILED),
    ],
)
def test_the_fate_of_a_request(answer: Answer, must_be_fenced: bool, outcome: Outcome) -> None:
    assert judge(answer, must_be_fenced) is outcome
    tally = a_tally()
    assert tally.record("US", answer, must_be_fenced) is outcome
    assert tally.requests == tally.outcomes[outcome] == 1
    assert bool(tally.problems) is (outcome is Outcome.FAILED)


def test_spilled_is_what_another_region_than_home_answered() -> None:
    tally = a_tally()
    for region in ("virginia", "frankfurt", "frankfurt"):
        tally.record("US", an_answer(region))
    tally.record("DE", an_answer("frankfurt"))
    assert tally.spilled == 2
    assert tally.served_by("frankfurt") == (3, 2)
    assert tally.served_by("virginia") == (1, 0)
    assert tally.served_by("singapore") == (0, 0)


def test_the_outage_counts_what_it_cut_and_what_it_lost() -> None:
    tally = a_tally()
    cut: dict[str, Any] = {"is_whole": False, "problem": "reset"}
    tally.record("US", an_answer(sent_s=1.0, **cut))  # before it: somebody else's fault
    tally.outage.started_s = 5.0
    tally.record("US", an_answer(sent_s=4.8, first_s=4.9, **cut))
    tally.record("US", an_answer("frankfurt", sent_s=6.0, first_s=6.1, **cut))
    tally.record("US", an_answer(sent_s=4.9, first_s=None, status=0, problem="reset"))
    tally.outage.ended_s = 9.0
    tally.record("US", an_answer("", sent_s=8.9, first_s=None, status=503, problem="saturated"))
    tally.record("US", an_answer("", sent_s=12.0, first_s=None, status=503, problem="saturated"))
    assert tally.outage.cut_streams == 1
    assert tally.outage.failed_before_first_byte == 2
    assert tally.outcomes[Outcome.FAILED] == 3


def test_recovery_is_the_first_content_after_the_return_whatever_ends_first() -> None:
    tally = a_tally()
    tally.outage.started_s, tally.outage.ended_s = 5.0, 9.0
    tally.record("US", an_answer("frankfurt", sent_s=9.0, first_s=9.1))
    assert tally.outage.recovered_s is None
    tally.record("US", an_answer(sent_s=10.9, first_s=11.0))
    tally.record("US", an_answer(sent_s=9.6, first_s=9.75, ended_s=11.5))
    assert tally.outage.recovered_s == pytest.approx(0.75)


def test_first_token_times_count_from_a_moment_on() -> None:
    tally = a_tally()
    assert tally.ttft_ms(0.5) is None
    for number in range(1, 101):
        tally.record("US", an_answer(sent_s=float(number), first_s=number + number / 1000))
    assert tally.ttft_ms(0.5) == pytest.approx(50)
    assert tally.ttft_ms(0.99) == pytest.approx(99)
    assert tally.ttft_ms(0.5, since_s=91.0) == pytest.approx(95)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 1))
def test_nearest_rank_is_the_least_value_that_covers_the_share(values: list[float], quantile: float) -> None:
    ordered = sorted(values)
    value = nearest_rank(ordered, quantile)
    assert value in ordered
    assert sum(other <= value for other in ordered) >= quantile * len(ordered) - 1e-9
    if value > ordered[0]:
        assert sum(other < value for other in ordered) < quantile * len(ordered)


ANSWERS = st.builds(
    Answer,
    sent_s=st.floats(0, 30),
    first_content_s=st.none() | st.floats(0, 30),
    ended_s=st.floats(0, 30),
    status=st.sampled_from([0, 200, 403, 503]),
    region=st.sampled_from(sorted(HOMES.values())),
    is_whole=st.booleans(),
    has_left=st.booleans(),
    problem=st.sampled_from(["", "reset", "residency_denied"]),
)


@given(st.lists(st.tuples(st.sampled_from(sorted(HOMES)), ANSWERS, st.booleans())))
def test_the_figures_fit_each_other(fates: list[tuple[str, Answer, bool]]) -> None:
    tally = a_tally()
    tally.outage.started_s, tally.outage.ended_s = 10.0, 20.0
    for country, answer, must_be_fenced in fates:
        tally.record(country, answer, must_be_fenced)
    assert tally.requests == len(fates) == tally.asked.total()
    by_region = [tally.served_by(region) for region in HOMES.values()]
    assert sum(served for served, _ in by_region) == tally.flows.total() == len(tally.ttfts)
    assert sum(spilled for _, spilled in by_region) == tally.spilled
    assert tally.outage.failed_before_first_byte <= tally.outcomes[Outcome.FAILED]
    assert tally.outage.cut_streams <= tally.outcomes[Outcome.CUT]
