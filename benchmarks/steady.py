"""A legitimate client with a steady pace, in a thread: what an attack on the same door costs the others."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles

import orjson

from benchmarks.upstream import JSON_BYTES, MODEL

_ANSWER_S = 10.0


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: when it began (s, CLOCK_MONOTONIC), how long it took, what was wrong with it, if anything."""

    at_s: float
    took_ms: float
    fault: str


def p50_p99_ms(asked: Sequence[Asked]) -> tuple[float, float]:
    """Median and 99th percentile of the good ones; NaN of fewer than two."""
    took = [one.took_ms for one in asked if not one.fault]
    if len(took) < 2:
        return float("nan"), float("nan")
    cuts = quantiles(took, n=100, method="inclusive")
    return cuts[49], cuts[98]


class SteadyClient:
    """Asks `per_s` times a second; every other request brings a connection of its own."""

    def __init__(self, port: int, per_s: float) -> None:
        self._port = port
        self._gap_s = 1 / per_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._kept = self._connection()
        self.asked: list[Asked] = []

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more."""
        self._ended.set()
        self._thread.join()
        self._kept.close()

    def since(self, at_s: float) -> list[Asked]:
        """The requests that began at or after this moment."""
        return [one for one in tuple(self.asked) if one.at_s >= at_s]

    def _connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=_ANSWER_S)

    def _run(self) -> None:
        due_s = time.monotonic()
        number = 0
        while not self._ended.wait(max(0.0, due_s - time.monotonic())):
            number += 1
            at_s = time.monotonic()
            fault = self._ask(is_fresh=number % 2 == 0)
            self.asked.append(Asked(at_s, (time.monotonic() - at_s) * 1000, fault))
            due_s = max(due_s + self._gap_s, time.monotonic())

    def _ask(self, is_fresh: bool) -> str:
        body = orjson.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hello"}]})
        connection = self._connection() if is_fresh else self._kept
        try:
            connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            size = len(answer.read())
        except (OSError, http.client.HTTPException) as error:
            connection.close()  # the kept one opens anew when it is asked again
            return f"{type(error).__name__}: {error}"
        if is_fresh:
            connection.close()
        if answer.status != 200 or size != JSON_BYTES:
            return f"status {answer.status}, {size} bytes"
        return ""
