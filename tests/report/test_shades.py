"""Faults on a timeline: where they stand, and that their names do not overlap."""

from __future__ import annotations

from math import inf

from gslb.report.scale import Scale
from gslb.report.shades import lanes, names, shades
from gslb.sim.setting import Fault
from tests.report.built import setting

X = Scale(0.0, 300.0, 50.0, 500.0)


def test_a_target_is_found_in_its_region_and_times_stay_in_the_run() -> None:
    world = setting(
        faults=[
            Fault("spot_reclaim", "us-west/0", 10, inf, notice_s=30),
            Fault("brown_out", "eu-central", 5, 20, factor=3),
            Fault("scrape_loss", "nobody", 400, 500),
        ]
    )
    brown, spot = shades(world, 300.0)
    assert (brown.name, brown.regions) == ("brown out ×3: eu-central", ("eu-central",))
    assert (brown.noticed_s, brown.start_s, brown.end_s) == (5, 5, 20)
    assert spot.regions == ("us-west",)
    assert (spot.noticed_s, spot.start_s, spot.end_s) == (0.0, 10, 300.0)
    assert shades(None, 300.0) == []


def test_names_that_would_overlap_stand_above_each_other() -> None:
    faults = [Fault("region_loss", f"region-{index}", 10 * index, 10 * index + 5) for index in range(4)]
    close = shades(setting(faults=faults), 300.0)
    assert lanes(close, X) == [0, 1, 2, 3]
    apart = shades(setting(faults=[Fault("hung_engine", "a", 0, 10), Fault("hung_engine", "b", 200, 210)]), 300.0)
    assert lanes(apart, X) == [0, 0]
    assert "region loss: region-3" in names(close, X, 100.0)


def test_targets_that_break_together_share_a_band() -> None:
    targets = ["us-west/0", "us-east/0", "eu-central/0"]
    (one,) = shades(setting(faults=[Fault("spot_reclaim", target, 10, 20) for target in targets]), 300.0)
    assert one.name == "spot reclaim: 3 in us-west, us-east and eu-central"
    assert one.regions == ("us-west", "us-east", "eu-central")
    (two,) = shades(setting(faults=[Fault("slow_node", target, 10, 20) for target in targets[:2]]), 300.0)
    assert two.name == "slow node: us-west/0 and us-east/0"
