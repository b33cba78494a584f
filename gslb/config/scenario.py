"""From a scenario file to a checked scenario, or to everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gslb.config.load import load_config, read_text
from gslb.config.problems import ConfigErrors, KeyPath
from gslb.config.report import Report
from gslb.config.scenario_schema import KIND_OF_KEY, MOST_ENDPOINTS, Engine, FleetRegion, Scenario
from gslb.config.schema_fleet import EndpointConfig, Health, Routing
from gslb.config.settings import Settings
from gslb.config.wording import shape_problems, suggestion
from gslb.config.yaml_source import Source, parse_yaml
from gslb.geo.place import UnknownLocation, jurisdictions_of, parse_location
from gslb.geo.rtt_table import RttTable, read_rtt_table, region_in_table
from gslb.routing.profiles import PROFILES
from gslb.types import Endpoint, Place, Purchase, Region

MODEL = "model"
"""The one model of a simulated fleet."""


@dataclass(frozen=True)
class CheckedScenario:
    """A scenario made ready. `engines` says by endpoint key what stands behind it; `edges` where each edge stands;
    `table` what was measured between the places of `table_names` (empty: nothing)."""

    scenario: Scenario
    regions: tuple[Region, ...]
    endpoints: tuple[Endpoint, ...]
    engines: Mapping[str, Engine]
    edges: Mapping[str, Place]
    routing: Routing
    health: Health
    base_dir: Path
    source_path: str
    table: RttTable = field(default_factory=dict, repr=False)
    table_names: Mapping[Place, str] = field(default_factory=dict)


def is_scenario(text: str) -> bool:
    """Whether a YAML text is a scenario rather than a configuration: its top has `scenario` or `fleet`."""
    root = parse_yaml(text, "").root
    keys = root.value.keys() if root is not None and isinstance(root.value, dict) else ()
    return "scenario" in keys or "fleet" in keys


def load_scenario(path: str | Path, environ: Mapping[str, str]) -> CheckedScenario:
    """Read and check the scenario file at `path`. `environ` is for the configuration its fleet may come from.

    Relative paths in it start at its own directory. Raises ConfigErrors, and nothing else, with every problem.
    """
    return check_scenario(read_text(path), str(path), environ, Path(path).parent)


def check_scenario(text: str, filename: str, environ: Mapping[str, str], base_dir: Path) -> CheckedScenario:
    """As `load_scenario`, for a text that was read from elsewhere; `filename` is what problems name."""
    source = parse_yaml(text, filename)
    report = Report(source)
    scenario = None
    try:
        scenario = Scenario.model_validate(source.plain(), context={"from_file": True})
    except ValidationError as error:
        for path, message, is_key in shape_problems(error, source, Scenario):
            report.add(path, message, is_key=is_key)
    report.end_layer()
    found = _Meaning(report, base_dir, environ)
    found.check()
    if scenario is not None:
        found.check_times(scenario)
    if scenario is None or report.problems:
        raise ConfigErrors(report.problems)
    return found.ready(scenario, filename)


class _Meaning:
    """What the texts of a scenario mean; on the raw tree, so that a mistake in one place hides none elsewhere."""

    def __init__(self, report: Report, base_dir: Path, environ: Mapping[str, str]) -> None:
        self._report = report
        self._source: Source = report.source
        self._base_dir = base_dir
        self._environ = environ
        self._places: dict[KeyPath, Place] = {}
        self._config: Settings | None = None
        self._table: RttTable = {}
        self._table_names: dict[Place, str] = {}

    def check(self) -> None:
        """Report all that the shape allows and that yet cannot work."""
        for pattern in (("fleet", "regions", "*", "location"), ("edges", "*")):
            for path, text in self._source.texts(*pattern):
                try:
                    self._places[path] = parse_location(text)
                except UnknownLocation as error:
                    self._report.add(path, str(error))
        for path, text in self._source.texts("fleet", "config"):
            self._read_config(path, text)
        for pattern in (("load", "file"), ("load", "lengths_of")):
            for path, text in self._source.texts(*pattern):
                if not (self._base_dir / text).is_file():
                    self._report.add(path, f"{text}: there is no such file")
        for path, text in self._source.texts("rtt_table"):
            self._read_table(path, text)
        self._check_names()
        self._check_kind()

    def _read_config(self, path: KeyPath, name: str) -> None:
        try:
            self._config = load_config(self._base_dir / name, self._environ)
        except ConfigErrors as errors:
            first, *others = errors.problems
            more = f" (and {len(others)} more: gslb check tells)" if others else ""
            self._report.add(path, f"the configuration cannot be used: {first}{more}")

    def _read_table(self, path: KeyPath, name: str) -> None:
        try:
            with open(self._base_dir / name, encoding="utf-8", newline="") as lines:
                self._table = read_rtt_table(lines, name)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            self._report.add(path, reason if name in reason else f"{name}: {reason}")
            return
        known = {region for pair in self._table for region in pair}
        for pattern in (("fleet", "regions", "*", "location"), ("edges", "*")):
            for where, text in self._source.texts(*pattern):
                region = region_in_table(text)
                place = self._places.get(where)
                if region in known and place is not None:
                    self._table_names[place] = region
                elif place is not None:
                    self._report.add(where, f"{name} has no region {region[:80]!r}{suggestion(region, known)}")

    # --- names --------------------------------------------------------------------------------------------

    def _check_names(self) -> None:
        for pattern in (("fleet",), ("fleet", "regions", "*"), ("fleet", "regions", "*", "endpoints", "*")):
            self._expect(self._source.texts(*pattern, "profile"), PROFILES, "profile")
        regions = self._regions()
        if not regions:
            return
        edges = [str(path[1]) for path, _ in self._source.find("edges", "*")] or regions
        self._expect(self._source.texts("routing", "order", "*"), regions, "region")
        self._expect(self._source.texts("load", "surges", "*", "edge"), edges, "edge")
        stated = ((path, str(path[-1])) for path, _ in self._source.find("load", "clients", "*"))
        self._expect(stated, edges, "edge", is_key=True)
        targets = [*regions, *self._nodes(), *self._endpoint_keys()]
        texts = [*self._source.texts("faults", "*", "target"), *self._source.texts("faults", "*", "target", "*")]
        self._expect(texts, targets, "region, node or endpoint")

    def _expect(
        self, texts: Iterable[tuple[KeyPath, str]], known: Iterable[str], what: str, *, is_key: bool = False
    ) -> None:
        names = list(known)
        for path, text in texts:
            if text not in names:
                self._report.add(path, f"there is no {what} {text[:80]!r}{suggestion(text, names)}", is_key=is_key)

    def _regions(self) -> list[str]:
        if self._config is not None:
            return [region.name for region in self._config.regions]
        return [str(path[2]) for path, _ in self._source.find("fleet", "regions", "*")]

    def _nodes(self) -> Iterator[str]:
        if self._config is not None:
            yield from (endpoint.node for endpoint in self._config.endpoints if endpoint.node is not None)
        for _, text in self._source.texts("fleet", "regions", "*", "endpoints", "*", "node"):
            yield text

    def _endpoint_keys(self) -> Iterator[str]:
        if self._config is not None:
            yield from (endpoint.key for endpoint in self._config.endpoints)
        for path, node in self._source.find("fleet", "regions", "*", "endpoints"):
            groups = [count.value for _, count in self._source.find(*path, "*", "count")]
            counts = groups if isinstance(node.value, list) else [node.value]
            total = sum(count for count in counts if isinstance(count, int) and not isinstance(count, bool))
            yield from (f"{path[2]}/{number}" for number in range(min(total, MOST_ENDPOINTS)))

    def check_times(self, scenario: Scenario) -> None:
        """Report what would not happen within the run."""
        end_s = scenario.duration
        if scenario.warm_up >= end_s:
            self._report.add(("warm_up",), f"warm_up must be shorter than duration ({end_s:g}s)")
        for index, fault in enumerate(scenario.faults):
            if fault.at >= end_s:
                self._report.add(("faults", index, "at"), f"the run ends before that, at {end_s:g}s")
        for index, surge in enumerate(scenario.load.surges):
            if surge.at >= end_s:
                self._report.add(("load", "surges", index, "at"), f"the run ends before that, at {end_s:g}s")
            if surge.until <= surge.at:
                self._report.add(("load", "surges", index, "until"), f"until must be after at ({surge.at:g}s)")

    def _check_kind(self) -> None:
        kind = next((text for _, text in self._source.texts("load", "kind")), None)
        for path, _ in self._source.find("load", "*"):
            fits = KIND_OF_KEY.get(str(path[1]))
            if kind is not None and fits is not None and kind not in fits:
                kinds = " and ".join(fits)
                self._report.add(path, f"this key is for kind: {kinds}; this load is {kind}", is_key=True)

    # --- what it comes to ---------------------------------------------------------------------------------

    def ready(self, scenario: Scenario, filename: str) -> CheckedScenario:
        """The scenario made ready; nothing wrong was found."""
        config = self._config
        if config is not None:
            regions = config.regions
            endpoints = tuple(replace(endpoint, models=frozenset({MODEL})) for endpoint in config.endpoints)
            engines = {key: _engine_of(stated, scenario.fleet) for key, stated in config.endpoint_configs.items()}
            defaults = config.config.routing, config.config.health
        else:
            defaults = Routing(), Health()
            regions, endpoints, engines = self._stated_fleet(scenario, scenario.routing or defaults[0])
        if scenario.edges is None:
            edges = {region.name: region.place for region in regions}
        else:
            edges = {name: self._places["edges", name] for name in scenario.edges}
        return CheckedScenario(
            scenario=scenario,
            regions=regions,
            endpoints=endpoints,
            engines=engines,
            edges=edges,
            routing=scenario.routing or defaults[0],
            health=scenario.health or defaults[1],
            base_dir=self._base_dir,
            source_path=filename,
            table=self._table,
            table_names=self._table_names,
        )

    def _stated_fleet(
        self, scenario: Scenario, routing: Routing
    ) -> tuple[tuple[Region, ...], tuple[Endpoint, ...], dict[str, Engine]]:
        regions: list[Region] = []
        endpoints: list[Endpoint] = []
        engines: dict[str, Engine] = {}
        for name, stated in (scenario.fleet.regions or {}).items():
            region = self._region(name, stated)
            regions.append(region)
            groups = [group for group in stated.endpoints for _ in range(group.count)]
            for number, group in enumerate(groups):
                engine = _engine(scenario.fleet, stated, group)
                endpoint = _endpoint(f"{name}/{number}", region, group.node, engine, routing)
                endpoints.append(endpoint)
                engines[endpoint.key] = engine
        return tuple(regions), tuple(endpoints), engines

    def _region(self, name: str, stated: FleetRegion) -> Region:
        place = self._places["fleet", "regions", name, "location"]
        held = jurisdictions_of(place.country) if place.country is not None else frozenset[str]()
        return Region(name, place, jurisdictions=held, priority=stated.priority)


def _engine_of(stated: EndpointConfig, fleet: Engine) -> Engine:
    """What stands behind an endpoint of a configuration: the fleet's engine, with the endpoint's own profile."""
    engine = _engine(fleet)
    return engine if stated.profile is None else engine.model_copy(update={"profile": stated.profile})


def _engine(*stated: Engine) -> Engine:
    """What the last of `stated` says that says anything, member by member."""
    members: dict[str, Any] = {}
    for part in stated:
        members |= {name: getattr(part, name) for name in Engine.model_fields.keys() & part.model_fields_set}
    return Engine(**members)


def _endpoint(key: str, region: Region, node: str | None, engine: Engine, routing: Routing) -> Endpoint:
    """The endpoint as its operator would describe it: GPU class, slots, and how long answers hold them."""
    profile = PROFILES[engine.profile]
    price = engine.price_per_gpu_hour
    return Endpoint(
        key=key,
        url=f"http://{key.replace('/', '-')}.invalid",
        region=region,
        models=frozenset({MODEL}),
        capacity=engine.slots if engine.capacity_known else None,
        node=node,
        purchase=Purchase(engine.purchase),
        price_per_hour=price * engine.gpus if price is not None else None,
        prefill_ms_per_token=profile.prefill_ms,
        slot_hold_ms=routing.slot_hold * 1000,
        step_ms=profile.step_ms,
    )
