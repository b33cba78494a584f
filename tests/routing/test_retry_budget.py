"""The bound on retries (FC-17)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gslb.routing.retry_budget import WINDOW_S, RetryBudget


def test_a_burst_of_failures_gets_its_share() -> None:
    budget = RetryBudget(share=0.2, floor=3)
    granted = 0
    for number in range(200):
        budget.request(number / 100)
        granted += budget.try_retry(number / 100)
    assert 40 <= granted <= 43


def test_the_floor_is_there_without_traffic_and_comes_back() -> None:
    budget = RetryBudget(share=0.2, floor=3)
    assert [budget.try_retry(0.0) for _ in range(5)] == [True, True, True, False, False]
    assert not budget.try_retry(WINDOW_S - 0.1)
    assert budget.try_retry(WINDOW_S)


@given(st.lists(st.tuples(st.floats(0.0, 4.0), st.booleans())), st.floats(0.0, 1.0), st.integers(0, 5))
@settings(deadline=None)
def test_within_any_window_retries_stay_in_bounds(
    steps: list[tuple[float, bool]], share: float, floor: int
) -> None:
    budget, now_s = RetryBudget(share, floor), 0.0
    requests: list[int] = []
    retries: list[int] = []
    for passed_s, is_request in steps:
        now_s += passed_s
        if is_request:
            budget.request(now_s)
            requests.append(int(now_s))
        elif budget.try_retry(now_s):
            retries.append(int(now_s))
            recent = [second for second in requests if second > int(now_s) - WINDOW_S]
            assert sum(second > int(now_s) - WINDOW_S for second in retries) <= floor + share * len(recent) + 1
