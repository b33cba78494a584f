"""Faults: what of a site each kind turns, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gslb.sim.agenda import Agenda
from gslb.sim.setting import Fault
from gslb.sim.site import Site

Turn = Callable[[Site, Fault, float], None]


def _go(site: Site, _fault: Fault, now_s: float) -> None:
    site.go(now_s)


def _come_back(site: Site, _fault: Fault, _now_s: float) -> None:
    site.come_back()


def _slow(site: Site, fault: Fault, now_s: float) -> None:
    site.slow_down(fault.factor, now_s)


def _quick(site: Site, _fault: Fault, now_s: float) -> None:
    site.slow_down(1.0, now_s)


def _hang(site: Site, _fault: Fault, now_s: float) -> None:
    site.hang(now_s)


def _recover(site: Site, _fault: Fault, now_s: float) -> None:
    site.recover(now_s)


def _hide(site: Site, _fault: Fault, _now_s: float) -> None:
    site.hides_metrics = True


def _show(site: Site, _fault: Fault, _now_s: float) -> None:
    site.hides_metrics = False


def _look_ill(site: Site, _fault: Fault, _now_s: float) -> None:
    site.looks_ill = True


def _look_well(site: Site, _fault: Fault, _now_s: float) -> None:
    site.looks_ill = False


def _drain(site: Site, _fault: Fault, _now_s: float) -> None:
    site.is_draining = True


KINDS: dict[str, tuple[Turn, Turn]] = {
    "region_loss": (_go, _come_back),
    "brown_out": (_slow, _quick),
    "slow_node": (_slow, _quick),
    "hung_engine": (_hang, _recover),
    "scrape_loss": (_hide, _show),
    "wrong_health": (_look_ill, _look_well),
    "spot_reclaim": (_go, _come_back),
}
"""Kind -> what happens to each site at `at_s` and at `until_s`."""


class UnknownTarget(ValueError):
    """A fault names what is not there."""


def schedule(faults: Iterable[Fault], sites: Iterable[Site], agenda: Agenda) -> None:
    """Put all faults in the agenda. Raises UnknownTarget, ValueError for an unknown kind."""
    listed = list(sites)
    for fault in faults:
        if fault.kind not in KINDS:
            raise ValueError(f"unknown kind of fault {fault.kind!r}; known: {', '.join(KINDS)}")
        hit = [s for s in listed if fault.target in (s.region, s.key, s.endpoint.node)]
        if not hit:
            raise UnknownTarget(f"{fault.kind}: {fault.target!r} is no region, node or endpoint of this setting")
        begin, end = KINDS[fault.kind]
        for site in hit:
            if fault.notice_s:
                agenda.at(max(0.0, fault.at_s - fault.notice_s), _turn, (_drain, site, fault))
            agenda.at(fault.at_s, _turn, (begin, site, fault))
            agenda.at(fault.until_s, _turn, (end, site, fault))


def _turn(now_s: float, what: tuple[Turn, Site, Fault]) -> None:
    turn, site, fault = what
    turn(site, fault, now_s)
