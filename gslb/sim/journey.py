"""One request on its way through the world, and one try of it at one endpoint."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from gslb.routing.health import Outcome
from gslb.routing.load import Ticket
from gslb.routing.router import Decision
from gslb.sim.sequence import Sequence
from gslb.sim.setting import Ask
from gslb.types import Facts

if TYPE_CHECKING:
    from gslb.sim.edge import Edge
    from gslb.sim.site import Site


@dataclass(frozen=True, slots=True)
class Fault:
    """How an attempt failed, as the edge sees it. `is_final` when no other endpoint is asked (a 4xx)."""

    outcome: Outcome
    why: str
    never_sent: bool = False
    is_final: bool = False


REFUSED = Fault(Outcome.BROKEN, "connection refused", never_sent=True)
RESET = Fault(Outcome.BROKEN, "reset")
DRAINING = Fault(Outcome.SERVER_ERROR, "status 503")
TOO_LONG = Fault(Outcome.NEUTRAL, "status 400: longer than the engine's memory", is_final=True)
DOUBTED = Fault(Outcome.BROKEN, "silent, and its endpoint is ill")
TIMEOUT = Fault(Outcome.BROKEN, "no first byte in time")
SILENT = Fault(Outcome.BROKEN, "silent for too long")


class Journey:
    """One client's request. Its jitter is drawn once, so that every policy finds the same network.

    `home` is the region nearest to the client, `client_s` one way between client and edge, `wan_factor` what the
    way between edge and region is multiplied with. An edge that does not look for what belongs together
    (`has_affinity` False) has facts without session and prefix.
    """

    __slots__ = (
        "arrived_s", "ask", "attempts", "client_s", "edge", "facts", "failures_by_region", "first_s", "held_s",
        "home", "is_counted", "tried", "wan_factor",
    )  # fmt: skip

    def __init__(
        self,
        ask: Ask,
        edge: Edge,
        home: str,
        client_s: float,
        wan_factor: float,
        is_counted: bool,
        has_affinity: bool = True,
    ) -> None:
        self.ask = ask
        self.edge = edge
        self.home = home
        self.client_s = client_s
        self.wan_factor = wan_factor
        self.is_counted = is_counted
        self.arrived_s = 0.0
        self.held_s = 0.0
        self.first_s = inf
        """When its first token was at the edge."""
        self.facts = Facts(
            ask.model, ask.place, ask.tenant, ask.prompt_tokens, True, ask.budget_ms, None, None, ask.priority,
            ask.session if has_affinity else None, ask.blocks if has_affinity else (), ask.block_tokens,
        )  # fmt: skip
        self.attempts = 0
        self.tried: tuple[str, ...] = ()
        self.failures_by_region: dict[str, int] | None = None


class Attempt(Sequence):
    """One try at one endpoint; in its engine it is the sequence. `leg_s` is one way between its edge and the
    region, `sent_s` when it left the edge.

    `decision` is the router's, None where something else chose; `predicted_ms` what the edge should see from
    sending to first token, by whoever chose.
    """

    __slots__ = (
        "decision", "expected_cached", "first_s", "is_committed", "is_over", "is_received", "journey", "leg_s",
        "predicted_ms", "reason", "sent_s", "site", "ticket",
    )  # fmt: skip

    def __init__(
        self,
        journey: Journey,
        site: Site,
        leg_s: float,
        sent_s: float,
        reason: str,
        predicted_ms: float | None,
        decision: Decision | None,
        ticket: Ticket | None,
    ) -> None:
        ask = journey.ask
        Sequence.__init__(
            self, ask.prompt_tokens, ask.output_tokens, ask.blocks, ask.block_tokens, ask.answer_blocks
        )
        self.journey = journey
        self.site = site
        self.leg_s = leg_s
        self.sent_s = sent_s
        self.reason = reason
        self.predicted_ms = predicted_ms
        self.decision = decision
        self.ticket = ticket
        self.first_s: float | None = None
        self.expected_cached = 0
        """Tokens of the prompt that should have been cached there."""
        self.is_received = False
        """The engine has it."""
        self.is_committed = False
        """Its head went out before the first token: it cannot go elsewhere any more."""
        self.is_over = False
