"""What a policy chooses from: one tier of endpoints, and how each stands for one request.

A tier holds endpoints of equal suspicion and priority, the least `idle_ms` first: home, then foreign regions
from near to far. Options are predicted on demand, so that a decision over a thousand endpoints need not cost
more than one over the nearest region.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from random import Random
from typing import Final

from gslb.routing.affinity import Expected
from gslb.routing.learn import prefill_work
from gslb.routing.predict import Option, predict
from gslb.routing.rules import RoutingRules
from gslb.routing.snapshot import Snapshot
from gslb.types import Facts

_BRIM: Final = 0.95
"""Share of a region's slots in use from which a shut gate yields to nobody whose home lives."""


class Entry:
    """One endpoint of a tier: its place in the snapshot and what depends on the client's place only.

    `idle_ms` is network and tax: what the endpoint would cost if it were idle, but for the prefill.
    """

    __slots__ = ("idle_ms", "index", "is_home", "network_ms", "region", "tax_ms")

    def __init__(self, index: int, region: str, network_ms: float, tax_ms: float, is_home: bool) -> None:
        self.index = index
        self.region = region
        self.is_home = is_home
        self.network_ms = network_ms
        self.tax_ms = tax_ms
        self.idle_ms = network_ms + tax_ms


class Tier:
    """Entries a policy sees together, the nearest first (ties: as configured).

    `front` are those at home that would be near-equals if all were idle: what a quiet fleet chooses from.
    """

    __slots__ = ("entries", "front", "has_home", "nearest_ms")

    def __init__(self, entries: list[Entry], near_equal_ms: float) -> None:
        self.entries = sorted(entries, key=_idle_ms)
        self.nearest_ms = self.entries[0].idle_ms
        limit_ms = self.nearest_ms + near_equal_ms
        self.has_home = any(entry.is_home for entry in self.entries)
        self.front = [entry for entry in self.entries if entry.is_home and entry.idle_ms <= limit_ms]


def _idle_ms(entry: Entry) -> float:
    return entry.idle_ms


class Slate:
    """One request's view of a tier. `cached` tells what of its prompt is cached where. `least_prefill_ms` is a
    floor under every option's prefill; `seen` collects what a policy looked at (some perhaps twice)."""

    __slots__ = (
        "_ask_gate", "_avoided", "_cached", "_gates", "_least_work", "_now_s", "_snapshot", "_tried", "dice",
        "facts", "home", "least_prefill_ms", "rules", "seen", "tier", "turn", "work",
    )  # fmt: skip

    def __init__(
        self,
        facts: Facts,
        snapshot: Snapshot,
        now_s: float,
        rules: RoutingRules,
        home: str,
        dice: Random,
        turn: int,
        ask_gate: Callable[[str, Snapshot, float], tuple[bool, float]],
        tried: Collection[str] = (),
        avoided: Collection[str] = (),
        cached: Expected | None = None,
    ) -> None:
        self.facts = facts
        self._cached = cached
        self.work = work = prefill_work(facts.prompt_tokens)
        self._snapshot = snapshot
        self._now_s = now_s
        self.rules = rules
        self.home = home
        if cached is not None:
            work = prefill_work(facts.prompt_tokens, cached.most_tokens)
        self._least_work = work
        self.least_prefill_ms = work * snapshot.least_rate_ms
        self.dice = dice
        self.turn = turn
        self._ask_gate = ask_gate
        self._tried = tried
        self._avoided = avoided
        self._gates: dict[str, tuple[bool, float]] | None = None
        self.seen: list[Option] = []

    tier: Tier
    """Set by the router, one tier after the other."""

    def option(self, entry: Entry) -> Option | None:
        """Predict; None where this exchange must not go: the endpoint was tried, or its region is avoided."""
        view = self._snapshot.endpoints[entry.index]
        if (self._tried and view.endpoint.key in self._tried) or (self._avoided and entry.region in self._avoided):
            return None
        work = self.work
        cached = self._cached
        if cached is not None and (cached_tokens := cached.tokens(view.endpoint.key)):
            work = prefill_work(self.facts.prompt_tokens, cached_tokens)
        rules = self.rules
        taxed = (work - self._least_work) * rules.damping.crowd_tax
        return predict(view, entry.network_ms, entry.tax_ms, work, self._now_s, rules.stale_after_s, taxed)

    @property
    def has_cached(self) -> bool:
        """Something of the prompt is likely cached somewhere."""
        return self._cached is not None

    def is_known(self, option: Option) -> bool:
        """False when nobody has told this endpoint's load lately."""
        return option.view.at_s >= self._now_s - self.rules.stale_after_s

    def gate_is_shut(self, region: str) -> bool:
        """Whether a region's door for foreign traffic is shut."""
        return self._gate(region)[0]

    def is_brimming(self, region: str) -> bool:
        """Next to no slot of a region is free: what comes free there its own clients wait for."""
        return self._gate(region)[1] >= _BRIM

    def _gate(self, region: str) -> tuple[bool, float]:
        """Ask a region's door, once per slate."""
        gates = self._gates
        if gates is None:
            gates = self._gates = {}
        if region not in gates:
            gates[region] = self._ask_gate(region, self._snapshot, self._now_s)
        return gates[region]

    def with_room(self) -> Iterator[Option]:
        """Options that can take one more request now, nearest first; the full ones land in `seen` too."""
        for entry in self.tier.entries:
            option = self.option(entry)
            if option is not None:
                self.seen.append(option)
                if option.has_room:
                    yield option
