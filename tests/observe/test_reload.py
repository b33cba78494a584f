"""One watch per endpoint of the current configuration, whatever was reloaded (FC-31)."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial

import pytest

from gslb.clock import ManualClock
from gslb.counters import Counters
from gslb.native import is_native
from gslb.observe.observer import Observer
from gslb.observe.rhythm import Conditions, Rhythm
from gslb.routing.health import HealthMarks, State
from gslb.routing.view import FleetView
from tests.observe.conftest import MakeUpstream, Observe
from tests.observe.upstream import Upstream, answers, endpoint, fleet_of, settings, until, view_of

INTERVAL_S = 0.1


def have_probed(upstreams: tuple[Upstream, ...], before: Counter[str], times: int) -> bool:
    return all(upstream.hits["/health"] >= before[upstream.url] + times for upstream in upstreams)


async def test_fc31_five_reloads_leave_one_prober_each(make_upstream: MakeUpstream, observe: Observe) -> None:
    """FC-31: one prober per endpoint, whatever was reloaded."""
    one, two, three = [await make_upstream() for _ in range(3)]
    u1, u2, u3 = (endpoint(f"eu/{i}", up.url) for i, up in enumerate((one, two, three), 1))
    clock = ManualClock(100.0)
    fleet = fleet_of(u1, u2)
    observer = observe(fleet, settings(u1, u2), clock)
    assert await observer.first_round(10)
    for generation in (
        settings(u1, u2, u3),
        settings(u2, u3),
        settings(u2, u3, scrape_interval="40ms"),
        settings(u1, u2, u3, scrape_interval="40ms"),
        settings(u1, u2, u3, scrape_interval="40ms"),
    ):
        fleet.configure(generation.endpoints, HealthMarks())
        observer.apply(generation)
        assert view_of(fleet, "eu/2").state is State.ADMITTING, "no flash of unknown"
    assert await observer.first_round(10)
    assert observer.watched == {"eu/1", "eu/2", "eu/3"}
    # The clock stands still, so nobody probes; each step of a bit over one interval lets every prober probe once.
    before = Counter({up.url: up.hits["/health"] for up in (one, two, three)})
    for step in range(1, 11):
        clock.advance(INTERVAL_S * 1.11)
        await until(partial(have_probed, (one, two, three), before, step))
    await until(lambda: not any(up.open_probes for up in (one, two, three)))
    assert [up.hits["/health"] - before[up.url] for up in (one, two, three)] == [10, 10, 10]


async def test_fc31_removed_endpoints_are_left_alone(make_upstream: MakeUpstream, observe: Observe) -> None:
    """FC-31: one prober per endpoint, whatever was reloaded."""
    one, two = await make_upstream(), await make_upstream()
    u1, u2 = endpoint("eu/1", one.url), endpoint("eu/2", two.url)
    fleet = fleet_of(u1, u2)
    observer = observe(fleet, settings(u1, u2))
    assert await observer.first_round(10)
    fleet.configure([u2], HealthMarks())
    observer.apply(settings(u2))
    hits, others = sum(one.hits.values()), two.hits["/health"]
    await until(lambda: two.hits["/health"] > others + 5)
    assert sum(one.hits.values()) <= hits + 3, "at most what was on its way"
    assert observer.watched == {"eu/2"}
    two.handlers["/health"] = answers(503)
    await until(lambda: view_of(fleet, "eu/2").state is State.EJECTED)


async def test_fc31_a_shorter_interval_takes_effect_at_once(make_upstream: MakeUpstream, observe: Observe) -> None:
    """FC-31: one prober per endpoint, whatever was reloaded."""
    upstream = await make_upstream()
    one = endpoint("eu/1", upstream.url)
    observer = observe(fleet_of(one), settings(one, interval="1h", scrape_interval="1h"))
    assert await observer.first_round(10)
    observer.apply(settings(one))
    await until(lambda: upstream.hits["/health"] >= 4 and upstream.hits["/metrics"] >= 4)


async def test_a_new_key_is_used_at_once(make_upstream: MakeUpstream, observe: Observe) -> None:
    upstream = await make_upstream()
    one = endpoint("eu/1", upstream.url)
    observed = settings(one, models_interval="1h")
    observer = observe(fleet_of(one), observed)
    assert await observer.first_round(10)
    renewed = settings(one, models_interval="1h")
    renewed.api_keys = {"eu/1": "sk-new"}
    observer.apply(renewed)
    await until(lambda: upstream.keys["/v1/models"] == "Bearer sk-new")


async def test_apply_before_start_and_stop_twice(make_upstream: MakeUpstream, counters: Counters) -> None:
    upstream = await make_upstream()
    one, two = endpoint("eu/1", upstream.url), endpoint("eu/2", upstream.url)
    fleet = fleet_of(one, two)
    observer = Observer(fleet, settings(one), counters)
    await observer.stop()
    observer.apply(settings(one, two))
    observer.start()
    assert observer.watched == {"eu/1", "eu/2"}
    with pytest.raises(RuntimeError, match="already"):
        observer.start()
    await observer.stop()
    await observer.stop()
    observer.start()
    assert await observer.first_round(10)
    await observer.stop()


class TickedFleet(FleetView):
    """Notes its ticks."""

    def __init__(self) -> None:
        super().__init__(HealthMarks())
        self.ticks: list[float] = []

    def tick(self, now_s: float) -> None:
        self.ticks.append(now_s)


@pytest.mark.skipif(is_native(), reason="a compiled class is not inherited from by one that is not")
async def test_the_fleet_ticks(observe: Observe) -> None:
    fleet, clock = TickedFleet(), ManualClock(5.0)
    observe(fleet, settings(), clock)
    await until(lambda: fleet.ticks == [5.0])


class Counting:
    """Begins by counting, and is due again in an hour."""

    def __init__(self, clock: ManualClock) -> None:
        self.begun = 0
        self.rhythm = Rhythm(clock, self.begin)

    def begin(self) -> None:
        self.begun += 1
        self.rhythm.due_in(3600)


async def turns() -> None:
    """Let the loop do what is due now."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_rhythm_begins_one_at_a_time_and_can_be_called_forward() -> None:
    clock = ManualClock()
    counting = Counting(clock)
    rhythm = counting.rhythm
    await turns()
    assert counting.begun == 0, "not started"
    rhythm.start()
    await turns()
    assert counting.begun == 1
    rhythm.done()
    rhythm.no_later_than(7200)
    await turns()
    assert counting.begun == 1
    rhythm.no_later_than(0)
    await turns()
    assert counting.begun == 2
    rhythm.no_later_than(0)
    await turns()
    assert counting.begun == 2, "one is out"
    rhythm.done()
    await turns()
    assert counting.begun == 3
    rhythm.done()
    rhythm.stop()
    rhythm.no_later_than(0)
    clock.advance(1e6)
    await turns()
    assert counting.begun == 3


async def test_long_waits_end_on_beats_and_short_ones_are_kept() -> None:
    rhythms = [Rhythm(ManualClock(now_s), lambda: None) for now_s in (100.03, 99.98, 100.07)]
    for rhythm in rhythms:
        rhythm.due_in(2.0)
    assert [round(rhythm._due_s, 6) for rhythm in rhythms] == [102.0, 102.0, 102.1]
    rhythms[0].due_in(0.12)
    assert round(rhythms[0]._due_s, 6) == 100.15


def test_conditions_tell_changes_only() -> None:
    conditions = Conditions()
    assert not conditions.is_over("probe")
    assert conditions.is_new("probe", "timeout", "no answer within 1 s")
    assert not conditions.is_new("probe", "timeout", "no answer within 2 s")
    assert conditions.texts == {"probe": "no answer within 2 s"}
    assert conditions.is_new("probe", "status_503", "status 503")
    assert conditions.is_over("probe")
    assert not conditions.texts
