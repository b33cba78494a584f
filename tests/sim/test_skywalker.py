"""SkyWalker's rule: push locally while nothing is pending, else forward, else wait in line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from gslb.sim.setting import Ask, EdgeSpec, Setting
from gslb.sim.skywalker import PROBE_INTERVAL_S
from gslb.sim.world import World
from tests.sim.test_world import play, small


def with_asks(setting: Setting, asks: list[Ask]) -> Setting:
    """The same fleet, these requests."""

    def offered(_dice: Random) -> Iterator[Ask]:
        return iter(asks)

    return replace(setting, offered=offered)


def ask(setting: Setting, at_s: float, edge: int = 0, output: int = 50, blocks: tuple[int, ...] = ()) -> Ask:
    """A request at an edge."""
    where = setting.edges[edge]
    return Ask(at_s, where.place, where.name, 1000, output, 1000.0, blocks, 100 if blocks else 0)


def test_one_push_a_probe_and_replica_then_the_neighbours() -> None:
    setting = small(duration_s=30.0)
    # Six at once: two replicas at home take one each, the rest goes to the nearest others that are available.
    result = play(with_asks(setting, [ask(setting, 5.0 + n / 10_000) for n in range(6)]), "skywalker")
    assert result.total.completed == 6
    served = {name: tally.completed for name, tally in result.by_served.items()}
    assert served["virginia"] == 2
    assert served["oregon"] == 2
    assert sum(served.values()) == 6


def test_between_probes_the_next_request_finds_the_replica_free_again() -> None:
    setting = small(duration_s=60.0)
    asks = [ask(setting, 5.0 + n * 1.5 * PROBE_INTERVAL_S) for n in range(12)]
    result = play(with_asks(setting, asks), "skywalker")
    assert result.by_served["virginia"].completed == 12


def test_without_a_replica_anywhere_requests_wait_in_line() -> None:
    setting = small(duration_s=300.0)
    # Sixteen slots at each of ten replicas: 160 run, the others wait until somebody ends.
    asks = [ask(setting, 5.0 + n * 0.02, output=400) for n in range(200)]
    world = World(with_asks(setting, asks), "skywalker", 1, lambda: 0.0)
    world.play(lambda _share: True)
    result = world.result(0.0, True)
    assert result.total.completed == 200
    assert max(moment.held_now for moment in result.timeline) > 20
    assert result.total.held > 20


def test_a_prompt_goes_where_its_beginning_was_sent() -> None:
    setting = small(duration_s=60.0)
    blocks = [tuple(range(n * 1000, n * 1000 + 10)) for n in range(4)]
    asks = [ask(setting, 5.0 + n, blocks=blocks[n % 4]) for n in range(40)]
    result = play(with_asks(setting, asks), "skywalker")
    # All but the first of each kind find nine of ten blocks (the last token is always computed).
    assert result.total.cached_tokens == 36 * 900


def test_an_edge_far_from_any_region_forwards_to_the_balancer_that_has_one() -> None:
    setting = small(duration_s=30.0)
    extra = EdgeSpec("nowhere", replace(setting.edges[0].place, city="Elsewhere", lat=45.0))
    setting = replace(setting, edges=(*setting.edges, extra))
    result = play(with_asks(setting, [ask(setting, 5.0, edge=5)]), "skywalker")
    assert result.by_served["virginia"].completed == 1
    assert result.reasons == {"home": 1}
