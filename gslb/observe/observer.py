"""The observer: exactly one watch per endpoint of the current configuration, whatever was reloaded before."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from random import Random
from typing import Protocol

from gslb.clock import Clock
from gslb.config.schema import Config
from gslb.config.schema_fleet import EndpointConfig
from gslb.counters import Counters
from gslb.observe.fetch import Fetcher, Target
from gslb.observe.rhythm import Rhythm
from gslb.observe.watch import Assignment, EndpointWatch, Instruments
from gslb.routing.view import FleetView
from gslb.tls.contexts import ClientTls
from gslb.types import Endpoint, Place

log = logging.getLogger("gslb.observe")

_TICK_S = 1.0


class ObserverSettings(Protocol):
    """What the observer needs of one generation of the configuration. The mappings are by `Endpoint.key`; an
    endpoint that is not https is absent from `endpoint_tls`, one without a key of its own from `api_keys`."""

    @property
    def config(self) -> Config: ...
    @property
    def endpoints(self) -> tuple[Endpoint, ...]: ...
    @property
    def endpoint_configs(self) -> Mapping[str, EndpointConfig]: ...
    @property
    def endpoint_tls(self) -> Mapping[str, ClientTls]: ...
    @property
    def api_keys(self) -> Mapping[str, str]: ...
    @property
    def edge_place(self) -> Place | None: ...


class Observer:
    """Keeps a FleetView informed about every endpoint by probes, scrapes and model reads.

    The FleetView must have been configured with the same endpoints. `clock` is the scale of all times reported
    (the running loop's when None); `rng` spreads the rhythms.
    """

    def __init__(
        self,
        fleet: FleetView,
        settings: ObserverSettings,
        counters: Counters,
        clock: Clock | None = None,
        rng: Random | None = None,
    ) -> None:
        self._fleet = fleet
        self._settings = settings
        self._counters = counters
        self._clock = clock
        self._dice = rng or Random()
        self._instruments: Instruments | None = None
        self._watches: dict[str, EndpointWatch] = {}
        self._ticks: Rhythm | None = None

    def start(self) -> None:
        """Begin to watch, inside a running loop: the first round of every endpoint goes out at once.

        Raises RuntimeError when it is running already.
        """
        if self._instruments is not None:
            raise RuntimeError("the observer is running already")
        clock = self._clock or asyncio.get_running_loop().time
        self._instruments = Instruments(self._fleet, self._counters, clock, self._dice, Fetcher())
        ticks = self._ticks = Rhythm(clock, lambda: self._tick(ticks, clock()))
        ticks.start()
        self.apply(self._settings)

    def apply(self, settings: ObserverSettings) -> None:
        """A new generation of the configuration: endpoints that stay keep their watch, the others come and go."""
        self._settings = settings
        if self._instruments is None:
            return
        self._instruments.fetcher.start_over()
        wanted = {endpoint.key: self._assign(endpoint) for endpoint in settings.endpoints}
        for key in self._watches.keys() - wanted.keys():
            self._drop(key)
        for key, assignment in wanted.items():
            if key in self._watches:
                self._watches[key].reassign(assignment)
            else:
                watch = self._watches[key] = EndpointWatch(assignment, self._instruments)
                watch.start()

    async def first_round(self, timeout_s: float) -> bool:
        """Wait until every endpoint had its first probe and its first answer or failure of `/v1/models`.

        False when `timeout_s` was not enough.
        """
        try:
            async with asyncio.timeout(timeout_s):
                for watch in list(self._watches.values()):
                    await watch.first_heard.wait()
        except TimeoutError:
            return False
        return True

    def probe_now(self, key: str) -> None:
        """Probe `key`, and its neighbours on a node, once more, at once (or right after a probe that is out).
        Unknown keys are ignored."""
        for one in (key, *self._fleet.neighbours(key)):
            if watch := self._watches.get(one):
                watch.probe_now()

    async def stop(self) -> None:
        """End all watches and close their connections. Harmless when not running."""
        for key in list(self._watches):
            self._drop(key)
        if self._ticks is not None:
            self._ticks.stop()
            self._ticks = None
        if self._instruments is not None:
            fetcher, self._instruments = self._instruments.fetcher, None
            fetcher.close()
            await asyncio.sleep(0)  # aborted connections are gone in the loop's next turn

    # --- what metrics and the status page read -----------------------------------------------------

    def rtt_ms(self, key: str) -> float | None:
        """The measured round trip to `key` in ms, averaged; None before the first measurement."""
        watch = self._watches.get(key)
        return watch.rtt.ewma_ms if watch else None

    def problems(self, key: str) -> Mapping[str, str]:
        """What is wrong with `key` now: `probe`, `scrape`, `models` or `rtt` -> one sentence."""
        watch = self._watches.get(key)
        return dict(watch.problems) if watch else {}

    @property
    def rtt_notes(self) -> dict[str, str]:
        """Endpoint key -> why its round trips are not believed."""
        return {key: watch.problems["rtt"] for key, watch in self._watches.items() if "rtt" in watch.problems}

    @property
    def watched(self) -> frozenset[str]:
        """Keys of the endpoints under watch."""
        return frozenset(self._watches)

    # --- inside -------------------------------------------------------------------------------------

    def _assign(self, endpoint: Endpoint) -> Assignment:
        settings = self._settings
        config = settings.endpoint_configs.get(endpoint.key)
        target = Target(
            url=endpoint.url,
            api_key=settings.api_keys.get(endpoint.key),
            server_name=config.tls_server_name if config else None,
            tls=settings.endpoint_tls.get(endpoint.key),
        )
        return Assignment(endpoint, target, settings.config.health, settings.edge_place)

    def _drop(self, key: str) -> None:
        self._watches.pop(key).stop()

    def _tick(self, ticks: Rhythm, now_s: float) -> None:
        ticks.due_in(_TICK_S)
        try:
            self._fleet.tick(now_s)
        except Exception:
            log.exception("a tick of the fleet's health machines was lost by an unexpected error")
        ticks.done()
