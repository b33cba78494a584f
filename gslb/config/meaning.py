"""What a configuration's texts mean: locations, countries, names that must fit together, files, keys.

Works on the raw tree rather than on the validated model, so that a mistake in one place hides none elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gslb.config.countries import country_problem
from gslb.config.fields import endpoint_address, split_host_port
from gslb.config.files import FileMark, mark_file
from gslb.config.keyfiles import key_from_file, key_from_variable
from gslb.config.problems import KeyPath, path_text
from gslb.config.report import Report
from gslb.config.schema import Config
from gslb.config.tls_files import TlsFiles
from gslb.config.wording import suggestion
from gslb.geo.locate import MmdbReader, open_database
from gslb.geo.place import UnknownLocation, jurisdictions_of, parse_location
from gslb.routing.profiles import PROFILES
from gslb.tls.contexts import ClientTls, ServerTls
from gslb.types import Place

_EVERY_ADDRESS = frozenset(("0.0.0.0", "::", "*"))


@dataclass(slots=True)
class Findings:
    """What was learnt while checking, by the path it was read from, so that nothing is read twice.

    `jurisdictions` maps a region's name to what holds there, None where a mistake keeps it unknown.
    `endpoint_tls` is by the path of the endpoint. `files` has what each file named was when it was read.
    """

    places: dict[KeyPath, Place] = field(default_factory=dict)
    keys: dict[KeyPath, str] = field(default_factory=dict, repr=False)
    jurisdictions: dict[str, frozenset[str] | None] = field(default_factory=dict)
    database: MmdbReader | None = None
    endpoint_tls: dict[KeyPath, ClientTls] = field(default_factory=dict)
    server_tls: ServerTls | None = None
    files: dict[Path, FileMark] = field(default_factory=dict)


def check_meaning(report: Report, environ: Mapping[str, str], base_dir: Path) -> Findings:
    """Report what the shape allows and what yet cannot work. Relative paths start at `base_dir`."""
    findings = Findings()
    _locations(report, findings)
    _keys(report, findings, environ, base_dir)
    _tenant_keys(report, findings)
    _files(report, findings, base_dir)
    _region_jurisdictions(report, findings)
    _residency(report, findings)
    _endpoint_urls(report)
    _aliases(report)
    _order(report)
    _profiles(report)
    _listeners(report)
    return findings


def _locations(report: Report, findings: Findings) -> None:
    for pattern in (
        ("edge", "location"),
        ("geo", "default"),
        ("geo", "overrides", "*"),
        ("regions", "*", "location"),
    ):
        for path, text in report.source.texts(*pattern):
            try:
                findings.places[path] = parse_location(text)
            except UnknownLocation as error:
                report.add(path, str(error))


def _keys(report: Report, findings: Findings, environ: Mapping[str, str], base_dir: Path) -> None:
    def from_variable(name: str) -> str:
        return key_from_variable(name, environ)

    def from_file(name: str) -> str:
        path = (base_dir / name).absolute()
        findings.files[path] = mark_file(path)
        return key_from_file(path)

    sources: tuple[tuple[tuple[str, ...], Callable[[str], str]], ...] = (
        (("admin", "token_env"), from_variable),
        (("regions", "*", "endpoints", "*", "api_key_env"), from_variable),
        (("regions", "*", "endpoints", "*", "api_key_file"), from_file),
        (("tenants", "*", "key_env"), from_variable),
        (("tenants", "*", "key_file"), from_file),
    )
    for pattern, read in sources:
        for path, name in report.source.texts(*pattern):
            try:
                findings.keys[path] = read(name)
            except ValueError as error:
                report.add(path, str(error))


def _tenant_keys(report: Report, findings: Findings) -> None:
    owners: dict[str, str] = {}
    for path, key in findings.keys.items():
        tenant = str(path[1])
        if path[0] == "tenants" and owners.setdefault(key, tenant) != tenant:
            report.add(
                path,
                f"tenants {owners[key]!r} and {tenant!r} have the same key: nobody could tell them apart",
            )


def _files(report: Report, findings: Findings, base_dir: Path) -> None:
    for path, name in report.source.texts("geo", "database"):
        file = (base_dir / name).absolute()
        findings.files[file] = mark_file(file)
        try:
            findings.database = open_database(_regular_file(file))
        except ValueError as error:
            report.add(path, str(error))
    tls = TlsFiles(report, base_dir, findings.files)
    findings.endpoint_tls = tls.endpoints()
    findings.server_tls = tls.listener()


def _regular_file(path: Path) -> Path:
    """`path`, unless reading it could fail in surprising ways or never end. Raises ValueError then."""
    try:
        if path.is_file():
            return path
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None
    raise ValueError(f"{path}: there is no such file")


def _region_jurisdictions(report: Report, findings: Findings) -> None:
    for path, node in report.source.find("regions", "*"):
        stated = list(report.source.find(*path, "jurisdictions"))
        held: frozenset[str] | None = None
        if stated and stated[0][1].value is not None:
            items = list(report.source.texts(*path, "jurisdictions", "*"))
            value = stated[0][1].value
            if isinstance(value, list) and len(items) == len(value):
                held = frozenset(text for _, text in items)
        elif (place := findings.places.get((*path, "location"))) is not None:
            held = jurisdictions_of(place.country) if place.country is not None else frozenset()
        if isinstance(node.value, dict):
            findings.jurisdictions[str(path[1])] = held


def _residency(report: Report, findings: Findings) -> None:
    for path, code in report.source.texts("residency", "rules", "*", "countries", "*"):
        if (problem := country_problem(code)) is not None:
            report.add(path, problem)
    if None in findings.jurisdictions.values():
        return  # a region whose law is unknown might be the one that serves
    offered = frozenset[str]().union(*(held for held in findings.jurisdictions.values() if held))
    for pattern in (("residency", "rules", "*", "jurisdictions"), ("tenants", "*", "jurisdictions")):
        for path, _ in report.source.find(*pattern):
            wanted = [text for _, text in report.source.texts(*path, "*")]
            if wanted and offered.isdisjoint(wanted):
                hint = suggestion(wanted[0], offered)
                report.add(
                    path, f"no region has jurisdiction {' or '.join(wanted)}, so nobody could be served{hint}"
                )


def _endpoint_urls(report: Report) -> None:
    first: dict[str, KeyPath] = {}
    for path, url in report.source.texts("regions", "*", "endpoints", "*", "url"):
        address = endpoint_address(url)
        if first.setdefault(address, path) != path:
            report.add(path, f"the same endpoint stands at {path_text(first[address])}: list it once")


def _aliases(report: Report) -> None:
    target_of = {str(path[1]): text for path, text in report.source.texts("models", "*", "target")}
    for alias in target_of:
        chain = alias_chain(alias, target_of)
        if chain[-1] == alias == min(chain):  # one message for each circle
            report.add(("models", alias, "target"), f"aliases in a circle: {' -> '.join(chain)}")


def alias_chain(alias: str, target_of: Mapping[str, str]) -> list[str]:
    """The names that `alias` leads over, itself first, up to a model's name or the first name met twice."""
    chain = [alias]
    while (target := target_of.get(chain[-1])) is not None:
        is_circle = target in chain
        chain.append(target)
        if is_circle:
            break
    return chain


def _order(report: Report) -> None:
    regions = [str(path[1]) for path, _ in report.source.find("regions", "*")]
    for path, name in report.source.texts("routing", "order", "*"):
        if name not in regions:
            report.add(path, f"there is no region {name[:80]!r}{suggestion(name, regions)}")
    for path, policy in report.source.texts("routing", "policy"):
        if policy == "ordered" and not any(report.source.find("routing", "order", "*")):
            report.add(path, "policy `ordered` needs `routing.order`: the region names in order of preference")


def _profiles(report: Report) -> None:
    for path, name in report.source.texts("regions", "*", "endpoints", "*", "profile"):
        if name not in PROFILES:
            hint = suggestion(name, PROFILES)  # tells the known ones itself where none is near
            others = f" (known: {', '.join(sorted(PROFILES))})" if hint.endswith("?") else ""
            report.add(path, f"there is no profile {name[:80]!r}{hint}{others}")


def _listeners(report: Report) -> None:
    """Both addresses must be free for each other; port 0 always is."""
    defaults = Config.model_fields["listen"].default, Config.model_fields["admin"].default.listen
    clients = next(report.source.texts("listen"), (("listen",), defaults[0]))
    admin = (
        next(report.source.texts("admin", "listen"), None)
        or next(report.source.texts("admin"), None)
        or (("admin",), defaults[1])
    )
    try:
        (host, port), (admin_host, admin_port) = split_host_port(clients[1]), split_host_port(admin[1])
    except ValueError:
        return  # reported with the shape
    if port == admin_port != 0 and (host == admin_host or {host, admin_host} & _EVERY_ADDRESS):
        report.add(admin[0], f"{admin[1]} collides with `listen` ({clients[1]}): give admin another port")
