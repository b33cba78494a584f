"""What one edge observes of the fleet: samples of load, probes, round trips; each in its rhythm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from gslb.geo.rtt_prior import MeasuredRtt, rtt_prior_ms
from gslb.routing.view import FleetView
from gslb.sim.agenda import Agenda
from gslb.sim.links import Links
from gslb.sim.setting import EdgeSpec, Setting
from gslb.sim.site import Site
from gslb.types import LoadSample

_SOON: Final = 0.25
"""Share of the interval until the next probe after one whose connection was refused (live: `observe.watch`)."""

Samples = list[tuple[str, LoadSample | None]]


class Watch:
    """One edge's observer. It reads all endpoints of a region at once; a region's reading reaches the edge half a
    round trip after it was taken, plus `setting.signal_age_s`. Without `learning` samples do not tell how long
    steps last, without `ejection` failed probes are nothing to tell."""

    def __init__(
        self,
        setting: Setting,
        edge: EdgeSpec,
        legs_s: Mapping[str, float],
        fleet: FleetView,
        sites: Mapping[str, Site],
        agenda: Agenda,
        links: Links,
        dice: Random,
    ) -> None:
        self._setting = setting
        self._legs_s = legs_s
        self._fleet = fleet
        self._sites = sites
        self._agenda = agenda
        self._links = links
        self._dice = dice
        self._by_region: dict[str, list[Site]] = {}
        for site in sites.values():
            self._by_region.setdefault(site.region, []).append(site)
        self._hurried: set[str] = set()
        """Who is probed once more, soon."""
        self._rtts = {region: MeasuredRtt() for region in self._by_region}
        self._learns = "learning" not in setting.without
        self._judges = "ejection" not in setting.without
        self._prior_ms = {
            region: rtt_prior_ms(edge.place, members[0].endpoint.region.place)
            for region, members in self._by_region.items()
        }

    on_sampled: Callable[[float], None]
    """Called when samples have come in; set by the world."""

    def start(self) -> None:
        """Hear from everybody once, then keep the rhythms, each region's with a phase of its own."""
        setting, dice, at = self._setting, self._dice, self._agenda.at
        for region, sites in self._by_region.items():
            self._probed_all(0.0, (region, self._round_trip_s(region)))
            for site in sites:
                self._fleet.load_sampled(site.key, site.sample(0.0))
            at(setting.scrape_interval_s * dice.random(), self._scrape, region)
            at(setting.probe_interval_s * dice.random(), self._probe_all, region)

    # --- load --------------------------------------------------------------------------------------

    def _scrape(self, now_s: float, region: str) -> None:
        samples: Samples = []
        for site in self._by_region[region]:
            sample = None
            if not (site.is_gone or site.hides_metrics):
                sample = site.sample(now_s)
                own = self._fleet.own_load(site.key)
                assert own is not None
                sample.own_running_then = own.requests
                if not self._learns:
                    sample.itl_sum_s = sample.itl_count = None
            samples.append((site.key, sample))
        late_s = self._round_trip_s(region) / 2 + self._setting.signal_age_s
        self._agenda.at(now_s + late_s, self._sampled, samples)
        self._agenda.at(now_s + self._setting.scrape_interval_s * self._spread(), self._scrape, region)

    def _sampled(self, now_s: float, samples: Samples) -> None:
        fleet = self._fleet
        taken_s = now_s - self._setting.signal_age_s
        told: list[tuple[str, LoadSample]] = []
        for key, sample in samples:
            if sample is None:
                fleet.load_failed(key, "no /metrics")
            else:
                sample.at_s = taken_s
                told.append((key, sample))
        fleet.loads_sampled(told)
        self.on_sampled(now_s)

    # --- health ------------------------------------------------------------------------------------

    def _probe_all(self, now_s: float, region: str) -> None:
        round_trip_s = self._round_trip_s(region)
        self._agenda.at(now_s + round_trip_s, self._probed_all, (region, round_trip_s))
        self._agenda.at(now_s + self._setting.probe_interval_s * self._spread(), self._probe_all, region)

    def _probed_all(self, now_s: float, what: tuple[str, float]) -> None:
        region, round_trip_s = what
        rtt = self._rtts[region]
        rtt.observe(round_trip_s * 1000)
        rtt_ms = rtt.blended_ms(self._prior_ms[region])
        for site in self._by_region[region]:
            if self._probed(now_s, site):
                self._fleet.rtt_measured(site.key, rtt_ms)

    def probe(self, key: str, now_s: float) -> None:
        """Probe one endpoint now, out of turn."""
        site = self._sites[key]
        self._agenda.at(now_s + self._round_trip_s(site.region), self._probed, site)

    def _probed(self, now_s: float, site: Site) -> bool:
        """A probe of `site` is back; True when it was good."""
        if (site.is_gone or site.looks_ill) and not self._judges:
            return False
        if site.is_gone:
            self._fleet.probe_failed(site.key, now_s, "connection refused", is_refused=True)
            if site.key not in self._hurried and not self._fleet.is_ejected(site.key):
                # Nobody is there: no reason to give it time.
                self._hurried.add(site.key)
                self._agenda.at(now_s + self._setting.probe_interval_s * _SOON, self._probed_again, site)
        elif site.looks_ill:
            self._fleet.probe_failed(site.key, now_s, "status 503 on /health")
        else:
            self._fleet.probe_passed(site.key, now_s)
            return True
        return False

    def _probed_again(self, now_s: float, site: Site) -> None:
        self._hurried.discard(site.key)
        self._probed(now_s, site)

    def _round_trip_s(self, region: str) -> float:
        return 2 * self._legs_s[region] * self._links.jitter()

    def _spread(self) -> float:
        """As the live observer's: no two edges march in step for long."""
        return self._dice.uniform(0.9, 1.1)
