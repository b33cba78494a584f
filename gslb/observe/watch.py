"""The watch over one endpoint: its light probe, its load, its models, the round trip to it.

Three topics, each with its own rhythm and its own timeout, so that a hanging `/metrics` delays no probe. Each has
at most one request out. What they learn goes to the FleetView at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import orjson

from gslb.clock import Clock
from gslb.config.schema_fleet import Health
from gslb.counters import Counters
from gslb.geo.rtt_prior import MeasuredRtt, is_plausible_rtt, rtt_prior_ms
from gslb.observe.fetch import Answer, Fetcher, FetchFailed, Get, Target
from gslb.observe.rhythm import Conditions, Rhythm
from gslb.routing.view import FleetView
from gslb.types import Endpoint, Place
from gslb.wire.vllm_metrics import NoLoadSignal, parse_vllm_metrics

log = logging.getLogger("gslb.observe")

_HEALTH_BYTES = 64 * 1024
_METRICS_BYTES = 8 * 1024 * 1024
_MODELS_BYTES = 4 * 1024 * 1024
_MODELS_TIMEOUT_S = 5.0
_SOON = 0.25
"""Share of the interval until the next probe after one whose connection was refused."""

_INTERVALS_S: Mapping[str, Callable[[Health], float]] = {
    "probe": lambda health: health.interval,
    "scrape": lambda health: health.scrape_interval,
    "models": lambda health: health.models_interval,
}


@dataclass(frozen=True, slots=True)
class Assignment:
    """What to watch and how, by one generation of the configuration."""

    endpoint: Endpoint
    target: Target
    health: Health
    edge_place: Place | None


@dataclass(frozen=True, slots=True)
class Instruments:
    """What all watches share."""

    fleet: FleetView
    counters: Counters
    clock: Clock
    dice: Random
    fetcher: Fetcher


class EndpointWatch:
    """Watches one endpoint from `start` to `stop`. `first_heard` is set after the first probe and the first answer
    (or failure) of `/v1/models`, and when the watch ends. Make it inside a running loop."""

    def __init__(self, assignment: Assignment, instruments: Instruments) -> None:
        self._assignment = assignment
        self._instruments = instruments
        self._key = assignment.endpoint.key
        self._rhythms = {topic: Rhythm(instruments.clock, partial(self._begin, topic)) for topic in _INTERVALS_S}
        # a random phase after the first, which is at once
        self._spreads = {topic: instruments.dice.random() for topic in _INTERVALS_S}
        self._conclude = {
            "probe": self._conclude_probe, "scrape": self._conclude_scrape, "models": self._conclude_models,
        }  # fmt: skip
        self._out: dict[str, Get] = {}
        self._conditions = Conditions()
        self._first = {"probe", "models"}
        self.first_heard = asyncio.Event()
        self.rtt = MeasuredRtt()

    @property
    def problems(self) -> Mapping[str, str]:
        """What is wrong now: topic (`probe`, `scrape`, `models`, `rtt`) -> one sentence."""
        return self._conditions.texts

    def reassign(self, assignment: Assignment) -> None:
        """A new generation: what changed takes effect now, what did not keeps its rhythm."""
        before, self._assignment = self._assignment, assignment
        if assignment.target != before.target:
            self._hurry("probe", "scrape", "models")
        if assignment.endpoint.models != before.endpoint.models:
            self._hurry("models")
        if assignment.health != before.health:
            for topic, rhythm in self._rhythms.items():
                rhythm.no_later_than(_INTERVALS_S[topic](assignment.health))

    def probe_now(self) -> None:
        """One extra probe, at once or right after the one that is out."""
        self._hurry("probe")

    def start(self) -> None:
        """Begin to watch: the first of each topic is asked at once."""
        for rhythm in self._rhythms.values():
            rhythm.start()

    def stop(self) -> None:
        """Watch no more; what is out is given up."""
        for rhythm in self._rhythms.values():
            rhythm.stop()
        for get in self._out.values():
            get.cancel()
        self._out.clear()
        self.first_heard.set()

    def _hurry(self, *topics: str) -> None:
        for topic in topics:
            self._rhythms[topic].no_later_than(0)

    # --- asking -----------------------------------------------------------------------------------

    def _begin(self, topic: str) -> None:
        """Ask what is due."""
        # First when it is due again, so that being hurried meanwhile means another one.
        health = self._assignment.health
        self._rhythms[topic].due_in(_INTERVALS_S[topic](health) * self._spreads[topic])
        self._spreads[topic] = self._instruments.dice.uniform(0.9, 1.1)
        if topic == "models" and self._assignment.endpoint.models is not None:
            self._end(topic)  # declared in the configuration
            return
        try:
            self._out[topic] = self._ask(topic, health)
        except Exception as error:
            self._lost(topic, error)
            self._end(topic)

    def _ask(self, topic: str, health: Health) -> Get:
        target, done = self._assignment.target, partial(self._on_answer, topic)
        get = self._instruments.fetcher.get
        if topic == "probe":
            return get(target, health.path, min(health.timeout, health.interval), _HEALTH_BYTES, done)
        if topic == "scrape":
            return get(target, "/metrics", health.scrape_timeout, _METRICS_BYTES, done)
        return get(target, "/v1/models", _MODELS_TIMEOUT_S, _MODELS_BYTES, done)

    def _on_answer(self, topic: str, result: Answer | FetchFailed) -> None:
        """Conclude from it. A bug in one conclusion costs that one and no more (FC-31)."""
        try:
            self._conclude[topic](result)
            self._conditions.is_over(f"{topic} cycle")
        except Exception as error:
            self._lost(topic, error)
        self._end(topic)

    def _lost(self, topic: str, error: Exception) -> None:
        self._instruments.counters.probe_errors[self._key] += 1
        text = f"gslb's own fault: {error!r}"
        if self._conditions.is_new(f"{topic} cycle", type(error).__name__, text):
            log.error("%s: a %s cycle was lost by an unexpected error", self._key, topic, exc_info=error)

    def _end(self, topic: str) -> None:
        self._out.pop(topic, None)
        self._first.discard(topic)
        if not self._first:
            self.first_heard.set()
        self._rhythms[topic].done()

    # --- what each answer says --------------------------------------------------------------------

    def _conclude_probe(self, result: Answer | FetchFailed) -> None:
        now = self._instruments.clock
        try:
            answer = _page_of(result, self._assignment.health.path)
        except FetchFailed as failure:
            self._problem("probe", failure.reason, str(failure))
            is_refused = failure.reason == "connect_error"
            self._instruments.fleet.probe_failed(self._key, now(), str(failure), is_refused)
            if is_refused and not self._instruments.fleet.is_ejected(self._key):
                # Nobody is there: no reason to give it time, as one gets that may only be slow.
                self._rhythms["probe"].no_later_than(self._assignment.health.interval * _SOON)
            return
        self._instruments.fleet.probe_passed(self._key, now())
        if self._well("probe"):
            # It is back, perhaps as another process with other models.
            self._hurry("scrape", "models")
        if answer.rtt_ms is not None:
            self._take_round_trip(answer.rtt_ms)

    def _conclude_scrape(self, result: Answer | FetchFailed) -> None:
        fleet, counters = self._instruments.fleet, self._instruments.counters
        try:
            page = _page_of(result, "/metrics").body
            own = fleet.own_load(self._key)
            scrape = parse_vllm_metrics(page, self._instruments.clock(), own.requests if own else 0)
        except (FetchFailed, NoLoadSignal) as problem:
            counters.scrape_errors[self._key, problem.reason] += 1
            self._problem("scrape", problem.reason, str(problem))
            fleet.load_failed(self._key, str(problem))
            return
        fleet.load_sampled(self._key, scrape.sample)
        if scrape.bad_lines:
            counters.scrape_errors[self._key, "bad_line"] += scrape.bad_lines
            self._problem("scrape", "bad_line", f"{scrape.bad_lines} unreadable lines in /metrics")
        else:
            self._well("scrape")

    def _conclude_models(self, result: Answer | FetchFailed) -> None:
        try:
            cards = read_model_cards(_page_of(result, "/v1/models").body)
        except FetchFailed as failure:
            self._instruments.counters.scrape_errors[self._key, f"models_{failure.reason}"] += 1
            self._problem("models", failure.reason, str(failure))
            if "probe" not in self.problems:  # it is up, so the models should come soon
                self._rhythms["models"].no_later_than(self._assignment.health.interval)
            return
        self._instruments.fleet.models_learnt(self._key, cards)
        self._well("models")

    # --- what they conclude -----------------------------------------------------------------------

    def _take_round_trip(self, rtt_ms: float) -> None:
        edge, region = self._assignment.edge_place, self._assignment.endpoint.region
        if edge is not None and not is_plausible_rtt(rtt_ms, edge, region.place):
            # Faster than light: one of the two places is wrong, or this is anycast. The prior then stands.
            self._problem(
                "rtt",
                "implausible",
                f"{rtt_ms:.1f} ms to region {region.name} is faster than light from this edge: "
                "check edge.location and the region's location, or is the address anycast?",
            )
            return
        self._well("rtt")
        self.rtt.observe(rtt_ms)
        blended_ms = self.rtt.ewma_ms if edge is None else self.rtt.blended_ms(rtt_prior_ms(edge, region.place))
        if blended_ms is not None:
            self._instruments.fleet.rtt_measured(self._key, blended_ms, orders=edge is not None)

    def _problem(self, topic: str, label: str, text: str) -> None:
        if self._conditions.is_new(topic, label, text):
            log.warning("%s: %s: %s", self._key, topic, text)

    def _well(self, topic: str) -> bool:
        """Note that `topic` is well; True when it was not before."""
        is_over = self._conditions.is_over(topic)
        if is_over:
            log.info("%s: %s: well again", self._key, topic)
        return is_over


def read_model_cards(page: bytes) -> list[Mapping[str, Any]]:
    """The usable entries of a `/v1/models` answer: objects with a non-empty text `id`, the first of each id.

    Raises FetchFailed with the reason `unreadable` when the answer is no model list at all.
    """
    try:
        document = orjson.loads(page)
    except orjson.JSONDecodeError as error:
        raise FetchFailed("unreadable", f"/v1/models is not JSON: {error}") from error
    entries = document.get("data") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise FetchFailed("unreadable", '/v1/models has no "data" list')
    cards: dict[str, Mapping[str, Any]] = {}
    for entry in entries:
        if isinstance(entry, dict) and isinstance(name := entry.get("id"), str) and name:
            cards.setdefault(name, entry)
    return list(cards.values())


def _page_of(result: Answer | FetchFailed, path: str) -> Answer:
    """The answer, if it is a 200. Raises FetchFailed."""
    if isinstance(result, FetchFailed):
        raise result
    if result.status != 200:
        raise FetchFailed(f"status_{result.status}", f"{_status_words(result.status)} on {path}")
    return result


def _status_words(status: int) -> str:
    if 300 <= status < 400:
        return f"status {status} (redirects are not followed)"
    if status in (401, 403):
        return f"status {status} (is the endpoint's key missing or wrong?)"
    return f"status {status}"
