"""The oracle's forecast against what then happens, and what it does with it."""

from __future__ import annotations

from random import Random

import pytest

from gslb.routing.profiles import PROFILES
from gslb.sim.forecast import Forecast
from gslb.sim.setting import EngineSpec
from tests.sim.test_engine import Drive, Named
from tests.sim.test_world import play, small

H100 = PROFILES["h100-70b-tp8"]


def loaded(engine_spec: EngineSpec, per_s: float, until_s: float, seed: int) -> tuple[Drive, float]:
    """An engine that has served chat for a while, and the next moment somebody might ask."""
    dice = Random(seed)
    drive = Drive(engine_spec)
    at_s, name = 0.0, 0
    while (at_s := at_s + dice.expovariate(per_s)) < until_s:
        name += 1
        drive.submit(name, at_s, int(dice.lognormvariate(6.5, 0.8)) + 1, int(dice.lognormvariate(4.5, 0.8)) + 1)
    drive.until(until_s)
    return drive, until_s


def error_s(engine_spec: EngineSpec, per_s: float, seed: int, leg_s: float = 0.02) -> tuple[float, float]:
    """(forecast minus truth, truth) of one request that comes to a loaded engine, counted from its sending."""
    drive, now_s = loaded(engine_spec, per_s, 30.0, seed)
    request = Named(-1, 900, 50)
    foreseen_s = Forecast(drive.engine).first_token_s(request, now_s + leg_s)
    drive.submit(-1, now_s + leg_s, 900, 50)
    drive.until(1e6)
    true_s = drive.record.first[-1]
    return foreseen_s - true_s, true_s - now_s


@pytest.mark.parametrize(
    ("slots", "per_s", "kv_tokens", "typical", "worst"),
    [
        (64, 4.0, 400_000, 0.001, 0.40),  # slots free
        (16, 8.0, 400_000, 0.005, 0.02),  # a queue of 40 s
        (64, 8.0, 30_000, 0.15, 0.50),  # memory full
    ],
)
def test_the_first_token_comes_as_foreseen(
    slots: int, per_s: float, kv_tokens: int, typical: float, worst: float
) -> None:
    engine_spec = EngineSpec("e", H100, slots=slots, kv_tokens=kv_tokens)
    errors = sorted(
        abs(off_s) / took_s for off_s, took_s in (error_s(engine_spec, per_s, seed) for seed in range(40))
    )
    assert errors[20] <= typical
    assert errors[-1] <= worst


def test_a_forecast_is_kept_only_while_the_engine_stands_as_it_is() -> None:
    drive = Drive(EngineSpec("e", H100, slots=1))
    forecast = Forecast(drive.engine)
    request = Named(-1, 100, 10)
    idle_s = forecast.first_token_s(request, 0.0)
    drive.submit(1, 0.0, 100, 1000)
    assert forecast.first_token_s(request, 0.0) > idle_s + 20.0


def test_who_is_on_the_way_goes_first() -> None:
    engine_spec = EngineSpec("e", H100, slots=1)
    forecast = Forecast(Drive(engine_spec).engine)
    request, other = Named(-1, 100, 10), Named(-2, 100, 500)
    assert forecast.first_token_s(request, 0.0, [other]) > forecast.first_token_s(request, 0.0) + 10.0


def test_a_hung_engine_has_no_first_token() -> None:
    drive = Drive(EngineSpec("e", H100))
    drive.engine.hang(0.0)
    assert Forecast(drive.engine).first_token_s(Named(-1, 100, 10), 1.0) == float("inf")


def test_it_refuses_at_once_what_would_be_late_and_serves_the_rest_in_time() -> None:
    result = play(small(rate_per_s=60.0, duration_s=40.0), "oracle")
    assert result.total.shed > 100
    assert set(result.reasons) <= {"home", "faster", "latency_budget_unreachable"}
    assert result.total.good > 0.8 * result.total.completed


def test_it_is_the_bound_where_nobody_waits() -> None:
    setting = small(rate_per_s=15.0, duration_s=60.0)
    oracle, others = play(setting, "oracle"), [play(setting, name) for name in ("ttft", "nearest", "round_robin")]
    medians = [one.total.ttft.quantile(0.5) for one in others]
    assert oracle.total.ttft.quantile(0.5) <= min(median for median in medians if median is not None)
