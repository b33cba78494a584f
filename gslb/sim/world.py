"""A run: the whole world of a setting under one policy, from second 0 to its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from heapq import heappop, heappush
from random import Random

from gslb.routing.affinity import Affinity
from gslb.routing.router import Router
from gslb.sim.agenda import Agenda
from gslb.sim.desk import DecisionCost, Desk
from gslb.sim.edge import Edge
from gslb.sim.faults import schedule
from gslb.sim.journey import Journey
from gslb.sim.links import Links
from gslb.sim.oracle import oracles
from gslb.sim.parts import OWN_WAYS, PARTS, fleet_of, labelled, queue_of, reduced
from gslb.sim.result import RunResult
from gslb.sim.score import Score
from gslb.sim.setting import Ask, EdgeSpec, Setting
from gslb.sim.site import Site
from gslb.sim.skywalker import balancers
from gslb.sim.watch import Watch
from gslb.types import Place, Region


def run(
    setting: Setting,
    policy: str,
    seed: int,
    cpu_clock: Callable[[], float],
    on_progress: Callable[[float], bool],
) -> RunResult:
    """Serve all that `setting` offers with `policy`. The same seed gives the same requests and the same network to
    every policy.

    `cpu_clock` is read around decisions (seconds); `on_progress` is called with the simulated share (0..1) once a
    simulated second, and ends the run by returning False: the result is then partial. Raises ValueError for an
    unknown policy or part, or a fault whose kind or target does not exist.
    """
    began_s = cpu_clock()
    world = World(setting, policy, seed, cpu_clock)
    is_whole = world.play(on_progress)
    return world.result(cpu_clock() - began_s, is_whole)


class World:
    """Everything in it, and the loop that turns it."""

    def __init__(self, setting: Setting, policy: str, seed: int, cpu_clock: Callable[[], float]) -> None:
        self.setting = setting = reduced(setting, policy)
        self._policy = policy
        self._has_affinity = "affinity" not in setting.without
        self._seed = seed
        self._agenda = Agenda()
        self.score = Score()
        self._cost = DecisionCost(cpu_clock)
        self._links = Links(setting, self._dice("network"))
        self._route_links = Links(setting, self._dice("probes"))
        self.sites = {e.key: Site(e, setting.engines[e.key], self._agenda) for e in setting.endpoints}
        self.edges = self._baseline(policy) or {spec.name: self._edge(spec) for spec in setting.edges}
        self._now_s = 0.0
        self._is_due = False
        self._counts_from_s = setting.warm_up_s
        schedule(setting.faults, self.sites.values(), self._agenda)

    def _dice(self, what: str) -> Random:
        """Dice of their own for each purpose: what one policy throws more often does not move the others'."""
        return Random(f"{self._seed}/{what}")

    def _baseline(self, policy: str) -> dict[str, Edge]:
        """The edges of a policy that only the simulator knows; none for any other."""
        if policy not in OWN_WAYS:
            return {}
        edges = {
            spec.name: Edge(spec, self._links.edge_to_region_s(spec), self.sites, self._agenda, self.score)
            for spec in self.setting.edges
        }
        if policy == "oracle":
            oracles(edges, self.sites)
        else:
            balancers(edges, self.sites, self._agenda, self._dice("watch"))
        return edges

    def _edge(self, spec: EdgeSpec) -> Edge:
        setting = self.setting
        legs_s = self._links.edge_to_region_s(spec)
        edge = Edge(spec, legs_s, self.sites, self._agenda, self.score)
        fleet = fleet_of(setting)
        rules = replace(setting.rules, policy=self._policy, edge_place=spec.place)
        affinity = Affinity() if self._has_affinity else None
        router = Router(rules, _allow_all, self._dice(f"router {spec.name}"), affinity)
        dice = self._dice(f"watch {spec.name}")
        watch = Watch(setting, spec, legs_s, fleet, self.sites, self._agenda, self._route_links, dice)
        desk = edge.chooser = Desk(
            edge, router, fleet, setting.max_attempts, self._cost, watch.probe, affinity, queue_of(setting),
            learns="learning" not in setting.without, judges="ejection" not in setting.without,
        )  # fmt: skip
        watch.on_sampled = desk.release
        watch.start()
        return edge

    # --- the loop ----------------------------------------------------------------------------------

    def play(self, on_progress: Callable[[float], bool]) -> bool:
        """Turn until the end; False when `on_progress` ended it."""
        end_s = self.setting.duration_s
        asks = self.setting.offered(self._dice("asks"))
        ask = next(asks, None)
        second = 1
        while True:
            next_s = min(float(second), end_s)
            while ask is not None and ask.at_s < next_s:
                self._offer(ask)
                ask = next(asks, None)
            self._turn_until(next_s)
            self._now_s = next_s
            self._close_second(next_s)
            if next_s >= end_s:
                on_progress(1.0)
                return True
            if not on_progress(next_s / end_s):
                return False
            second += 1

    def _turn_until(self, until_s: float) -> None:
        """Let everything happen that is due before `until_s`."""
        self._is_due = True
        self._agenda.at(until_s, self._stop, None)
        heap, pop = self._agenda.heap, heappop
        while self._is_due:
            now_s, _, act, argument = pop(heap)
            act(now_s, argument)

    def _stop(self, _now_s: float, _argument: None) -> None:
        self._is_due = False

    def _offer(self, ask: Ask) -> None:
        """A client sends its request (within the second that is about to turn)."""
        links = self._links
        edge_name, at_s = ask.edge, ask.at_s
        home, to_edges_s = links.of_client(ask.place)
        edge = self.edges[edge_name]
        client_s = to_edges_s[edge_name] * links.jitter()
        journey = Journey(
            ask, edge, home, client_s, links.jitter(), at_s >= self._counts_from_s, self._has_affinity
        )
        self.score.offered(journey)
        agenda = self._agenda
        heappush(agenda.heap, (at_s + client_s, agenda.turn(), edge.take, journey))

    def _close_second(self, now_s: float) -> None:
        held = 0
        for edge in self.edges.values():
            edge.tick(now_s)
            held += edge.chooser.held
        running = {region.name: 0 for region in self.setting.regions}
        for site in self.sites.values():
            running[site.region] += site.engine.running + site.engine.waiting
        self.score.close_second(held, running)

    # --- what it came to ---------------------------------------------------------------------------

    def result(self, wall_s: float, is_whole: bool) -> RunResult:
        """All counts, after `play`."""
        setting, score, now_s = self.setting, self.score, self._now_s
        score.close(now_s)
        names = [region.name for region in setting.regions]
        busy: dict[str, list[float]] = {name: [] for name in names}
        for site in self.sites.values():
            busy[site.region].append(site.engine.work_s(now_s) / now_s if now_s else 0.0)
        per_hour = sum(endpoint.price_per_hour or 0.0 for endpoint in setting.endpoints)
        return RunResult(
            scenario=setting.name,
            policy=labelled(self._policy, setting.without),
            seed=self._seed,
            simulated_s=now_s,
            total=score.total(),
            by_home=score.by_home(names),
            by_served=score.by_served(names),
            flows=score.flows(),
            reasons=score.reasons,
            timeline=score.timeline,
            busy_share={name: sum(shares) / len(shares) if shares else 0.0 for name, shares in busy.items()},
            cost=per_hour * now_s / 3600,
            decisions=self._cost.count,
            decision_s=self._cost.spent_s,
            wall_s=wall_s,
            is_partial=not is_whole,
            without=tuple(part for part in PARTS if part in setting.without),
        )


def _allow_all(_place: Place, _region: Region) -> None:
    """No residency rules: a simulated world has no laws."""
