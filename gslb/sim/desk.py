"""The product itself at one simulated edge: its router, its fleet view, its tickets."""

from __future__ import annotations

from collections.abc import Callable, Collection

from gslb.routing.affinity import Affinity
from gslb.routing.health import Outcome
from gslb.routing.hold import Held, HoldQueue
from gslb.routing.router import Decision, NoRoom, Refusal, Router
from gslb.routing.view import FleetView
from gslb.sim.edge import Edge
from gslb.sim.journey import Attempt, Journey
from gslb.types import Facts


class DecisionCost:
    """How many decisions were made and what they cost by the clock the run was given."""

    __slots__ = ("clock", "count", "spent_s")

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.count = 0
        self.spent_s = 0.0


class Desk:
    """Decides for one edge by the router that also serves (a `Chooser`)."""

    def __init__(
        self,
        edge: Edge,
        router: Router,
        fleet: FleetView,
        max_attempts: int,
        cost: DecisionCost,
        on_doubt: Callable[[str, float], None],
        affinity: Affinity | None,
        queue: HoldQueue,
        *,
        learns: bool = True,
        judges: bool = True,
    ) -> None:
        """`on_doubt` is called with an endpoint's key and the time when an outcome changed its state. A desk that
        does not learn tells the fleet view no times, one that does not judge no failures."""
        self._edge = edge
        self._router = router
        self.fleet = fleet
        self._max_attempts = max_attempts
        self._cost = cost
        self._on_doubt = on_doubt
        self.affinity = affinity
        self._queue = queue
        self._learns = learns
        self._judges = judges

    @property
    def held(self) -> int:
        """Requests that wait at the edge now."""
        return len(self._queue)

    def take(self, journey: Journey, now_s: float) -> None:
        """Decide at once, or hold the request where nobody has room or others were there first."""
        facts, snapshot = journey.facts, self.fleet.snapshot
        choice = self._route(facts, now_s)
        if isinstance(choice, Decision) and self._must_wait(facts, choice):
            self._hold(journey, self._router.no_room(facts, snapshot, now_s), now_s)
            self.release(now_s)
        elif isinstance(choice, NoRoom):
            self._hold(journey, choice, now_s)
        else:
            self._do(journey, choice, now_s)

    def _route(self, facts: Facts, now_s: float) -> Decision | NoRoom | Refusal:
        cost = self._cost
        began_s = cost.clock()
        choice = self._router.route(facts, self.fleet.snapshot, now_s)
        cost.spent_s += cost.clock() - began_s
        cost.count += 1
        return choice

    def _do(self, journey: Journey, choice: Decision | Refusal, now_s: float) -> None:
        if isinstance(choice, Refusal):
            self._edge.refuse(journey, choice.code)
        elif not self._send(journey, choice, now_s):
            self._edge.refuse(journey, "saturated")

    # --- holding -----------------------------------------------------------------------------------

    def _hold(self, journey: Journey, no_room: NoRoom, now_s: float) -> None:
        group = self._router.group_of(journey.facts, self.fleet.snapshot)
        held = self._queue.add(journey.facts, group, journey, now_s, no_room)
        if not isinstance(held, Held):
            self._do(journey, held, now_s)

    def _must_wait(self, facts: Facts, choice: Decision) -> bool:
        queue = self._queue
        if not len(queue):
            return False
        group = self._router.group_of(facts, self.fleet.snapshot)
        return queue.must_wait(group, facts.priority, choice.option.view.endpoint.key)

    def release(self, now_s: float, freed: Collection[str] | None = None) -> None:
        """Room may have come, at the endpoints `freed` or anywhere: those go that find some."""
        if not len(self._queue):
            return

        def place(held: Held) -> Decision | NoRoom | Refusal:
            return self._route(held.facts_at(now_s), now_s)

        for held, choice in self._queue.release(now_s, place, freed):
            self._let_go(held, choice, now_s)

    def _let_go(self, held: Held, choice: Decision | Refusal, now_s: float) -> None:
        journey = held.cookie
        assert isinstance(journey, Journey)
        journey.held_s = now_s - held.arrived_s
        self._do(journey, choice, now_s)

    def again(self, journey: Journey, now_s: float, never_sent: bool) -> bool:
        """The router's next endpoint, within attempts and retry budget."""
        router, snapshot = self._router, self.fleet.snapshot
        most = max(self._max_attempts, router.last_resorts(journey.facts, snapshot))
        if journey.attempts >= most:
            return False
        failures = journey.failures_by_region or {}
        choice = router.next_attempt(journey.facts, snapshot, now_s, journey.tried, failures)
        if choice is None or not (never_sent or self._edge.retry_budget.try_retry(now_s)):
            return False
        return self._send(journey, choice, now_s)

    def first_token(self, attempt: Attempt, now_s: float) -> None:
        """The one place where a prediction meets what it predicted."""
        decision = attempt.decision
        if decision is None:
            return
        option, key = decision.option, attempt.site.key
        if option.has_room and self._learns:
            engine_ms = (now_s - attempt.sent_s) * 1000 - (option.view.rtt_ms or 0.0)
            self.fleet.first_token_seen(key, option.work, option.ahead, engine_ms)
        if self.affinity is not None:
            attempt.expected_cached = self.affinity.prefilled(key, attempt.journey.facts, now_s)

    def ended(self, attempt: Attempt, outcome: Outcome, now_s: float, why: str) -> None:
        """Tell the fleet view how it went."""
        key = attempt.site.key
        if outcome is Outcome.SUCCESS:
            if self._learns:
                self.fleet.answer_seen(key, (now_s - attempt.sent_s) * 1000)
            if self.affinity is not None:
                usage = attempt.prompt_tokens, attempt.journey.ask.output_tokens, attempt.cached_tokens
                self.affinity.answered(key, attempt.journey.facts, attempt.expected_cached, usage, now_s)
        is_told = self._judges or outcome is Outcome.SUCCESS
        if is_told and self.fleet.outcome(key, outcome, now_s, why):
            self._on_doubt(key, now_s)
        self.release(now_s, (key,))

    def is_doubted(self, key: str) -> bool:
        """As the fleet view sees it."""
        return self.fleet.is_doubted(key)

    def tick(self, now_s: float) -> None:
        """A second has passed."""
        self.fleet.tick(now_s)
        for held, refusal in self._queue.overdue(now_s):
            self._let_go(held, refusal, now_s)
        if self.affinity is not None:
            self.affinity.observed(self.fleet.snapshot.endpoints)

    def _send(self, journey: Journey, decision: Decision, now_s: float) -> bool:
        ticket = decision.open_ticket(now_s)
        if ticket is None:
            return False
        self._edge.send(
            journey,
            decision.option.view.endpoint.key,
            now_s,
            decision.reason,
            decision.edge_ttft_ms,
            decision,
            ticket,
        )
        return True
