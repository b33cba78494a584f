"""The JSON Schema of the configuration file: for editors, and for finding out which keys a section has."""

from __future__ import annotations

from functools import cache
from typing import Any

from gslb.config.problems import KeyPath
from gslb.config.schema import Config
from gslb.config.units import DURATION_PATTERN, format_duration

Schema = dict[str, Any]


def config_json_schema() -> Schema:
    """JSON Schema (2020-12) of the YAML file: durations as text, defaults as they would be written."""
    schema = Config.model_json_schema()
    _restate_defaults(schema)
    properties = schema["properties"]
    properties["admin"] = {"anyOf": [{"type": "string"}, properties["admin"]]}
    schema["title"] = "gslb configuration"
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
def _schema() -> Schema:
    return config_json_schema()


def known_keys(section: KeyPath) -> tuple[str, ...]:
    """The keys that the section at `section` may have; empty when there is none or any key goes there."""
    schema = _section(section)
    return tuple(schema.get("properties", ())) if schema is not None else ()


def _section(path: KeyPath) -> Schema | None:
    """The schema that holds at `path`."""
    schema: Schema | None = _schema()
    for step in path:
        if schema is None:
            return None
        if isinstance(step, int):
            schema = schema.get("items")
        else:
            schema = schema.get("properties", {}).get(step) or _any_key(schema)
        schema = _resolve(schema)
    return schema


def _any_key(schema: Schema) -> Schema | None:
    """The schema of a mapping's values when its keys are free; pydantic puts a key's form beside it."""
    values = schema.get("additionalProperties") or next(iter(schema.get("patternProperties", {}).values()), None)
    return values if isinstance(values, dict) else None


def _resolve(schema: Schema | None) -> Schema | None:
    """Follow `$ref`, and the one interesting branch of `anyOf` (optional values, the short form of admin)."""
    while schema is not None:
        if "$ref" in schema:
            schema = _schema()["$defs"][schema["$ref"].rsplit("/", 1)[1]]
        elif "anyOf" in schema:
            nested = (part for part in schema["anyOf"] if "$ref" in part or part["type"] in ("array", "object"))
            schema = next(nested, None)
        else:
            return schema
    return None
