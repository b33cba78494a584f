"""Another worker takes the last place between a decision and its ticket: decide again, never exceed."""

from __future__ import annotations

from gslb.routing.load import Ticket
from tests.support.edge import RunningEdge
from tests.support.raw_client import chat, request
from tests.system.conftest import MakeEdge, MakeUpstream

ASK = request(chat())


class Contested:
    """An InFlight whose place is lost `losses` times; `shows`: the one who has it is seen from then on."""

    def __init__(self, losses: int, shows: int = 0) -> None:
        self.requests = self.pending_tokens = 0
        self.prefill_since_s = 0.0
        self.losses = losses
        self.shows = shows

    def add(self, requests: int, pending_tokens: int) -> None:
        self.requests += requests
        self.pending_tokens += pending_tokens

    def prefilled(self, pending_tokens: int, now_s: float) -> None:
        self.add(0, -pending_tokens)
        self.prefill_since_s = now_s

    def open_ticket(self, uncached_tokens: int, capacity: int | None = None, now_s: float = 0.0) -> Ticket | None:
        if self.losses:
            self.losses -= 1
            self.requests = self.shows
            return None
        self.add(1, uncached_tokens)
        return Ticket(self, uncached_tokens)


def contest(running: RunningEdge, region: str, own: Contested) -> Contested:
    """From now on `own` counts for the endpoint of `region`."""
    fleet = running.edge.fleet
    (record,) = (one for key, one in fleet._records.items() if key.startswith(region))
    record.own = own
    fleet._publish_all()
    return own


async def test_the_place_is_free_when_it_is_asked_again(edge: MakeEdge, upstream: MakeUpstream) -> None:
    running = await edge({"eu": [{"url": (await upstream()).url, "capacity": 1}]})
    own = contest(running, "eu", Contested(2))
    answer = await running.ask(ASK)
    assert (answer.status, answer.one("x-gslb-attempts"), own.losses, own.requests) == (200, "1", 0, 0)


async def test_the_next_best_is_used_when_it_is_gone(edge: MakeEdge, upstream: MakeUpstream) -> None:
    eu, us = await upstream(), await upstream()
    running = await edge({"eu": [{"url": eu.url, "capacity": 1}], "us": [us]})
    own = contest(running, "eu", Contested(1, shows=1))
    answer = await running.ask(ASK)
    assert (answer.status, answer.one("x-gslb-region"), answer.one("x-gslb-attempts")) == (200, "us", "1")
    assert (await running.record())["reason"] == "full"
    assert eu.requests == []
    own.requests = 0


async def test_places_lost_again_and_again_are_no_endless_search(edge: MakeEdge, upstream: MakeUpstream) -> None:
    holds_none = {"hold": {"max_requests": 0}}
    running = await edge({"eu": [{"url": (await upstream()).url, "capacity": 1}]}, routing=holds_none)
    own = contest(running, "eu", Contested(1000))
    answer = await running.ask(ASK)
    assert (answer.status, answer.error["code"], answer.one("retry-after")) == (503, "saturated", "1")
    assert own.losses > 990
    assert own.requests == 0


async def test_who_loses_places_again_and_again_is_held_until_it_gets_one(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    running = await edge({"eu": [{"url": (await upstream()).url, "capacity": 1}]})
    own = contest(running, "eu", Contested(30))
    answer = await running.ask(ASK)
    assert (answer.status, answer.one("x-gslb-attempts"), own.losses, own.requests) == (200, "1", 0, 0)
    assert (await running.record())["held_ms"] > 0, "a regular look, four tries each"


async def test_a_retry_that_finds_no_place_tells_what_failed(edge: MakeEdge, upstream: MakeUpstream) -> None:
    eu, us = await upstream(default=["rst"]), await upstream()
    running = await edge({"eu": [eu], "us": [{"url": us.url, "capacity": 1}]})
    contest(running, "us", Contested(1000))
    answer = await running.ask(ASK)
    assert (answer.status, answer.error["code"]) == (502, "upstream_error")
    assert us.requests == []
    assert running.in_flight == 0
