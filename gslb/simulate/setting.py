"""A checked scenario as the world the simulator runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

from gslb.config.scenario import CheckedScenario
from gslb.config.scenario_schema import Engine, Load, Sessions, Tokens
from gslb.config.schema_fleet import POLICY_NAMES
from gslb.geo.atlas import metros
from gslb.geo.rtt_prior import rtt_prior_ms
from gslb.geo.rtt_table import round_trip_ms
from gslb.proxy.generation import marks_of, rules_of
from gslb.proxy.holding import hold_of
from gslb.routing.profiles import PROFILES
from gslb.routing.rules import RoutingRules
from gslb.sim.arrivals import (
    Demand,
    Talk,
    conversations,
    gamma_gaps,
    poisson_gaps,
    singles,
    typical_lengths,
)
from gslb.sim.capacity import requests_per_s
from gslb.sim.clients import Crowd, Day, Surge, crowds_of
from gslb.sim.lengths import Independent, Lengths, Lognormal, Seen
from gslb.sim.replay import Replay, replayed, survey
from gslb.sim.setting import Ask, EdgeSpec, EngineSpec, Fault, Setting
from gslb.sim.traces import Row, read_trace
from gslb.types import Place

_SAMPLED = 4000
"""Lengths drawn (always the same ones) to reckon capacity."""
_CHUNK_BYTES = 1 << 16

RttMs = Callable[[Place, Place], float]


def setting_of(checked: CheckedScenario, trace: Path | None = None, of_capacity: float | None = None) -> Setting:
    """The world of `checked`. `trace` and `of_capacity` go before what the scenario says of its load.

    Raises TraceError for a trace that cannot be used, ValueError when the load replays one and none is given.
    """
    scenario = checked.scenario
    load = _changed(scenario.load, trace, of_capacity)
    engines = {key: _spec(key, engine) for key, engine in checked.engines.items()}
    edges = tuple(EdgeSpec(name, place) for name, place in checked.edges.items())
    rtt_ms = rtt_of(checked)
    world = _World(checked, load, engines, edges, rtt_ms)
    offered = world.offered()
    return Setting(
        name=scenario.scenario,
        regions=checked.regions,
        endpoints=checked.endpoints,
        engines=engines,
        edges=edges,
        offered=offered,
        rtt_ms=rtt_ms,
        duration_s=world.duration_s,
        warm_up_s=scenario.warm_up,
        jitter=scenario.jitter,
        scrape_interval_s=checked.health.scrape_interval,
        signal_age_s=scenario.signal_age,
        probe_interval_s=checked.health.interval,
        rules=rules_for(checked, checked.routing.policy),
        hold=hold_of(checked.routing, 1),
        marks=marks_of(checked.health),
        faults=_faults(checked),
        max_attempts=checked.routing.failover.max_attempts,
        synthetic_geography=load.kind == "trace",
    )


def rules_for(checked: CheckedScenario, policy: str) -> RoutingRules:
    """The router's rules when it runs `policy`; `ordered` without an order takes the regions as they stand."""
    routing = checked.routing
    is_known = policy in POLICY_NAMES
    order = routing.order or [region.name for region in checked.regions]
    changed = routing.model_copy(update={"policy": policy if is_known else "ttft", "order": order})
    return rules_of(changed, checked.health, None)


def rtt_of(checked: CheckedScenario) -> RttMs:
    """Mean round trips: the table's between places it names, the prior for all others."""
    if not checked.table:
        return rtt_prior_ms
    table, names = checked.table, checked.table_names

    def rtt_ms(a: Place, b: Place) -> float:
        if a in names and b in names:
            measured = round_trip_ms(table, names[a], names[b])
            if measured is not None:
                return measured
        return rtt_prior_ms(a, b)

    return rtt_ms


def _changed(load: Load, trace: Path | None, of_capacity: float | None) -> Load:
    if trace is not None:
        load = load.model_copy(update={"kind": "trace", "file": str(trace.absolute()), "surges": []})
    if of_capacity is not None:
        load = load.model_copy(update={"of_capacity": of_capacity, "rate": None})
    return load


def _spec(key: str, engine: Engine) -> EngineSpec:
    return EngineSpec(
        key=key,
        profile=PROFILES[engine.profile],
        slots=engine.slots,
        kv_tokens=engine.kv_tokens,
        step_tokens=engine.step_tokens,
        has_prefix_cache=engine.prefix_cache,
    )


def _faults(checked: CheckedScenario) -> tuple[Fault, ...]:
    scenario = checked.scenario
    return tuple(
        Fault(
            kind=fault.kind,
            target=target,
            at_s=fault.at,
            until_s=fault.until if fault.until is not None else float("inf"),
            factor=fault.factor,
            notice_s=fault.notice,
        )
        for fault in scenario.faults
        for target in fault.target
    )


class _World:
    """Who asks, and how much: the part of a scenario that needs reckoning."""

    def __init__(
        self, checked: CheckedScenario, load: Load, engines: Mapping[str, EngineSpec], edges: Sequence[EdgeSpec],
        rtt_ms: RttMs,
    ) -> None:  # fmt: skip
        self._checked = checked
        self._load = load
        self._engines = engines
        self._edges = edges
        self._rtt_ms = rtt_ms
        self.duration_s = checked.scenario.duration

    def offered(self) -> Callable[[Random], Iterator[Ask]]:
        """What yields the requests of one run. A trace may make `duration_s` shorter."""
        load = self._load
        if load.kind == "trace":
            return self._recorded()
        if load.kind == "sessions":
            talk = _talk(load.sessions, load, next(iter(self._engines.values())))
            demand = self._demand(typical_lengths(talk))
            return lambda dice: conversations(demand, talk, dice)
        lengths = self._lengths()
        gaps = gamma_gaps(load.cv) if load.kind == "gamma" else poisson_gaps
        demand = self._demand(_typical(lengths))
        return lambda dice: singles(demand, lengths, gaps, dice)

    def _recorded(self) -> Callable[[Random], Iterator[Ask]]:
        """A trace's requests. The run is no longer than the trace lasts at the rate that is asked for."""
        load = self._load
        if load.file is None:
            raise ValueError("this scenario replays a trace: give one with --trace FILE")
        rows = partial(rows_of, self._checked.base_dir / load.file)
        seen = survey(rows())
        capacity = self._capacity(seen.lengths)
        replay = Replay(
            open_rows=rows,
            survey=seen,
            rate_per_s=self._rate(capacity) or seen.rate_per_s,
            duration_s=self.duration_s,
            budget_ms=self._budget_ms,
            is_superposed=load.scale == "superpose",
        )
        self.duration_s = min(self.duration_s, replay.longest_s)
        if self.duration_s <= self._checked.scenario.warm_up:
            raise ValueError(
                f"{load.file}: at this load the trace is used up after {replay.longest_s:.0f} s, within the "
                "warm-up: lower the load or warm_up"
            )
        crowds = self._crowds(capacity)
        return lambda dice: replayed(replay, crowds, dice)

    def _lengths(self) -> Lengths:
        load = self._load
        if load.lengths_of is not None:
            return Seen(survey(rows_of(self._checked.base_dir / load.lengths_of)).lengths)
        return Independent(_lognormal(load.prompt), _lognormal(load.output))

    @property
    def _budget_ms(self) -> float:
        return self._checked.scenario.budget * 1000

    def _capacity(self, lengths: Sequence[tuple[int, int]]) -> dict[str, float]:
        """Endpoint key -> requests per second that it can take."""
        cached = self._load.cached
        by_spec = {replace(spec, key=""): spec for spec in self._engines.values()}
        rates = {like: requests_per_s(spec, lengths, cached) for like, spec in by_spec.items()}
        return {key: rates[replace(spec, key="")] for key, spec in self._engines.items()}

    def _rate(self, capacity: Mapping[str, float]) -> float:
        """Requests per second that are asked in all; 0 when the scenario leaves it to the trace."""
        return self._load.rate or (self._load.of_capacity or 0.0) * sum(capacity.values())

    def _demand(self, lengths: Sequence[tuple[int, int]]) -> Demand:
        capacity = self._capacity(lengths)
        return Demand(self._crowds(capacity), self._rate(capacity), self.duration_s, self._budget_ms)

    def _crowds(self, capacity: Mapping[str, float]) -> tuple[Crowd, ...]:
        load = self._load
        shares: Mapping[str, float] | None = None
        if isinstance(load.clients, dict):
            shares = load.clients
        elif load.clients == "capacity":
            shares = self._capacity_by_edge(capacity)
        day = Day(load.day, load.start_hour, load.peak_hour, load.swing) if load.kind == "diurnal" else None
        surges = [Surge(surge.edge, surge.at, surge.until, surge.factor) for surge in load.surges]
        return crowds_of(metros(), self._edges, self._rtt_ms, shares, day, surges)

    def _capacity_by_edge(self, capacity: Mapping[str, float]) -> dict[str, float]:
        """What each edge has beside it: a region counts for the edge nearest to it."""
        beside = dict.fromkeys((edge.name for edge in self._edges), 0.0)
        for endpoint in self._checked.endpoints:
            place = endpoint.region.place
            nearest = min(self._edges, key=lambda edge: self._rtt_ms(place, edge.place))
            beside[nearest.name] += capacity[endpoint.key]
        return beside


def _lognormal(tokens: Tokens) -> Lognormal:
    return Lognormal(tokens.median, tokens.mean, tokens.most)


def _typical(lengths: Lengths) -> list[tuple[int, int]]:
    dice = Random(0)
    return [lengths(dice) for _ in range(_SAMPLED)]


def rows_of(path: Path) -> Iterator[Row]:
    """The rows of a trace file. Raises TraceError, and OSError when it cannot be read."""
    with open(path, "rb") as file:
        yield from read_trace(iter(partial(file.read, _CHUNK_BYTES), b""), str(path))


def _talk(sessions: Sessions, load: Load, spec: EngineSpec) -> Talk:
    return Talk(
        question=_lognormal(load.prompt),
        answer=_lognormal(load.output),
        turns=sessions.turns,
        think_s=sessions.think,
        opening=_lognormal(sessions.opening) if sessions.opening is not None else None,
        systems=sessions.systems,
        system_tokens=sessions.system_tokens,
        most_tokens=sessions.most_tokens,
        block_tokens=sessions.block_tokens,
        token_s=spec.profile.decode_step_ms(spec.slots // 2) / 1000,
    )
