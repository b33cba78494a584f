"""The table of counts that workers share: exact, never above a capacity, freed with its last user."""

from __future__ import annotations

import os
import subprocess
import sys
from math import inf
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gslb.native import is_native
from gslb.routing.load import Ticket
from gslb.state import shared_memory
from gslb.state.shared_memory import (
    CONNECTIONS_ROW,
    WAITING_ROW,
    Rows,
    SharedTable,
    TableFull,
    bucket_key,
    tenant_key,
)

WORKERS = 3


@pytest.fixture
def table() -> Any:
    made = SharedTable.create(WORKERS)
    yield made
    made.close()


def test_what_one_worker_counts_all_read(table: SharedTable) -> None:
    other = SharedTable(table.fd, WORKERS)  # a second mapping, as in another process
    mine, theirs, reader = table.load(5, 0), other.load(5, 2), other.load(5)
    tickets = [mine.open_ticket(100), theirs.open_ticket(30), theirs.open_ticket(7)]
    assert [(load.requests, load.pending_tokens) for load in (mine, theirs, reader)] == [(3, 137)] * 3
    assert tickets[1] is not None
    tickets[1].first_token(0.0)
    assert (reader.requests, reader.pending_tokens) == (3, 107)
    for ticket in tickets:
        assert ticket is not None
        ticket.close()
        ticket.close()
    assert (reader.requests, reader.pending_tokens) == (0, 0)
    assert other.load(4).requests == other.load(6).requests == 0


STEPS = st.lists(
    st.tuples(
        st.integers(0, WORKERS - 1), st.sampled_from(["open", "first_token", "close", "die"]), st.integers(0, 9),
        st.integers(0, 5000),
    )
)  # fmt: skip


def test_since_when_the_first_pending_prompt_is_prefilled_is_common_too(table: SharedTable) -> None:
    mine, theirs, reader = table.load(5, 0), table.load(5, 1), table.load(5)
    first = mine.open_ticket(100, now_s=2.0)
    assert theirs.open_ticket(50, now_s=3.0) is not None
    assert reader.prefill_since_s == 2.0, "the other worker's prompt waits behind it"
    assert first is not None
    first.first_token(4.5)
    assert theirs.prefill_since_s == 4.5


@given(STEPS, st.one_of(st.none(), st.integers(1, 4)))
@settings(deadline=None)
def test_any_sequence_counts_what_is_open(steps: list[tuple[int, str, int, int]], capacity: int | None) -> None:
    """FC-23 over workers that come and go: the sum is the truth at any moment, never above the capacity."""
    table = SharedTable.create(WORKERS)
    try:
        loads = [table.load(1, column) for column in range(WORKERS)]
        bystander = table.load(2, 0)
        bystander.open_ticket(9)
        tickets: list[tuple[int, Ticket]] = []
        waiting: dict[int, int] = {}
        is_open: set[int] = set()
        for worker, step, which, tokens in steps:
            if step == "open":
                ticket = loads[worker].open_ticket(tokens, capacity)
                assert (ticket is None) == (capacity is not None and len(is_open) >= capacity)
                if ticket is not None:
                    waiting[len(tickets)] = tokens
                    is_open.add(len(tickets))
                    tickets.append((worker, ticket))
            elif step == "die":
                gone = {i for i, (owner, _) in enumerate(tickets) if owner == worker}
                table.clear_column(worker)
                is_open -= gone
                waiting = {i: held for i, held in waiting.items() if i not in gone}
                tickets = [(owner, Ticket(_Dead(), 0) if i in gone else t) for i, (owner, t) in enumerate(tickets)]
                if worker == 0:
                    bystander = table.load(2, 0)
                    bystander.open_ticket(9)
            elif which < len(tickets):
                if step == "first_token":
                    tickets[which][1].first_token(0.0)
                else:
                    tickets[which][1].close()
                waiting.pop(which, None)
                if step == "close":
                    is_open.discard(which)
            assert all(load.requests == len(is_open) for load in loads)
            assert all(load.pending_tokens == sum(waiting.values()) for load in loads)
        assert (bystander.requests, bystander.pending_tokens) == (1, 9)
    finally:
        table.close()


class _Dead:
    """What a dead worker's tickets count in: nothing."""

    requests = pending_tokens = 0

    def add(self, requests: int, pending_tokens: int) -> None: ...


def test_of_two_that_go_for_the_last_place_one_at_most_gets_it(table: SharedTable) -> None:
    """Both have counted themselves in before either looks: both step back, and nothing is left counted."""
    mine, theirs = table.load(1, 0), table.load(1, 1)
    theirs.add(1, 50)  # it has counted itself in, and not looked yet
    assert mine.open_ticket(10, capacity=1) is None
    assert (mine.requests, mine.pending_tokens) == (1, 50)


def test_a_row_stays_with_its_key_and_is_given_on_only_when_idle(table: SharedTable) -> None:
    rows = Rows(table)
    first = rows.assign(["a", "b", "c"])
    assert not {CONNECTIONS_ROW, WAITING_ROW} & set(first.values())
    assert len(set(first.values())) == 3
    rows.adopt(first)
    running = table.load(first["b"], 0).open_ticket(5)
    second = rows.assign(["c", "a", "d"])
    assert (second["a"], second["c"]) == (first["a"], first["c"])
    assert second["d"] not in first.values(), "until this is in force, b is counted"
    rows.adopt(second)
    assert rows.assign(["e"])["e"] not in {*second.values(), first["b"]}, "b's answer still runs"
    assert rows.assign(["b"])["b"] == first["b"], "one that returns has its count"
    assert running is not None
    running.close()
    assert rows.assign(["a", "c", "d", "e"])["e"] == first["b"], "idle now"


def test_a_trial_that_is_refused_changes_nothing(table: SharedTable) -> None:
    rows = Rows(table)
    rows.adopt(rows.assign(["a"]))
    before = rows.assign(["a"])
    assert rows.assign(["x", "y"]) == rows.assign(["x", "y"])
    assert rows.assign(["a"]) == before


@pytest.mark.skipif(is_native(), reason="compiled, a constant cannot be replaced")
def test_too_many_endpoints_are_told(table: SharedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "ROWS", 5)
    rows = Rows(table)
    rows.adopt(rows.assign(["a", "b", "c"]))
    with pytest.raises(TableFull, match="workers: 1"):
        rows.assign(["a", "b", "c", "d"])


def test_each_worker_hears_since_when_the_others_requests_wait(table: SharedTable) -> None:
    first, second, third = (table.waiting(column) for column in range(WORKERS))
    assert first.since_s() == inf
    second.tell(1000.25)
    third.tell(999.5)
    assert [one.since_s() for one in (first, second, third)] == [999.5, 999.5, 1000.25]
    third.tell(inf)
    assert [one.since_s() for one in (first, second, third)] == [1000.25, inf, 1000.25]
    table.clear_column(1)
    assert first.since_s() == inf, "what a killed worker held is gone"


def test_another_process_writes_and_a_killed_one_leaves_only_its_column(table: SharedTable) -> None:
    """SIGKILL leaves the count; clearing the column makes it right; the descriptor is all that is handed over."""
    script = (
        "import os, sys, signal\n"
        "from gslb.state.shared_memory import SharedTable\n"
        f"own = SharedTable(int(sys.argv[1]), {WORKERS}).load(3, 1)\n"
        "own.open_ticket(11); own.open_ticket(22)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    mine = table.load(3, 0)
    mine.open_ticket(100)
    root = str(Path(shared_memory.__file__).parents[2])
    subprocess.run(
        [sys.executable, "-c", script, str(table.fd)], pass_fds=(table.fd,), check=False,
        env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip
    assert (mine.requests, mine.pending_tokens) == (3, 133)
    assert not table.is_idle(3)
    table.clear_column(1)
    assert (mine.requests, mine.pending_tokens) == (1, 100)


# --- buckets of limits per time -----------------------------------------------------------------------------

SECOND_NS = 10**9


def test_fc37_workers_take_from_one_bucket(table: SharedTable) -> None:
    """FC-37: the limit is the edge's; what a worker has taken from it stays taken when it dies."""
    other = SharedTable(table.fd, WORKERS)  # a second mapping, as in another process
    rows = Rows(table)
    rows.adopt(
        rows.assign(["a", tenant_key("acme"), bucket_key("acme", "requests"), bucket_key("acme", "tokens")])
    )
    row = rows.assign([bucket_key("acme", "requests")])[bucket_key("acme", "requests")]
    mine, theirs = table.bucket(row, 0), other.bucket(row, 2)
    now_ns = 10**16
    takes = [
        one.take(SECOND_NS, 3 * SECOND_NS, now_ns)
        for one in (mine, theirs, mine, theirs, mine)
    ]  # fmt: skip
    assert takes == [0, 0, 0, SECOND_NS, SECOND_NS]
    table.clear_column(0)
    assert theirs.take(SECOND_NS, 3 * SECOND_NS, now_ns) == SECOND_NS
    assert other.bucket(row, 0).take(SECOND_NS, 3 * SECOND_NS, now_ns + SECOND_NS) == 0, "its successor goes on"
    assert all(table.load(counts, 0).requests == 0 for counts in range(5))


def test_a_bucket_that_was_another_tenants_is_full(table: SharedTable) -> None:
    rows = Rows(table)
    first, second = bucket_key("acme", "requests"), bucket_key("zeta", "requests")
    rows.adopt(rows.assign([first]))
    row = rows.assign([first])[first]
    assert table.bucket(row, 1).take(SECOND_NS, SECOND_NS, 10**16) == 0
    assert rows.assign([second])[second] != row, "until this is in force, acme's is in use"
    rows.adopt(rows.assign([first, "a"]))
    assert table.bucket(row, 1).take(SECOND_NS, SECOND_NS, 10**16) == SECOND_NS, "one that stays is as it was"
    rows.adopt(rows.assign(["a"]))
    assert rows.assign(["a", second])[second] == row
    rows.adopt(rows.assign(["a", second]))
    assert table.bucket(row, 2).take(SECOND_NS, SECOND_NS, 10**16) == 0


@pytest.mark.skipif(is_native(), reason="compiled, a constant cannot be replaced")
def test_rates_and_counts_have_rows_of_their_own(table: SharedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "ROWS", 4)
    rows = Rows(table)
    buckets = [bucket_key(name, "tokens") for name in "wxyz"]
    rows.adopt(rows.assign(["a", "b", *buckets]))
    assert set(rows.assign(buckets).values()) == {4, 5, 6, 7}
    with pytest.raises(TableFull, match="rates"):
        rows.assign([*buckets, bucket_key("v", "tokens")])
