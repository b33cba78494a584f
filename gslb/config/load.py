"""From a file to checked settings, or to everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from gslb.config.countries import country_groups
from gslb.config.fields import endpoint_address
from gslb.config.files import mark_file
from gslb.config.meaning import Findings, alias_chain, check_meaning
from gslb.config.problems import ConfigErrors, Problem
from gslb.config.report import Report
from gslb.config.schema import Config
from gslb.config.schema_fleet import EndpointConfig, RegionConfig
from gslb.config.settings import Settings
from gslb.config.units import parse_time_s
from gslb.config.wording import shape_problems
from gslb.config.yaml_source import parse_yaml
from gslb.geo.client_address import TrustedProxies
from gslb.geo.locate import Locator
from gslb.policy.rate import Rate
from gslb.policy.residency import ResidencyFence, ResidencyFenceRule
from gslb.policy.tenants import TenantDirectory, TenantRights
from gslb.routing.profiles import PROFILES
from gslb.tls.contexts import ClientTls
from gslb.types import Endpoint, Purchase, Region

_PRIORITIES = {"high": 1, "normal": 0, "low": -1}
_MOST_BYTES = 16 * 1024 * 1024


def load_config(path: str | Path, environ: Mapping[str, str]) -> Settings:
    """Read and check the configuration file at `path`; `environ` holds the keys it names.

    Relative paths in it start at its own directory. Raises ConfigErrors, and nothing else, with every problem
    found: of the YAML, of the shape and of the meaning, also of the files and variables it names.
    """
    marks = {Path(path).absolute(): mark_file(Path(path))}
    try:
        settings = check_text(read_text(path), str(path), environ, Path(path).parent)
    except ConfigErrors as errors:
        errors.files |= marks
        raise
    return replace(settings, files=marks | dict(settings.files))


def read_text(path: str | Path) -> str:
    """The text of a file that is to be checked. Raises ConfigErrors when it cannot be read, or is no UTF-8."""
    try:
        with open(path, "rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _unreadable(path, 1, 1, f"the file cannot be read: {reason}") from None
    if len(content) > _MOST_BYTES:
        raise _unreadable(path, 1, 1, f"the file is larger than {_MOST_BYTES} bytes")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line, col = before.count(b"\n") + 1, error.start - (before.rfind(b"\n") + 1) + 1
        raise _unreadable(
            path, line, col, f"byte 0x{content[error.start]:02x} is not UTF-8: save it as UTF-8"
        ) from None


def _unreadable(path: str | Path, line: int, col: int, message: str) -> ConfigErrors:
    return ConfigErrors([Problem(str(path), line, col, "", message)])


def check_text(text: str, filename: str, environ: Mapping[str, str], base_dir: Path) -> Settings:
    """As `load_config`, for a text that was read from elsewhere; `filename` is what problems name."""
    source = parse_yaml(text, filename)
    report = Report(source)
    if source.root is None:
        raise ConfigErrors(report.problems)
    config = None
    try:
        config = Config.model_validate(source.plain(), context={"from_file": True})
    except ValidationError as error:
        for path, message, is_key in shape_problems(error, source):
            report.add(path, message, is_key=is_key)
    report.end_layer()
    findings = check_meaning(report, environ, base_dir)
    if config is None or report.problems:
        raise ConfigErrors(report.problems, findings.files)
    return replace(_ready(config, findings, filename), source_text=text)


def _ready(config: Config, findings: Findings, filename: str) -> Settings:
    regions: list[Region] = []
    endpoints: list[Endpoint] = []
    endpoint_configs: dict[str, EndpointConfig] = {}
    endpoint_tls: dict[str, ClientTls] = {}
    api_keys: dict[str, str] = {}
    for name, stated in config.regions.items():
        region = _region(name, stated, findings)
        regions.append(region)
        for index, endpoint_config in enumerate(stated.endpoints):
            endpoint = _endpoint(region, endpoint_config, config)
            endpoints.append(endpoint)
            endpoint_configs[endpoint.key] = endpoint_config
            if (tls := findings.endpoint_tls.get(("regions", name, "endpoints", index))) is not None:
                endpoint_tls[endpoint.key] = tls
            for source in ("api_key_env", "api_key_file"):
                if (key := findings.keys.get(("regions", name, "endpoints", index, source))) is not None:
                    api_keys[endpoint.key] = key
    targets = {alias: model.target for alias, model in config.models.items()}
    return Settings(
        config=config,
        regions=tuple(regions),
        endpoints=tuple(endpoints),
        endpoint_configs=endpoint_configs,
        endpoint_tls=endpoint_tls,
        server_tls=findings.server_tls,
        edge_place=findings.places.get(("edge", "location")),
        locator=_locator(config, findings),
        trusted_proxies=TrustedProxies(config.geo.trusted_proxies),
        residency=_residency(config),
        aliases={alias: alias_chain(alias, targets)[-1] for alias in targets},
        source_path=filename,
        files=findings.files,
        tenants=_tenants(config, findings) if config.tenants else None,
        api_keys=api_keys,
        admin_token=findings.keys.get(("admin", "token_env")),
    )


def _region(name: str, stated: RegionConfig, findings: Findings) -> Region:
    prefix, colon, _ = stated.location.partition(":")
    cloud = prefix.strip().lower() if colon and prefix.strip().lower() != "country" else ""
    return Region(
        name=name,
        place=findings.places["regions", name, "location"],
        jurisdictions=findings.jurisdictions[name] or frozenset(),
        certifications=frozenset(stated.certifications),
        provider=stated.provider if stated.provider is not None else cloud,
        priority=stated.priority,
    )


def _endpoint(region: Region, stated: EndpointConfig, config: Config) -> Endpoint:
    price = stated.price_per_gpu_hour
    profile = None if stated.profile is None else PROFILES[stated.profile]
    return Endpoint(
        key=f"{region.name}/{endpoint_address(stated.url)}",
        url=stated.url,
        region=region,
        models=frozenset(stated.models) if stated.models is not None else None,
        capacity=stated.capacity,
        node=stated.node,
        purchase=Purchase(stated.purchase),
        price_per_hour=price * stated.gpus if price is not None else None,
        prefill_ms_per_token=profile.prefill_ms if profile else config.routing.prefill_per_token * 1000,
        slot_hold_ms=config.routing.slot_hold * 1000,
        step_ms=profile.step_ms if profile else 0.0,
    )


def _locator(config: Config, findings: Findings) -> Locator:
    overrides = {network: findings.places["geo", "overrides", network] for network in config.geo.overrides}
    return Locator(
        overrides=overrides,
        database=findings.database,
        use_embedded=config.geo.embedded,
        default=findings.places.get(("geo", "default")),
    )


def _residency(config: Config) -> ResidencyFence:
    rules = [
        ResidencyFenceRule(tuple(rule.countries), frozenset(rule.jurisdictions)) for rule in config.residency.rules
    ]
    return ResidencyFence(rules, config.residency.unknown, country_groups())


def _tenants(config: Config, findings: Findings) -> TenantDirectory:
    entries: list[tuple[bytes, TenantRights]] = []
    for name, tenant in config.tenants.items():
        source = "key_env" if tenant.key_env is not None else "key_file"
        rights = TenantRights(
            name=name,
            models=frozenset(tenant.models) if tenant.models is not None else None,
            jurisdictions=frozenset(tenant.jurisdictions) if tenant.jurisdictions is not None else None,
            expires_at=parse_time_s(tenant.expires) if tenant.expires is not None else None,
            budget_ms=tenant.latency_budget * 1000 if tenant.latency_budget is not None else None,
            max_concurrency=tenant.max_concurrency,
            rates=tuple(
                Rate.of(counts, amount, tenant.rate.per, tenant.rate.burst if counts == "requests" else None)
                for counts, amount in tenant.rate.amounts.items()
            ),
            priority=_PRIORITIES[tenant.priority],
        )
        entries.append((findings.keys["tenants", name, source].encode("ascii"), rights))
    return TenantDirectory(entries)
