from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from gslb.cli_config import check, schema
from gslb.config.json_schema import known_keys
from tests.config.texts import REGIONS


def test_check_of_a_good_file(tmp_path: Path) -> None:
    path = tmp_path / "good.yaml"
    path.write_text(REGIONS)
    result = CliRunner().invoke(check, [str(path)])
    assert (result.exit_code, result.output) == (0, f"{path}: ok, 2 regions, 2 endpoints\n")


def test_check_of_a_bad_file_prints_all_problems(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(REGIONS + "workers: 0\nlisten: x\n")
    result = CliRunner().invoke(check, [str(path)])
    assert result.exit_code == 1
    assert [line.split(": ")[0] for line in result.output.splitlines()] == [
        f"{path}:4:10 workers",
        f"{path}:5:9 listen",
    ]
    as_json = CliRunner().invoke(check, ["--json", str(path)])
    assert as_json.exit_code == 1
    answer = json.loads(as_json.output)
    assert answer["ok"] is False
    assert [problem["path"] for problem in answer["problems"]] == ["workers", "listen"]


def test_check_of_a_missing_file() -> None:
    result = CliRunner().invoke(check, ["/nonexistent/x.yaml"])
    assert result.exit_code == 1
    assert len(result.output.splitlines()) == 1


def _properties(tree: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(tree, dict):
        yield from tree.get("properties", {}).items()
        for value in tree.values():
            yield from _properties(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _properties(value)


def test_the_schema_describes_every_key_as_it_is_written() -> None:
    result = CliRunner().invoke(schema, [])
    assert result.exit_code == 0
    tree = json.loads(result.output)
    assert tree["$schema"].startswith("https://json-schema.org/")
    for name, part in _properties(tree):
        parts = [part, *part.get("anyOf", [])]
        assert any("description" in piece or "$ref" in piece for piece in parts), name
    assert tree["$defs"]["Timeouts"]["properties"]["connect"]["default"] == "2s"
    assert tree["$defs"]["Routing"]["properties"]["prefill_per_token"]["default"] == "0.05ms"
    assert {"type": "string"} in tree["properties"]["admin"]["anyOf"]


def test_known_keys() -> None:
    assert "listen" in known_keys(())
    assert known_keys(("routing", "gate")) == ("shut", "open")
    assert known_keys(("admin",)) == ("listen", "token_env")
    assert "url" in known_keys(("regions", "any", "endpoints", 3))
    assert known_keys(("residency", "rules", 0)) == ("countries", "jurisdictions")
    assert known_keys(("listen", "x", 1, "y")) == ()
    assert known_keys(("regions", 0)) == ()
