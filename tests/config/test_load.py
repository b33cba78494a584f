"""Loading: what a good file becomes, and what is said of a bad one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gslb.config.load import load_config
from gslb.config.problems import ConfigErrors
from gslb.config.schema import Config
from gslb.config.schema_fleet import POLICY_NAMES
from gslb.policy.rate import Rate
from gslb.types import Purchase
from tests.config.texts import REGIONS, only_problem_of, problems_of, settings_of


def loading_problem(path: Path) -> str:
    with pytest.raises(ConfigErrors) as caught:
        load_config(path, {})
    (problem,) = caught.value.problems
    return str(problem)


def test_the_least_file() -> None:
    settings = settings_of(REGIONS)
    eu, us = settings.regions
    assert (eu.name, eu.provider, eu.place.country, eu.jurisdictions) == (
        "eu", "aws", "DE", frozenset({"DE", "EU", "EEA"}),
    )  # fmt: skip
    assert us.jurisdictions == {"US"}
    assert [endpoint.key for endpoint in settings.endpoints] == ["eu/127.0.0.1:9001", "us/127.0.0.1:9002"]
    first = settings.endpoints[0]
    assert (first.models, first.capacity, first.price_per_hour) == (None, None, None)
    assert first.prefill_ms_per_token == pytest.approx(0.05)
    assert first.slot_hold_ms == pytest.approx(3900)
    assert settings.tenants is None
    assert settings.admin_token is None
    assert settings.edge_place is None
    assert settings.config.timeouts.connect == 2.0


def test_everything_arrives(tmp_path: Path) -> None:
    (tmp_path / "eu.key").write_text("up-eu\n")
    (tmp_path / "acme.key").write_bytes(b"sk-good\r\n")
    settings = settings_of(
        """
admin: {listen: "127.0.0.1:0", token_env: ADMIN}
edge: {name: ber, location: "52.5,13.4"}
geo: {overrides: {10.1.2.3/16: "Paris, FR"}, default: BR, trusted_proxies: [10.0.0.0/8]}
regions:
  eu:
    location: Frankfurt
    jurisdictions: [X]
    provider: own
    priority: 2
    certifications: [soc2]
    endpoints:
      - {url: "HTTPS://Llm.example/vllm/", models: [m], capacity: 3, node: n1, purchase: spot, gpus: 4,
         price_per_gpu_hour: 2, api_key_file: eu.key}
      - {url: "http://[::1]:80", api_key_env: UP}
models: {a: {target: b}, b: {target: m}}
residency: {rules: [{countries: [DE], jurisdictions: [X]}], unknown: allow}
tenants:
  acme:
    {key_file: acme.key, models: [m], jurisdictions: [X], expires: "2030-01-01T00:00:00Z",
     latency_budget: 300ms, priority: low, rate: {requests: 24, prompt_tokens: 7, burst: 3, per: 60s}}
routing: {prefill_per_token: 0.1ms, slot_hold: 2s}
""",
        {"ADMIN": "adm-1", "UP": "up-2"},
        tmp_path,
    )
    https, http = settings.endpoints
    assert (https.key, https.url) == ("eu/llm.example:443/vllm", "https://Llm.example/vllm")
    assert (http.key, http.url) == ("eu/[::1]:80", "http://[::1]:80")
    assert (https.purchase, https.price_per_hour, https.models) == (Purchase.SPOT, 8.0, frozenset({"m"}))
    assert https.prefill_ms_per_token == pytest.approx(0.1)
    assert https.slot_hold_ms == 2000
    assert settings.api_keys == {https.key: "up-eu", http.key: "up-2"}
    assert settings.endpoint_configs[https.key].gpus == 4
    assert settings.aliases == {"a": "m", "b": "m"}
    assert settings.admin_token == "adm-1"
    region = settings.regions[0]
    assert (region.provider, region.jurisdictions, region.priority) == ("own", frozenset({"X"}), 2)
    assert region.certifications == {"soc2"}
    assert settings.locator.locate("10.1.200.1").country == "FR"
    assert settings.edge_place is not None
    assert settings.edge_place.country == "DE"
    assert settings.tenants is not None
    rights = settings.tenants.authenticate([b"Bearer sk-good"], 0.0)
    assert rights is not None
    assert (rights.name, rights.models) == ("acme", frozenset({"m"}))
    assert rights.budget_ms == pytest.approx(300)
    assert rights.priority == -1
    assert rights.expires_at == 1893456000
    assert rights.rates == (Rate("requests", 2_500_000_000, 3), Rate("tokens", 8_571_428_572, 7))
    assert settings.residency.deny_reason(settings.edge_place, region) is None
    for secret in ("up-eu", "up-2", "sk-good", "adm-1"):
        assert secret not in repr(settings)


def test_a_group_binds_territories_too() -> None:
    settings = settings_of(REGIONS + "residency: {rules: [{countries: [FR], jurisdictions: [EU]}]}")
    reunion = settings.locator.locate("127.0.0.1").__class__(country="RE")
    assert settings.residency.deny_reason(reunion, settings.regions[1]) is not None
    assert settings.residency.deny_reason(reunion, settings.regions[0]) is None


EIGHT = """\
listen: 127.0.0.1:8080
regions:
  eu:
    location: "aws:eu-centrl-1"
    endpoints:
      - url: http://127.0.0.1:9001
        max_retires: 3
  "us":
    location: Virginia Beach
    endpoints:
      - url: http://127.0.0.1:9001
      - {url: "http://127.0.0.1:9003", api_key_env: UNSET_KEY}
routing:
  policy: tttf
  near_equal: 5
residency:
  rules:
    - {countries: [DE, NO], jurisdictions: [EU]}
routing: {}
"""


def test_eight_mistakes_eight_messages() -> None:
    expected = [
        ("f:4:15 regions.eu.location:", "did you mean aws:eu-central-1"),
        ("f:7:9 regions.eu.endpoints[0].max_retires:", "unknown key"),
        ("f:11:14 regions.us.endpoints[0].url:", "regions.eu.endpoints[0].url"),
        ("f:12:53 regions.us.endpoints[1].api_key_env:", "UNSET_KEY is not set"),
        ("f:14:11 routing.policy:", "did you mean 'ttft'?"),
        ("f:15:15 routing.near_equal:", "write 5s or 5ms"),
        ("f:18:24 residency.rules[0].countries[1]:", "quote it"),
        ("f:19:1 routing:", "first on line 13"),
    ]
    found = problems_of(EIGHT)
    assert len(found) == 8, found
    for line, (start, words) in zip(found, expected, strict=True):
        assert line.startswith(start)
        assert words in line


@pytest.mark.parametrize(
    ("text", "start", "words"),
    [
        ("residency: {rules: [{countries: [US, NO, 'EE'], jurisdictions: [EU]}]}", "countries[1]", "boolean"),
        ("health: {fall: 0100}", "health.fall", "octal"),
        ("health: {interval: 12:30:00}", "health.interval", "base 60"),
        ("edge: {name: 0123}", "edge.name", "octal"),
        ("edge: {name: 1e3}", "edge.name", "expected text, got the number '1e3': quote it"),
        ("edge: {name: 1234567890}", "edge.name", "quote it"),
        ("edge: {name: a, name: b}", "edge.name", "twice"),
        (
            "routing: {failover: {max_retires: 3}}",
            "routing.failover.max_retires",
            "did you mean 'max_attempts'?",
        ),
        (
            "routing: {failover: {max_attempt: 3}}",
            "routing.failover.max_attempt",
            "did you mean 'max_attempts'?",
        ),
        ("edge: &e {name: b}\nobservability: {<<: *e}", 'observability["<<"]', "merge keys"),
        ("geo: {embedded: yes}", "geo.embedded", "true or false"),
        ("edge:\n\tname: a", "", "tab"),
    ],
)
def test_fc28_norway_octal_ports_and_duplicate_keys(text: str, start: str, words: str) -> None:
    """FC-28: traps of YAML are refused with their place."""
    problem = only_problem_of(REGIONS + text)
    assert f"{start}: " in problem
    assert words in problem


def test_fc28_region_keys_do_not_collapse() -> None:
    """FC-28: traps of YAML are refused with their place."""
    text = REGIONS.replace("  eu:", "  no:").replace("  us:", "  on:")
    assert [line.split(": ")[0] for line in problems_of(text)] == ["f:2:3 regions.no", "f:3:3 regions.on"]
    quoted = settings_of(REGIONS.replace("  eu:", "  'no':").replace("  us:", "  'on':"))
    assert [region.name for region in quoted.regions] == ["no", "on"]


def test_fc28_a_bom_is_no_problem() -> None:
    """FC-28: traps of YAML are refused with their place."""
    assert len(settings_of("\ufeff" + REGIONS).regions) == 2


@pytest.mark.parametrize(
    ("text", "start", "words"),
    [
        ("listen: 127.0.0.1", "f:4:9 listen", "HOST:PORT"),
        ("admin: 127.0.0.1", "f:4:8 admin", "HOST:PORT"),
        ("admin: {listen: 0.0.0.0:8080}", "f:4:17 admin.listen", "collides"),
        ("admin: 127.0.0.1:8080", "f:4:8 admin", "collides"),
        ("geo: {default: Atlantis City}", "f:4:16 geo.default", "names no known place"),
        ("geo: {overrides: {10.0.0.0/40: DE}}", "f:4:19 geo.overrides", "IP network"),
        ("geo: {overrides: {10.0.0.0/8: Xxyyzz}}", 'f:4:31 geo.overrides["10.0.0.0/8"]', "no known place"),
        ("geo: {trusted_proxies: [a]}", "f:4:25 geo.trusted_proxies[0]", "IP network"),
        ("geo: {database: gone.mmdb}", "f:4:17 geo.database", "no such file"),
        ("geo: {database: .}", "f:4:17 geo.database", "no such file"),
        ("admin: {token_env: TOKEN_ENV}", "f:4:20 admin.token_env", "TOKEN_ENV is not set"),
        ("models: {a: {target: a}}", "f:4:22 models.a.target", "circle: a -> a"),
        ("models: {a: {target: b}, b: {target: c}, c: {target: b}}", "f:4:38 models.b.target", "b -> c -> b"),
        ("routing: {order: [eu, uss]}", "f:4:23 routing.order[1]", "did you mean 'us'?"),
        ("routing: {policy: ordered}", "f:4:19 routing.policy", "needs `routing.order`"),
        ("routing: {gate: {shut: 0.5}}", "f:4:17 routing.gate", "below shut"),
        ("routing: {failover: {replay: connect_only, hedge: {after: 1s}}}", "f:4:21 routing.failover", "hedge"),
        ("health: {timeout: 3s}", "f:4:9 health", "must not exceed interval"),
        ("health: {interval: 0s}", "f:4:20 health.interval", "more than 0"),
        ("timeouts: {total: 2.5}", "f:4:19 timeouts.total", "needs a unit"),
        ("limits: {header_count: 0}", "f:4:24 limits.header_count", "at least 1, got the number '0'"),
        ("routing: {prefill_per_token: 0s}", "f:4:30 routing.prefill_per_token", "must be more than 0"),
        ("limits: {header_count: '5'}", "f:4:24 limits.header_count", "without quotes"),
        ("limits: {body_bytes: 5 MiBs}", "f:4:22 limits.body_bytes", "no size"),
        ("workers: 0", "f:4:10 workers", "from 1 to 256"),
        ("workers: 257", "f:4:10 workers", "from 1 to 256"),
        ("workers: cores", "f:4:10 workers", "write auto, or a number"),
        ("workers: true", "f:4:10 workers", "write auto, or a number"),
        ("routing: {affinity: {index_blocks: 0}}", "f:4:36 routing.affinity.index_blocks", "at least 1"),
        ("routing: {affinity: {prefixes: true}}", "f:4:22 routing.affinity.prefixes", "did you mean 'prefix'?"),
        ("tenants: {t: {key_env: K, priority: top}}", "f:4:37 tenants.t.priority", "known: high, low, normal"),
        ("tenants: {t: {}}", "f:4:14 tenants.t", "exactly one of"),
        ("tenants: {t: {key_env: K, expires: 2030-01-01}}", "f:4:36 tenants.t.expires", "time zone"),
        ("tenants: {t: {key_env: K, rate: {per: 1s}}}", "f:4:33 tenants.t.rate", "needs `requests`"),
        (
            "tenants: {t: {key_env: K, rate: {prompt_tokens: 9, burst: 2}}}",
            "f:4:33 tenants.t.rate",
            "burst is a num",
        ),
        ("tenants: {t: {key_env: K, rate: {requests: 0}}}", "f:4:44 tenants.t.rate.requests", "at least 1"),
        ("tenants: {t: {key_env: K, rate: {requests: 1, per: 60}}}", "f:4:52 tenants.t.rate.per", "60s or 60ms"),
        ("tenants: {t: {key_env: K, rate: {rpm: 60}}}", "f:4:34 tenants.t.rate.rpm", "unknown"),
        ("tenants: {t: {key_file: ./none}}", "f:4:25 tenants.t.key_file", "no file at this path"),
        (
            "tenants: {t: {key_env: K, jurisdictions: [CH]}}",
            "f:4:42 tenants.t.jurisdictions",
            "no region has",
        ),
        (
            "residency: {rules: [{countries: [XX], jurisdictions: [EU]}]}",
            "f:4:34 residency",
            "'XX' is no country",
        ),
        (
            "residency: {rules: [{countries: [de], jurisdictions: [EU]}]}",
            "f:4:34 residency",
            "did you mean 'DE'?",
        ),
        (
            "residency: {rules: [{countries: [DE], jurisdictions: [CH]}]}",
            "f:4:54 residency",
            "nobody could be",
        ),
        ("residency:", "f:4:11 residency", "got nothing: give it a value"),
        ("rooting: {}", "f:4:1 rooting", "did you mean 'routing'?"),
        ("routing: {objective: latenzy}", "f:4:22 routing.objective", "did you mean 'latency'?"),
        ("routing: {foreign_tax: .inf}", "f:4:24 routing.foreign_tax", "needs a unit"),
        ("routing: {gate: {shut: .nan}}", "f:4:24 routing.gate.shut", "finite"),
    ],
)
def test_one_mistake_one_message(text: str, start: str, words: str) -> None:
    problem = only_problem_of(REGIONS + text, {"K": "sk-1"})
    assert problem.startswith(start)
    assert words in problem


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        ("{}", "'url' is missing"),
        ("{url: ftp://a}", "no endpoint URL"),
        ("{url: 'http://a:99999'}", "valid host and port"),
        ("{url: 'http://a:0'}", "no endpoint URL"),
        ("{url: 'http://a/x?y=1'}", "query"),
        ("{url: 'http://a b'}", "without spaces"),
        ("{url: 'http://u:p4ss@a'}", "credentials"),
        ("{url: 'u:p4ss@a'}", "credentials"),
        ("{url: 'http://[::1'}", "valid host"),
        ("{url: http://a, api_key_env: K, api_key_file: k}", "keep one"),
        ("{url: http://a, tls_server_name: x}", "https://"),
        ("{url: https://a, tls_ca_file: k}", "no PEM"),
        ("{url: http://a, api_key_file: empty}", "empty"),
        ("{url: http://a, api_key_file: spaced}", "visible ASCII"),
        ("{url: http://a, api_key_env: UMLAUT}", "visible ASCII"),
        ("{url: http://a, api_key_env: 12345678}", "expected text, got a number: quote it"),
        ("{url: http://a, models: []}", "at least one"),
        ("{url: http://a, capacity: true}", "whole number, got the boolean 'true'"),
        ("text", "expected a mapping, got text 'text'"),
    ],
)
def test_endpoint_mistakes(endpoint: str, words: str, tmp_path: Path) -> None:
    for name, content in (("k", "key\n"), ("empty", "\n"), ("spaced", "a b\n")):
        (tmp_path / name).write_text(content)
    text = f"regions: {{eu: {{location: DE, endpoints: [{endpoint}]}}}}"
    problem = only_problem_of(text, {"K": "k", "UMLAUT": "sk-ü"}, tmp_path)
    assert problem.startswith("f:1:")
    assert "regions.eu.endpoints[0]" in problem
    assert words in problem
    assert "p4ss" not in problem
    assert "12345678" not in problem


def test_a_pasted_key_is_never_repeated() -> None:
    for key in ("sk-Pasted123", "0123456789", "1_000_000", "NO"):
        text = f"{REGIONS}admin: {{token_env: {key}}}\ntenants: {{t: {{key_file: {key}}}}}"
        found = problems_of(text)
        assert len(found) == 2
        assert not any(key in line for line in found)


def test_two_tenants_with_one_key() -> None:
    text = REGIONS + "tenants: {a: {key_env: K}, b: {key_env: L}}"
    problem = only_problem_of(text, {"K": "same-key", "L": "same-key"})
    assert "tenants 'a' and 'b'" in problem
    assert "same-key" not in problem


def test_a_region_of_unknown_law_hides_no_other_mistake_and_invents_none() -> None:
    text = REGIONS.replace("aws:us-east-1", "aws:us-eest-1") + (
        "residency: {rules: [{countries: [US], jurisdictions: [US]}]}\n"
    )
    assert only_problem_of(text).startswith("f:3:18 regions.us.location")


def test_every_policy_is_accepted() -> None:
    for policy in POLICY_NAMES:
        assert settings_of(f"{REGIONS}routing: {{policy: {policy}, order: [eu]}}").config.routing.policy == policy
    assert Config.model_fields["routing"].default.policy == POLICY_NAMES[0]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert "No such file" in loading_problem(tmp_path / "gone.yaml")
    assert "directory" in loading_problem(tmp_path)
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"a: 1\nb: caf\xe9\n")
    assert loading_problem(latin) == f"{latin}:2:7: byte 0xe9 is not UTF-8: save it as UTF-8"
    assert "null" in loading_problem(tmp_path / "a\0b")
    empty = tmp_path / "empty.yaml"
    empty.touch()
    assert "the file is empty" in loading_problem(empty)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "closed.yaml"
    path.write_text(REGIONS)
    path.chmod(0)
    assert "Permission" in loading_problem(path)


def test_relative_paths_start_at_the_file(tmp_path: Path) -> None:
    (tmp_path / "k").write_text("adm\n")
    path = tmp_path / "gslb.yaml"
    path.write_text(REGIONS + "tenants: {t: {key_file: k}}\n")
    settings = load_config(path, {})
    assert settings.source_path == str(path)
    assert settings.tenants is not None
    assert settings.tenants.authenticate([b"bearer adm"], 0.0) is not None


def test_a_profile_is_what_is_believed_of_an_endpoint() -> None:
    first, second = settings_of(REGIONS.replace(':9001"', ':9001", profile: a100-70b-tp8')).endpoints
    assert (first.prefill_ms_per_token, first.step_ms) == pytest.approx((0.106, 44.8))
    assert (second.prefill_ms_per_token, second.step_ms) == pytest.approx((0.05, 0.0))


def test_an_unknown_profile_is_told_with_the_known_ones() -> None:
    problem = only_problem_of(REGIONS.replace(':9001"', ':9001", profile: a100-70b'))
    assert problem.startswith("f:2:")
    assert "did you mean 'a100-70b-tp8'" in problem
    assert "h100-70b-tp8" in problem
    assert problem.count("h100-70b-tp8") == 1
    problem = only_problem_of(REGIONS.replace(':9001"', ':9001", profile: zzz'))
    assert problem.count("h100-70b-tp8") == 1, "told once, near one or not"
