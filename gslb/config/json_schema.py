"""The JSON Schema of configuration and scenario files: for editors, and to find out which keys a section has."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import BaseModel

from gslb.config.problems import KeyPath
from gslb.config.scenario_schema import Scenario
from gslb.config.schema import Config
from gslb.config.units import DURATION_PATTERN, format_duration

Schema = dict[str, Any]


def config_json_schema() -> Schema:
    """JSON Schema (2020-12) of the YAML file: durations as text, defaults as they would be written."""
    schema = Config.model_json_schema()
    _restate_defaults(schema)
    properties = schema["properties"]
    properties["admin"] = {"anyOf": [{"type": "string"}, properties["admin"]]}
    return _titled(schema, "gslb configuration")


def scenario_json_schema() -> Schema:
    """JSON Schema (2020-12) of a scenario file, with the short forms that its lists may have."""
    schema = Scenario.model_json_schema()
    _restate_defaults(schema)
    parts = schema["$defs"]
    for properties, name, short in (
        (parts["FleetRegion"]["properties"], "endpoints", {"type": "integer", "minimum": 1}),
        (parts["ScenarioFault"]["properties"], "target", {"type": "string"}),
        (schema["properties"], "policies", {"const": "all"}),
    ):
        properties[name] = {"anyOf": [short, properties[name]]}
    return _titled(schema, "gslb scenario")


def _titled(schema: Schema, title: str) -> Schema:
    schema["title"] = title
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _restate_defaults(schema: Any) -> None:
    """Durations' defaults become text; a section's own default goes, for its members state theirs."""
    if isinstance(schema, list):
        for item in schema:
            _restate_defaults(item)
    if not isinstance(schema, dict):
        return
    if "$ref" in schema:
        schema.pop("default", None)
    elif schema.get("pattern") == DURATION_PATTERN and isinstance(schema.get("default"), float):
        schema["default"] = format_duration(schema["default"])
    for value in schema.values():
        _restate_defaults(value)


@cache
def _schema(model: type[BaseModel]) -> Schema:
    return scenario_json_schema() if model is Scenario else config_json_schema()


def known_keys(section: KeyPath, model: type[BaseModel] = Config) -> tuple[str, ...]:
    """The keys that the section at `section` of a `model`'s file may have; empty when there is none, or any key
    goes there."""
    schema = _section(section, model)
    return tuple(schema.get("properties", ())) if schema is not None else ()


def _section(path: KeyPath, model: type[BaseModel]) -> Schema | None:
    """The schema that holds at `path`."""
    schema: Schema | None = _schema(model)
    for step in path:
        if schema is None:
            return None
        if isinstance(step, int):
            schema = schema.get("items")
        else:
            schema = schema.get("properties", {}).get(step) or _any_key(schema)
        schema = _resolve(schema, model)
    return schema


def _any_key(schema: Schema) -> Schema | None:
    """The schema of a mapping's values when its keys are free; pydantic puts a key's form beside it."""
    values = schema.get("additionalProperties") or next(iter(schema.get("patternProperties", {}).values()), None)
    return values if isinstance(values, dict) else None


def _resolve(schema: Schema | None, model: type[BaseModel]) -> Schema | None:
    """Follow `$ref`, and the one interesting branch of `anyOf` (optional values, short forms)."""
    while schema is not None:
        if "$ref" in schema:
            schema = _schema(model)["$defs"][schema["$ref"].rsplit("/", 1)[1]]
        elif "anyOf" in schema:
            nested = (part for part in schema["anyOf"] if _is_nested(part))
            schema = next(nested, None)
        else:
            return schema
    return None


def _is_nested(part: Schema) -> bool:
    return "$ref" in part or part.get("type") in ("array", "object")
