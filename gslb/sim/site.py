"""One endpoint as it really is: its engine, and what its server says about it."""

from __future__ import annotations

from heapq import heappush
from math import inf
from typing import Final

from gslb.sim.agenda import Agenda
from gslb.sim.engine import Engine
from gslb.sim.journey import DRAINING, REFUSED, RESET, SILENT, TOO_LONG, Attempt, Fault
from gslb.sim.setting import EngineSpec
from gslb.types import Endpoint, LoadSample

SILENCE_S: Final = 60.0
"""Longest silence within an answer before an edge cuts it (`timeouts.between_bytes`)."""


class Site:
    """An API server with an engine behind it. The flags are what faults turn.

    `is_gone` refuses connections, `is_draining` answers 503 to new work (and 200 to probes), `hides_metrics` has
    no /metrics, `looks_ill` fails probes although requests succeed.
    """

    __slots__ = (
        "_agenda", "_armed_s", "_hang_s", "endpoint", "engine", "hides_metrics", "is_draining",
        "is_gone", "key", "looks_ill", "region",
    )  # fmt: skip

    def __init__(self, endpoint: Endpoint, spec: EngineSpec, agenda: Agenda) -> None:
        self.endpoint = endpoint
        self.key = endpoint.key
        self.region = endpoint.region.name
        self.engine: Engine[Attempt] = Engine(spec, self)
        self._agenda = agenda
        self._armed_s = inf
        self._hang_s = inf
        self.is_gone = self.is_draining = self.hides_metrics = self.looks_ill = False

    # --- requests ----------------------------------------------------------------------------------

    def receive(self, now_s: float, attempt: Attempt) -> None:
        """A request reaches the server."""
        if attempt.is_over:
            return
        fault: Fault | None = None
        if self.is_gone:
            fault = REFUSED
        elif self.is_draining:
            fault = DRAINING
        elif not self.engine.fits(attempt.prompt_tokens, attempt.left):
            fault = TOO_LONG
        if fault is not None:
            self._fail(now_s, attempt, fault)
            return
        attempt.is_received = True
        self.engine.submit(attempt, now_s)
        self.arm()

    def abandon(self, now_s: float, attempt: Attempt) -> None:
        """The edge has closed the connection: the engine forgets the request."""
        if attempt.is_received:
            self.engine.abort(attempt, now_s)
            self.arm()

    # --- the engine's time --------------------------------------------------------------------------

    def arm(self) -> None:
        """See to it that the engine is called when it is due: after everything that may have moved that."""
        due_s = self.engine.due_s
        if due_s != self._armed_s:
            self._armed_s = due_s
            if due_s < inf:
                agenda = self._agenda
                heappush(agenda.heap, (due_s, agenda.turn(), self._wake, None))

    def _wake(self, now_s: float, _argument: object) -> None:
        if now_s == self.engine.due_s:  # else it has moved since this call was put in
            engine = self.engine
            engine.advance(now_s)
            self._armed_s = due_s = engine.due_s
            if due_s < inf:
                agenda = self._agenda
                heappush(agenda.heap, (due_s, agenda.turn(), self._wake, None))

    def first_token(self, attempt: Attempt, now_s: float) -> None:
        """The engine has made it: it travels to the edge."""
        agenda = self._agenda
        heappush(agenda.heap, (now_s + attempt.leg_s, agenda.turn(), attempt.journey.edge.first_token, attempt))

    def finished(self, attempt: Attempt, now_s: float) -> None:
        """The last token travels to the edge."""
        agenda = self._agenda
        heappush(agenda.heap, (now_s + attempt.leg_s, agenda.turn(), attempt.journey.edge.finished, attempt))

    # --- faults -------------------------------------------------------------------------------------

    def go(self, now_s: float) -> None:
        """The server and everything it runs is gone: running answers break, connections are refused."""
        self.is_gone = True
        for attempt in self.engine.die():
            self._fail(now_s, attempt, RESET)
        self.arm()

    def come_back(self) -> None:
        """A new server with a cold engine."""
        self.is_gone = self.is_draining = False

    def slow_down(self, factor: float, now_s: float) -> None:
        """Steps last `factor` times as long."""
        self.engine.slow_down(factor, now_s)
        self.arm()

    def hang(self, now_s: float) -> None:
        """No token from here on, though everything else looks well."""
        self.engine.hang(now_s)
        self._hang_s = now_s
        self.arm()
        self._agenda.at(now_s + SILENCE_S, self._cut_silent, now_s)

    def recover(self, now_s: float) -> None:
        """The engine moves again."""
        self._hang_s = inf
        self.engine.recover(now_s)
        self.arm()

    def _cut_silent(self, now_s: float, hang_s: float) -> None:
        """Streams that have begun and are silent since `hang_s` are cut by their edges."""
        if self._hang_s != hang_s:
            return
        for attempt in self.engine.members():
            if attempt.first_s is not None:
                attempt.journey.edge.failed(now_s, (attempt, SILENT))

    def _fail(self, now_s: float, attempt: Attempt, fault: Fault) -> None:
        self._agenda.at(now_s + attempt.leg_s, attempt.journey.edge.failed, (attempt, fault))

    # --- what its server tells ----------------------------------------------------------------------

    def sample(self, now_s: float) -> LoadSample:
        """What /metrics would say now."""
        engine = self.engine
        made = engine.made_in_jump(now_s)
        memory = engine.memory
        return LoadSample(
            now_s, engine.running, engine.waiting, (memory.held_tokens + made) / memory.tokens,
            engine.prompt_tokens, engine.generation_tokens + made, engine.prefix_hits, engine.prefix_queries,
            engine.gap_s + made * engine.step_s, engine.gaps + made, memory.tokens,
        )  # fmt: skip
