"""config/*.yaml load as they are, and the example states every key with its true default."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, TypeAdapter
from pydantic_core import PydanticUndefined

from gslb.config.load import load_config
from gslb.config.problems import KeyPath
from gslb.config.schema import Config
from gslb.config.units import parse_duration_s, parse_size_bytes
from gslb.config.yaml_source import Source, parse_yaml
from gslb.types import Place

CONFIG_DIR = Path(__file__).parents[2] / "config"
EXAMPLE = (CONFIG_DIR / "example.yaml").read_text("utf-8")
SWITCHED_ON = re.sub(r"(?m)^( *)#(?=\w|- )", r"\1", EXAMPLE)
_STATED_DEFAULT = re.compile(r"#\s+default:\s+(.+?)\s*$")


def schema_keys(
    model: type[BaseModel] = Config, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every key of the schema as a pattern for Source.find, with its default (or PydanticUndefined)."""
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        yield (*path, name), default
        for inner in sections_in(field.annotation):
            is_single = isinstance(field.annotation, type)
            yield from schema_keys(inner, (*path, name) if is_single else (*path, name, "*"))


def sections_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for part in get_args(annotation) for section in sections_in(part)]


def is_stated(source: Source, path: tuple[str, ...], default: Any) -> bool:
    lines = SWITCHED_ON.splitlines()
    for found, node in source.find(*path):
        line = lines[key_line(source, found) - 1]
        stated = _STATED_DEFAULT.search(line)
        if default is PydanticUndefined:
            if "# required" in line:
                return True
        elif stated is not None:
            text = yaml.safe_load(stated[1]) if stated[1] != "none" else None
            if text == default:
                return True
        elif isinstance(default, BaseModel) or same_value(node.value if node.value != [] else [], default):
            return True
    return False


def key_line(source: Source, path: KeyPath) -> int:
    place = source.locate(path)
    assert place is not None
    return (place.key_mark or place.node.mark).line


def same_value(written: Any, default: Any) -> bool:
    if isinstance(written, str) and isinstance(default, float):
        return parse_duration_s(written) == default
    if isinstance(written, str) and type(default) is int:
        return parse_size_bytes(written) == default
    return type(written) is type(default) and bool(written == default)


def test_every_key_is_stated_with_its_default() -> None:
    source = parse_yaml(SWITCHED_ON, "example.yaml")
    assert source.problems == []
    keys = list(schema_keys())
    assert len(keys) > 80
    assert [".".join(path) for path, default in keys if not is_stated(source, path, default)] == []


def test_the_settings_that_are_off_would_be_accepted() -> None:
    """Both ways to give a key exclude each other, so one of each pair is left off."""
    text = re.sub(r"(?m)^(?: +api_key_file| {4}key_file):.*$", "", SWITCHED_ON)
    text = re.sub(r"(?m)^ +(tls_\w+):.*$", "", text)
    config = TypeAdapter(Config).validate_python(parse_yaml(text, "f").plain(), context={"from_file": True})
    assert config.tenants["acme"].latency_budget == 0.8


def test_the_example_loads() -> None:
    settings = load_config(CONFIG_DIR / "example.yaml", {})
    assert [region.name for region in settings.regions] == ["eu", "us", "ap"]
    assert [endpoint.url for endpoint in settings.endpoints] == [f"http://127.0.0.1:{9001 + n}" for n in range(12)]
    eu, us, ap = settings.regions
    fence = settings.residency
    assert fence.deny_reason(Place(country="FR"), us) is not None
    assert fence.deny_reason(Place(country="FR"), eu) is None
    for country in ("GB", "SG", "BR", None):
        assert all(fence.deny_reason(Place(country=country), region) is None for region in (eu, us, ap))


def test_the_minimal_file_loads() -> None:
    settings = load_config(CONFIG_DIR / "minimal.yaml", {})
    assert len(settings.endpoints) == 2
    assert (settings.config.listen, settings.config.admin.listen) == ("127.0.0.1:8080", "127.0.0.1:9090")
