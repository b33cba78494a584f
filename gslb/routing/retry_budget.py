"""A bound on retries, so that an ill fleet is not hit harder than a well one (FC-17)."""

from __future__ import annotations

from collections import deque
from typing import Final

WINDOW_S: Final = 10


class RetryBudget:
    """Retries over the last ten seconds stay within `floor` + `share` of the requests of that time."""

    __slots__ = ("_floor", "_requests", "_retries", "_seconds", "_share")

    def __init__(self, share: float, floor: int) -> None:
        self._share = share
        self._floor = floor
        self._seconds: deque[list[int]] = deque()
        self._requests = 0
        self._retries = 0

    def request(self, now_s: float) -> None:
        """Count one client request."""
        self._second(now_s)[1] += 1
        self._requests += 1

    def try_retry(self, now_s: float) -> bool:
        """Take one retry out of the budget; False when it is spent."""
        second = self._second(now_s)
        if self._retries >= self._floor + self._share * self._requests:
            return False
        second[2] += 1
        self._retries += 1
        return True

    def _second(self, now_s: float) -> list[int]:
        second = int(now_s)
        seconds = self._seconds
        if seconds and seconds[-1][0] == second:
            return seconds[-1]
        while seconds and seconds[0][0] <= second - WINDOW_S:
            _, requests, retries = seconds.popleft()
            self._requests -= requests
            self._retries -= retries
        seconds.append([second, 0, 0])
        return seconds[-1]
