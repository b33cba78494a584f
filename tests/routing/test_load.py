"""Tickets count exactly; a gate does not flap."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gslb.routing.load import Gate, OwnLoad, Ticket
from tests.support.builders import MARKS, endpoint, fleet, occupy, region


def test_a_ticket_counts_from_open_to_close() -> None:
    own = OwnLoad()
    ticket = own.open_ticket(700)
    assert (own.requests, own.pending_tokens) == (1, 700)
    ticket.first_token(0.0)
    assert (own.requests, own.pending_tokens) == (1, 0)
    ticket.close()
    assert (own.requests, own.pending_tokens) == (0, 0)


def test_the_first_pending_prompt_has_its_turn_since_it_came_or_the_one_before_was_done() -> None:
    own = OwnLoad()
    own.open_ticket(0, now_s=1.0)
    first = own.open_ticket(700, now_s=5.0)
    second = own.open_ticket(300, now_s=5.2)
    assert first is not None
    assert second is not None
    assert own.prefill_since_s == 5.0
    first.first_token(5.4)
    assert own.prefill_since_s == 5.4
    second.close()
    own.open_ticket(100, now_s=9.0)
    assert own.prefill_since_s == 9.0


def test_closing_before_the_first_token_clears_its_tokens() -> None:
    own = OwnLoad()
    own.open_ticket(700).close()
    assert (own.requests, own.pending_tokens) == (0, 0)


STEPS = st.lists(
    st.tuples(st.sampled_from(["open", "first_token", "close"]), st.integers(0, 9), st.integers(0, 5000))
)


@given(STEPS)
@settings(deadline=None)
def test_fc23_any_sequence_counts_what_is_open_and_ends_at_zero(steps: list[tuple[str, int, int]]) -> None:
    """FC-23: never negative, exact at any moment, 0 when all has ended."""
    own = OwnLoad()
    tickets: list[Ticket] = []
    waiting: dict[int, int] = {}
    is_open: set[int] = set()
    for step, which, tokens in steps:
        if step == "open":
            waiting[len(tickets)] = tokens
            is_open.add(len(tickets))
            tickets.append(own.open_ticket(tokens))
        elif which < len(tickets):
            if step == "first_token":
                tickets[which].first_token(0.0)
            else:
                tickets[which].close()
            waiting.pop(which, None)
            if step == "close":
                is_open.discard(which)
        assert own.requests == len(is_open)
        assert own.pending_tokens == sum(waiting.values())
    for ticket in tickets:
        ticket.close()
        ticket.first_token(0.0)
    assert (own.requests, own.pending_tokens) == (0, 0)


def test_fc23_a_thousand_requests_of_random_fate() -> None:
    """FC-23 with reloads in between: fifty long streams are counted, and none is left at the end."""
    dice = Random(23)
    members = [endpoint(region(), number) for number in range(1, 5)]
    view = fleet(members)
    long_streams = []
    for number in range(1000):
        own = view.own_load(dice.choice(members).key)
        assert own is not None
        ticket = own.open_ticket(dice.randrange(3000))
        if dice.random() < 0.5:
            ticket.first_token(0.0)
        if number % 20 == 0:
            long_streams.append(ticket)
        else:
            ticket.close()
        if number % 100 == 0:
            view.configure(members, MARKS)
    loads = [own for member in members if (own := view.own_load(member.key)) is not None]
    assert sum(own.requests for own in loads) == len(long_streams) == 50
    for ticket in long_streams:
        ticket.close()
    assert [(own.requests, own.pending_tokens) for own in loads] == [(0, 0)] * 4


def test_an_endpoint_removed_and_back_starts_at_zero_and_stays_above() -> None:
    first = endpoint()
    view = fleet([first])
    occupy(view, first.key, 1)
    old = view.own_load(first.key)
    assert old is not None
    ticket = old.open_ticket(10)
    view.configure([], MARKS)
    view.configure([first], MARKS)
    ticket.close()
    own = view.own_load(first.key)
    assert own is not None
    assert own.requests == 0


@pytest.mark.parametrize(
    ("shares", "is_shut"),
    [
        ([0.85], [False]),
        ([0.86], [True]),
        ([0.8, 0.9, 0.8, 0.76, 0.75, 0.74, 0.8, 0.85], [False, True, True, True, True, False, False, False]),
        ([1.4, 0.0], [True, False]),
    ],
)
def test_the_gate_has_two_marks(shares: list[float], is_shut: list[bool]) -> None:
    gate = Gate(shut_above=0.85, open_below=0.75)
    assert [gate.update(share) for share in shares] == is_shut
    assert gate.is_shut is is_shut[-1]


@given(st.lists(st.floats(0.751, 0.849)))
@settings(deadline=None)
def test_between_the_marks_the_gate_never_moves(shares: list[float]) -> None:
    gate = Gate(0.85, 0.75)
    assert not any(gate.update(share) for share in shares)
    gate.update(0.9)
    assert all(gate.update(share) for share in shares)
