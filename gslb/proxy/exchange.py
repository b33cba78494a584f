"""One client request from first byte to last: admit it, decide, try endpoints until one commits, end once.

Until the commit point nothing has gone to the client, so another endpoint may still answer; after it never
(FC-14). No task runs per request: each method is a callback of a client or upstream connection, of the pool,
or of the deadline ring.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from gslb.errors import ApiError
from gslb.proxy import failure
from gslb.proxy.admission import Admitted, admit
from gslb.proxy.answer_head import answer_head
from gslb.proxy.attempt import Attempt
from gslb.proxy.deadlines import NEVER_S
from gslb.proxy.first_endpoint import MOST_LOST_RACES, Choice, choose_again, choose_for_newcomer
from gslb.proxy.generation import Generation
from gslb.proxy.hedge import Hedge
from gslb.proxy.next_endpoint import after_failure, elsewhere
from gslb.proxy.record import note_served, write_record
from gslb.proxy.relay import Relay
from gslb.proxy.tunnel import Tunnel
from gslb.routing.health import Outcome
from gslb.routing.hold import Held
from gslb.routing.refusal import NoRoom
from gslb.routing.router import Decision, Refusal
from gslb.types import Facts
from gslb.wire.http1 import RequestHead
from gslb.wire.paths import model_id_of

if TYPE_CHECKING:
    from gslb.proxy.client import ClientConnection


class Exchange:
    """One request and its answer."""

    __slots__ = (
        "_attempt", "_hedge", "_held_bytes", "_is_done", "_is_paused", "_lost_races", "_tunnel", "admitted",
        "attempts", "begun_s", "bytes_in", "bytes_out", "client", "expected_cached", "explanation", "failures",
        "fence", "generation", "head", "held", "held_s", "home", "predicted_ms", "reason", "relay", "request_id",
        "served_endpoint", "served_region", "started_s", "status", "total_at_s", "tried", "ttft_s",
    )  # fmt: skip

    def __init__(self, client: ClientConnection, generation: Generation, head: RequestHead, now_s: float) -> None:
        # the request
        self.client = client
        self.generation = generation
        self.head = head
        self.request_id = client.request_id(head)
        self.started_s = now_s
        self.begun_s = perf_counter()
        self.admitted: Admitted | None = None
        self._held_bytes = 0
        self.total_at_s = NEVER_S
        # its waiting for room
        self.held: Held | None = None
        self.held_s = 0.0
        # its attempts
        self._attempt: Attempt | None = None
        self._hedge: Hedge | None = None
        self.attempts = 0
        self.tried: list[str] = []
        self.failures: list[failure.Failure] = []
        self._lost_races = 0
        self._is_done = False
        # the answer going out
        self.relay: Relay | None = None
        self._tunnel: Tunnel | None = None
        self._is_paused = False
        self.expected_cached = 0
        """Prompt tokens that the answering endpoint should have had cached before."""
        # for the record
        self.home = self.served_region = self.served_endpoint = self.reason = ""
        self.explanation: str | None = None
        self.fence: str | None = None
        self.predicted_ms: float | None = None
        self.ttft_s: float | None = None
        self.status = self.bytes_in = self.bytes_out = 0

    @property
    def facts(self) -> Facts:
        """What the request asks. Only of one that may be routed."""
        assert self.admitted is not None
        assert self.admitted.facts is not None
        return self.admitted.facts

    # --- start -------------------------------------------------------------------------------------

    def start(self, body: bytes) -> None:
        """Admit, decide, and send the first attempt on its way; or answer at once."""
        self.bytes_in = self._held_bytes = len(body)
        try:
            choice = self._admit_and_decide(body)
        except ApiError as error:
            self.fail(error, "refused")
            return
        if choice is not None:
            self._follow(choice)

    def _admit_and_decide(self, body: bytes) -> Choice | None:
        """The first choice; None when the request was answered from memory. Raises ApiError."""
        generation = self.generation
        door = generation.door
        admitted = self.admitted = admit(self.head, body, self.client.place, generation, door.wall_s())
        if admitted.facts is None:
            answer = generation.models_answer(model_id_of(self.head.path), admitted.reading.rights.models)
            self._answer(200, answer, [], "ok")
            return None
        if door.is_stopping and not door.hands_over:
            raise failure.shutting_down()
        admitted.count_in(door.concurrency)
        admitted.charge(door.rates, door.counters, self.started_s)
        if generation.hedging is not None and admitted.facts.is_stream and not self.head.is_handshake:
            self._hedge = Hedge(generation.hedging)
        if generation.timeouts.total is not None:
            self.total_at_s = self.started_s + generation.timeouts.total
        return choose_for_newcomer(self, self.started_s)

    def _follow(self, choice: Choice) -> None:
        """Do what was decided before any attempt."""
        if isinstance(choice, Decision):
            self._try(choice)
        elif isinstance(choice, NoRoom):
            self._hold(choice)
        else:
            self.home = choice.home or ""
            self.fence = choice.fence
            outcome = "fenced" if choice.code == "residency_denied" else "refused"
            self.fail(failure.refusal_error(choice), outcome)

    # --- waiting for room --------------------------------------------------------------------------

    def _hold(self, no_room: NoRoom) -> None:
        self.home = no_room.home
        self.client.arm(NEVER_S)  # the queue minds its time
        choice = self.generation.door.holding.hold(self, no_room)
        if choice is not None:
            self._follow(choice)

    def take_place(self, decision: Decision) -> Attempt | None:
        """It is this request's turn: its attempt, not yet started; None when the endpoint has no place left."""
        attempt = self._attempt = self.next_attempt(decision)
        return attempt

    def released(self, choice: Decision | Refusal) -> None:
        """This request is held no more: it has got a place, or is refused."""
        if self._attempt is not None:
            self._start(self._attempt)
        else:
            self._follow(choice)

    # --- attempts ----------------------------------------------------------------------------------

    def _try(self, decision: Decision) -> None:
        attempt = self._attempt = self.next_attempt(decision)
        if attempt is None:
            self._decide_again(decision)
        else:
            self._start(attempt)

    def _start(self, attempt: Attempt) -> None:
        now_s = self.client.now_s()
        if self.attempts == 1:
            self.generation.retry_budget.request(now_s)
        if self._hedge is not None:
            self._hedge.attempt_begins(now_s)
        attempt.start(now_s)

    def next_attempt(self, decision: Decision) -> Attempt | None:
        """One more attempt, counted and not yet started; None when its endpoint has no place left."""
        ticket = decision.open_ticket(self.client.now_s())
        if ticket is None:
            return None
        self.attempts += 1
        self.home = decision.home
        attempt = Attempt(self, decision, ticket)
        self.tried.append(attempt.key)
        return attempt

    def _decide_again(self, lost: Decision) -> None:
        """Another worker took the last place at the endpoint of `lost` since that was decided."""
        self._lost_races += 1
        now_s = self.client.now_s()
        if not self.failures:
            self._follow(choose_again(self, now_s, self._lost_races, lost.home))
            return
        self._go_on(elsewhere(self, self.failures, now_s) if self._lost_races <= MOST_LOST_RACES else None)

    def attempt_failed(self, attempt: Attempt, fault: failure.Failure, *, may_stay: bool = False) -> bool:
        """An attempt failed before the commit point: go to the next endpoint, or tell the client.

        With `may_stay` it is no failure when nobody else may be asked: returns False, and the attempt goes on.
        """
        if self._attempt is None:
            return True
        hedge = self._hedge
        other = None if hedge is None else hedge.other(attempt)
        if hedge is not None and other is not None:
            attempt.close(fault.result, fault.outcome, fault.why)
            self.failures.append(fault)
            hedge.end(other)
            self._attempt = other
            self.arm(other.due_s)
            return True
        following = after_failure(self, fault)
        if following is None and may_stay:
            return False
        self._attempt = None
        attempt.close(fault.result, fault.outcome, fault.why)
        self.failures.append(fault)
        self._go_on(following)
        return True

    def _go_on(self, following: Decision | None) -> None:
        """After failures: to the next endpoint; with None the client is told."""
        if following is not None:
            self._try(following)
        else:
            self.fail(failure.final_error(self.failures), failure.final_outcome(self.failures))

    # --- the answer, from the attempt --------------------------------------------------------------

    def first_content(self) -> None:
        """The first token (or the first byte of an answer that is no stream) is here."""
        self.ttft_s = self.client.now_s() - self.started_s

    def commit(self, attempt: Attempt, held: bytes, is_complete: bool) -> None:
        """This attempt's answer is the answer: write its head and what was held of its body."""
        is_second = False
        if self._hedge is not None:
            is_second = self._hedge.end(attempt)
            self._attempt = attempt
        head, decision, client = attempt.head, attempt.decision, self.client
        assert head is not None
        self.status = head.status
        note_served(self, attempt)
        if is_second and decision.region != decision.home:
            self.reason = "hedge"
        head_bytes = answer_head(self, head, decision)
        clock = self.generation.door.deadlines
        relay = self.relay = Relay(client, clock, head, head_bytes, self.head.is_http10, self._complete)
        self._drop_body()
        relay.write(held, is_complete)
        if not (self._is_done or self._is_paused):
            limit_s = attempt.first_token_limit_s
            self.arm(client.now_s() + self.generation.timeouts.between_bytes if limit_s is None else limit_s)

    def begin_tunnel(self, attempt: Attempt, tunnel: Tunnel) -> None:
        """This attempt's 101 is the answer: from here on it is bytes both ways."""
        self._tunnel = tunnel
        self.status = 101
        note_served(self, attempt)
        self.first_content()

    def tunnel_done(self, tunnel: Tunnel, outcome: str, result: str, blame: Outcome, why: str) -> None:
        """The tunnel has ended; the client is closed as cleanly as the endpoint closed."""
        self.bytes_in, self.bytes_out = tunnel.bytes_in, tunnel.bytes_out
        if self._attempt is not None:
            self._attempt.close(result, blame, why)
        if result == "reset":
            self.client.close_unclean()
        self._end(outcome, keep_alive=False)

    def mind_gaps(self) -> bool:
        """Wait for the next byte of the answer no longer than `between_bytes` after the last one; False when that
        time is over."""
        relay = self.relay
        assert relay is not None
        until_s = relay.moved_at_s + self.generation.timeouts.between_bytes
        if until_s <= self.generation.door.deadlines.now_s:
            return False
        if not self._is_paused:
            self.arm(until_s)
        return True

    def _complete(self) -> None:
        """The answer went out whole."""
        attempt, relay = self._attempt, self.relay
        assert attempt is not None
        assert relay is not None
        is_fault = self.status >= 500
        if relay.ended_in_error():
            is_fault = True
            attempt.close("error_event", Outcome.SERVER_ERROR, "an error event ended the stream")
        else:
            attempt.close(*failure.status_outcome(self.status))
        self._end("upstream_error" if is_fault else "ok", keep_alive=True)

    def cut(self, outcome: str, result: str, why: str, blame: Outcome = Outcome.BROKEN) -> None:
        """End a committed answer that will not be completed; it must not look complete (FC-08, FC-09)."""
        attempt, relay = self._attempt, self.relay
        if attempt is None or relay is None:
            return
        attempt.close(result, blame, why)
        relay.tell_cut(self.head.path)
        self.client.close_unclean()
        self._end(outcome, keep_alive=False)

    # --- time, flow control, and the client leaving -------------------------------------------------

    def arm(self, deadline_s: float) -> None:
        """Set this exchange's deadline, never past the total limit or the time to hedge."""
        if self._hedge is not None:
            deadline_s = self._hedge.next_due_s(deadline_s)
        self.client.arm(min(deadline_s, self.total_at_s))

    def on_deadline(self, now_s: float) -> None:
        """The deadline passed while this exchange runs."""
        attempt = self._attempt
        if self._tunnel is not None:
            self._tunnel.on_deadline(now_s, now_s >= self.total_at_s)
        elif self._is_paused:
            self.client.abort()  # it took no byte for too long; connection_lost follows
        elif attempt is not None and now_s >= self.total_at_s:
            # The operator's limit for all attempts together says nothing about the one that runs now.
            why = "the total time is over"
            self._end_hedge()
            if attempt.is_committed:
                self.cut("timeout", "timeout", why, Outcome.NEUTRAL)
            else:
                self.attempt_failed(attempt, failure.out_of_time(why, attempt.decision.region))
        elif attempt is not None and self._hedge is not None:
            self._hedge.on_deadline(self, attempt, now_s)
        elif attempt is not None:
            attempt.on_deadline(now_s)

    def on_client_gone(self) -> None:
        """The client left: abort upstream now, try nobody else, blame nobody (FC-12)."""
        if self._is_done:
            return
        self._end_hedge()
        self.status = 499
        if self._attempt is not None:
            note_served(self, self._attempt)
            self._attempt.close("aborted", Outcome.NEUTRAL)
        self._end("client_gone", keep_alive=False)

    def stop(self) -> None:
        """The edge's grace is over: end this exchange now, as honestly as its state allows (FC-39)."""
        attempt = self._attempt
        if attempt is None:
            if self.held is not None:
                self.fail(failure.shutting_down(), "refused")
            return
        self._end_hedge()
        if self._tunnel is not None:
            self._tunnel.stop()
        elif attempt.is_committed:
            self.cut("upstream_truncated", "aborted", "shutting down", Outcome.NEUTRAL)
        else:
            self._attempt = None
            attempt.close("aborted", Outcome.NEUTRAL)
            self.fail(failure.shutting_down(), "refused")

    def _end_hedge(self) -> None:
        """Of two attempts the first is all that is left to end."""
        if self._hedge is not None:
            self._hedge.end(self._attempt)

    def pause(self) -> None:
        """The client takes no more for now: hold the endpoint back, and bound how long."""
        self._is_paused = True
        if self._attempt is not None:
            self._attempt.pause_reading()
        self.arm(self.client.now_s() + self.generation.timeouts.client_write)

    def resume(self) -> None:
        """The client reads again."""
        self._is_paused = False
        if self._attempt is not None:
            self._attempt.resume_reading()
            self.arm(self.client.now_s() + self.generation.timeouts.between_bytes)

    # --- ends --------------------------------------------------------------------------------------

    def fail(self, error: ApiError, outcome: str) -> None:
        """Answer with an error of gslb's own."""
        fields = list(error.headers)
        if self.failures:
            fields.append((b"x-should-retry", b"false"))
        self.reason = self.reason or error.code
        self._answer(error.status, self.client.error_body(error, self.head, fields), fields, outcome)

    def _answer(self, status: int, body: bytes, fields: list[tuple[bytes, bytes]], outcome: str) -> None:
        self.status = status
        fields.append((b"X-Request-Id", self.request_id))
        if self.attempts:
            fields.append((b"x-gslb-attempts", b"%d" % self.attempts))
        self.bytes_out = len(body)
        self.client.answer(status, body, fields, self.head)
        self._end(outcome, keep_alive=True)

    def _end(self, outcome: str, *, keep_alive: bool) -> None:
        self._is_done = True
        self._attempt = None
        if self.held is not None:
            self.generation.door.holding.leave(self)
        if self.relay is not None:
            self.bytes_out = self.relay.bytes_out
        try:
            write_record(self, outcome, self.client.now_s())
        finally:  # whatever may be wrong with a log: what is held is given back
            self._let_go()
        self.client.exchange_done(keep_alive and self.client.keeps_alive(self.head))

    def _let_go(self) -> None:
        self.relay = None  # it knows this exchange: together they would wait for the collector
        self._drop_body()
        if self.admitted is not None:
            self.admitted.count_out(self.generation.door.concurrency)
            self.admitted = None

    def _drop_body(self) -> None:
        """Nobody will be sent the body any more: it must not stay in memory as long as its answer streams."""
        if self._held_bytes:
            self.generation.door.body_budget.let_go(self._held_bytes)
            self._held_bytes = 0
            if self.admitted is not None:
                self.admitted.body = b""
