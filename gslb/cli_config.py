"""`gslb check` and `gslb schema`."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict

import click

from gslb.config.json_schema import config_json_schema, scenario_json_schema
from gslb.config.load import load_config, read_text
from gslb.config.problems import ConfigErrors
from gslb.config.scenario import is_scenario, load_scenario


@click.command()
@click.argument("file", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of lines.")
def check(file: str, as_json: bool) -> None:
    """Check the configuration or scenario FILE: every problem at once, one a line, as FILE:LINE:COLUMN PATH:
    MESSAGE. A file with `scenario` or `fleet` at its top is a scenario.

    Exits with 1 when there is any. Reads the files and environment variables that FILE names; contacts nobody.
    """
    problems = []
    region_count = endpoint_count = 0
    try:
        load = load_scenario if is_scenario(read_text(file)) else load_config
        checked = load(file, os.environ)
        region_count, endpoint_count = len(checked.regions), len(checked.endpoints)
    except ConfigErrors as errors:
        problems = errors.problems
    if as_json:
        answer = {
            "file": file,
            "ok": not problems,
            "regions": region_count,
            "endpoints": endpoint_count,
            "problems": [asdict(problem) for problem in problems],
        }
        click.echo(json.dumps(answer, indent=2))
    elif problems:
        for problem in problems:
            click.echo(str(problem))
    else:
        click.echo(f"{file}: ok, {_counted(region_count, 'region')}, {_counted(endpoint_count, 'endpoint')}")
    sys.exit(1 if problems else 0)


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"


@click.command()
@click.option("--scenario", "of_scenario", is_flag=True, help="The schema of scenario files instead.")
def schema(of_scenario: bool) -> None:
    """Print the JSON Schema of the configuration file, for editors that complete and check YAML by it."""
    printed = scenario_json_schema() if of_scenario else config_json_schema()
    click.echo(json.dumps(printed, indent=2, ensure_ascii=False))
