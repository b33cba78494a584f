"""One try at one endpoint, from the ticket to the end of its answer.

    connecting -> waiting for the head -> holding it -> committed -> closed

The answer's head and first bytes are held until the first content event, a comment, `commit_after`, or, where
the answer is no event stream, its first body byte (DESIGN section 3): up to there the exchange may go
elsewhere.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import TYPE_CHECKING, Final

from gslb.proxy import failure
from gslb.proxy.deadlines import NEVER_S
from gslb.proxy.outgoing import request_head
from gslb.proxy.pool import ConnectFailed
from gslb.proxy.realtime import try_switch
from gslb.proxy.upstream import UpstreamConnection
from gslb.routing.health import Outcome
from gslb.routing.load import Ticket
from gslb.routing.router import Decision
from gslb.wire.http1 import ResponseHead
from gslb.wire.orca import parse_orca
from gslb.wire.retry_after import parse_retry_after_s
from gslb.wire.sse import ABORTED, FirstContent, Verdict

if TYPE_CHECKING:
    from gslb.proxy.exchange import Exchange


_DOUBT_S: Final = 1.0
"""How long an uncommitted stream waits before it asks again whether its doubted endpoint is well."""


class Attempt:
    """One upstream try (an `upstream.Asker`)."""

    __slots__ = (
        "_commit_at_s", "_connection", "_exchange", "_first_byte_at_s", "_has_resent", "_held", "_scanner",
        "_sent_s", "_task", "_ticket", "began_s", "decision", "head", "is_committed", "key", "pool",
    )  # fmt: skip

    def __init__(self, exchange: Exchange, decision: Decision, ticket: Ticket) -> None:
        self._exchange = exchange
        self.decision = decision
        self.key = decision.option.view.endpoint.key
        self.pool = exchange.generation.pools[self.key]
        self.is_committed = False
        self.head: ResponseHead | None = None
        self._ticket: Ticket | None = ticket
        self._connection: UpstreamConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._has_resent = False
        self._held: list[bytes] = []
        self._scanner: FirstContent | None = None
        self.began_s = 0.0
        self._first_byte_at_s = self._commit_at_s = self._sent_s = NEVER_S

    # --- getting the request there -----------------------------------------------------------------

    def start(self, now_s: float) -> None:
        """Send on a warm connection now, or on a fresh one as soon as it stands."""
        self.began_s = now_s
        connection = self.pool.take_idle(now_s)
        if connection is not None:
            self._send(connection)
        else:
            self._connect()

    def _connect(self) -> None:
        self._first_byte_at_s = NEVER_S
        self._exchange.arm(NEVER_S)  # the pool bounds the connect itself
        self._task = self.pool.open(self._on_connected)

    def _on_connected(self, result: UpstreamConnection | ConnectFailed) -> None:
        self._task = None
        if isinstance(result, ConnectFailed):
            self._exchange.attempt_failed(self, failure.connect_failure(result, self.decision.region))
        else:
            self._send(result)

    def _send(self, connection: UpstreamConnection) -> None:
        exchange = self._exchange
        self._connection = connection
        admitted, timeouts = exchange.admitted, exchange.generation.timeouts
        assert admitted is not None
        assert admitted.facts is not None
        # An answer that is not streamed is made whole before its first byte.
        limit_s = timeouts.first_byte if admitted.facts.is_stream else timeouts.answer
        now_s = self._sent_s = exchange.client.now_s()
        self._first_byte_at_s = now_s + limit_s
        exchange.arm(self._first_byte_at_s)
        if exchange.attempts == 1 and connection.requests and not exchange.held_s:
            # From the whole request to its sending, where nothing was waited for: no room, connect or failure.
            exchange.generation.door.counters.overhead_seconds.observe(perf_counter() - exchange.begun_s)
        connection.send(self, request_head(exchange, self.pool), admitted.body)

    # --- the answer (upstream.Asker) ---------------------------------------------------------------

    def on_head(self, head: ResponseHead) -> None:
        """The answer's head: hold it, or take it as a failure."""
        if head.status != 200 and self._is_failure(head):
            return
        self.head = head
        if head.load_metrics is not None:
            self._note_load(head.load_metrics)
        if head.is_event_stream and head.status == 200 and not head.is_encoded:
            exchange = self._exchange
            self._scanner = FirstContent()
            self._commit_at_s = exchange.client.now_s() + exchange.generation.timeouts.commit_after
            exchange.arm(min(self._first_byte_at_s, self._commit_at_s))

    def _is_failure(self, head: ResponseHead) -> bool:
        """True when this answer is not the client's to have: the exchange has gone on without it."""
        generation = self._exchange.generation
        own_key = self.pool.has_key or generation.settings.tenants is not None
        retry_after_s = None
        if head.retry_after is not None:
            retry_after_s = parse_retry_after_s(head.retry_after, generation.door.wall_s())
        fault = failure.status_failure(head.status, retry_after_s, own_key, self.decision.region)
        if fault is None:
            return False
        may_stay = fault.may_pass_back and self._exchange.attempts == 1
        return self._exchange.attempt_failed(self, fault, may_stay=may_stay)

    def on_switch(self, head: ResponseHead, behind: bytes) -> bool:
        """A 101: the answer to a handshake, if there was one."""
        connection = self._connection
        return connection is not None and try_switch(self._exchange, self, head, connection, behind)

    def on_payload(self, payload: bytes, is_complete: bool) -> None:
        """Body bytes up to the first content: hold them until the commit point, relay them behind it."""
        if self.is_committed:
            self._relay_looking(payload, is_complete)
            return
        if payload:
            self._held.append(payload)
        if self._reaches_commit(payload, is_complete):
            self._commit(is_complete)

    def _reaches_commit(self, payload: bytes, is_complete: bool) -> bool:
        """True when the answer may start to go out; an error as the first event is a failure instead."""
        if self._scanner is None:
            # Not `in`, which first tries the pattern as a number and throws that error away: 1 us.
            if is_complete and payload.find(ABORTED) >= 0 and self.head is not None and self.head.status == 200:
                why = "the engine aborted the request"
                self._exchange.attempt_failed(self, failure.error_event_failure(why, self.decision.region))
                return False
            self._first_content()
            return True
        verdict = self._scanner.feed(payload)
        if verdict is Verdict.ERROR:
            message = self._scanner.error_message
            self._exchange.attempt_failed(self, failure.error_event_failure(message, self.decision.region))
            return False
        if verdict is Verdict.CONTENT:
            self._first_content()
        return verdict is not Verdict.HOLD or is_complete

    def _commit(self, is_complete: bool) -> None:
        """From here on this endpoint's answer is the answer."""
        assert self.head is not None
        self.is_committed = True
        held = self._held
        self._commit_at_s = NEVER_S
        self._exchange.commit(self, held[0] if len(held) == 1 else b"".join(held), is_complete)
        held.clear()
        if self._scanner is None:
            self._relay_directly()

    def _relay_looking(self, payload: bytes, is_complete: bool) -> None:
        """More of an answer that a comment or `commit_after` committed before its first token."""
        exchange = self._exchange
        relay, scanner = exchange.relay, self._scanner
        assert relay is not None
        is_content = scanner is not None and scanner.feed(payload) in (Verdict.CONTENT, Verdict.ERROR)
        if is_content:
            self._first_content()
        relay.write(payload, is_complete)
        if is_content and not is_complete:
            self._relay_directly()
            exchange.mind_gaps()

    def _relay_directly(self) -> None:
        """Behind the first content nothing needs looking at: one step less per token."""
        relay, connection = self._exchange.relay, self._connection
        if relay is not None and connection is not None and connection.asker is self:
            connection.pass_on(relay)

    def _first_content(self) -> None:
        """The first token is here."""
        self._scanner = None
        if self._ticket is not None:
            self._ticket.first_token(self._exchange.client.now_s())
        exchange = self._exchange
        exchange.first_content()
        self._learn_first_token()

    def _learn_first_token(self) -> None:
        """How long the engine took for how much, and what it has cached from now on."""
        exchange, option, head = self._exchange, self.decision.option, self.head
        admitted = exchange.admitted
        if head is None or head.status != 200 or admitted is None or admitted.facts is None:
            return
        door, now_s = exchange.generation.door, exchange.client.now_s()
        if option.has_room and head.is_event_stream:
            engine_ms = (now_s - self._sent_s) * 1000 - (option.view.rtt_ms or 0.0)
            door.fleet.first_token_seen(self.key, option.work, option.ahead, engine_ms)
        exchange.expected_cached = door.affinity.prefilled(self.key, admitted.facts, now_s)

    @property
    def first_token_limit_s(self) -> float | None:
        """Until when the first token must come; None once it has: then the limit is the gap between bytes."""
        return None if self._scanner is None else self._first_byte_at_s

    def on_lost(self, error: Exception | None) -> None:
        """The connection ended before the answer did."""
        connection, self._connection = self._connection, None
        if self.is_committed:
            self._exchange.cut("upstream_truncated", "reset", "the answer was cut")
        elif connection is not None and _died_unseen(connection) and not self._has_resent:
            # A pooled connection was closed under the request: not the endpoint's fault, and one fresh
            # connection to the same endpoint settles it (FC-15).
            self._has_resent = True
            self._connect()
        else:
            why = "reset" if error is not None else "closed without a whole answer"
            self._exchange.attempt_failed(self, failure.broken("reset", why, self.decision.region))

    def on_garbled(self, what: str) -> None:
        """What came is no HTTP answer."""
        if self.is_committed:
            self._exchange.cut("upstream_truncated", "protocol_error", what)
        else:
            self._exchange.attempt_failed(self, failure.broken("protocol_error", what, self.decision.region))

    def _note_load(self, value: bytes) -> None:
        exchange = self._exchange
        own = self.decision.option.view.own
        sample = parse_orca(value, exchange.client.now_s(), own.requests)
        if sample is not None:
            exchange.generation.door.fleet.load_sampled(self.key, sample)

    # --- time and flow -----------------------------------------------------------------------------

    @property
    def due_s(self) -> float:
        """The deadline armed last, up to the commit."""
        return min(self._first_byte_at_s, self._commit_at_s)

    def on_deadline(self, now_s: float) -> None:
        """The deadline armed last has passed."""
        if self.is_committed:
            if self._scanner is not None or not self._exchange.mind_gaps():
                self._exchange.cut("timeout", "timeout", "silent for too long")
        elif self.head is not None and self._commit_at_s <= now_s < self._first_byte_at_s:
            self._commit_unless_doubted(now_s)
        else:
            self._exchange.attempt_failed(
                self, failure.broken("timeout", "no first byte in time", self.decision.region)
            )

    def _commit_unless_doubted(self, now_s: float) -> None:
        """A queued stream waits long enough for its head to go out; but while others find its endpoint ill, it
        goes elsewhere instead, or stays uncommitted where nobody else may be asked."""
        exchange = self._exchange
        if not exchange.generation.door.fleet.is_doubted(self.key):
            self._commit(False)
            return
        fault = failure.broken("timeout", "silent, and its endpoint is ill", self.decision.region)
        if not exchange.attempt_failed(self, fault, may_stay=True):
            self._commit_at_s = now_s + _DOUBT_S
            exchange.arm(min(self._first_byte_at_s, self._commit_at_s))

    def pause_reading(self) -> None:
        """The client is slow."""
        if self._connection is not None and self._connection.asker is self:
            self._connection.pause_reading()

    def resume_reading(self) -> None:
        """The client reads again."""
        if self._connection is not None and self._connection.asker is self:
            self._connection.resume_reading()

    # --- the end -----------------------------------------------------------------------------------

    def close(self, result: str, outcome: Outcome, why: str = "") -> None:
        """End the attempt, once: abort what is open, give the ticket back, tell counters and fleet."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        connection, self._connection = self._connection, None
        if connection is not None and connection.asker is self:
            connection.abort()  # after a whole answer it is in the pool, or another's
        ticket, self._ticket = self._ticket, None
        if ticket is None:
            return
        ticket.close()
        door = self._exchange.generation.door
        door.counters.attempts[(self.decision.region, result)] += 1
        if outcome is Outcome.SUCCESS and self.head is not None:  # a tunnel is open as long as its client likes
            door.fleet.answer_seen(self.key, (self._exchange.client.now_s() - self._sent_s) * 1000)
        door.holding.room_may_have_come(self.key)
        if door.fleet.outcome(self.key, outcome, self._exchange.client.now_s(), why):
            door.on_doubt(self.key)


def _died_unseen(connection: UpstreamConnection) -> bool:
    return connection.is_reused and not connection.has_answered
