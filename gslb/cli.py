"""The `gslb` command: one group, its commands in the rooms they belong to."""

from __future__ import annotations

import json
import os
import sys
from typing import Any
from urllib.parse import urlencode

import click
from rich.console import Console
from rich.table import Table

from gslb.cli_admin import ADMIN_COMMANDS, call_admin
from gslb.cli_config import check, schema
from gslb.cli_geo import geo
from gslb.cli_mock import mock_vllm
from gslb.config.load import load_config
from gslb.config.problems import ConfigErrors
from gslb.config.settings import Settings


@click.group()
@click.version_option(package_name="gslb")
def main() -> None:
    """Geo-aware global load balancer for vLLM clusters in many regions and clouds."""


def _settings(path: str) -> Settings:
    """Load a configuration, or print every problem and exit with 1."""
    try:
        return load_config(path, os.environ)
    except ConfigErrors as errors:
        for problem in errors.problems:
            click.echo(str(problem), err=True)
        sys.exit(1)


_CONFIG = click.option("-c", "--config", "config_path", required=True, metavar="FILE", help="The YAML file.")


@main.command()
@_CONFIG
def serve(config_path: str) -> None:
    """Run the edge: proxy and admin listeners. SIGHUP reloads, SIGTERM drains."""
    from gslb.serve import serve as run  # the event loop is only loaded where one runs

    sys.exit(run(_settings(config_path)))


def _loads(_context: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> dict[str, float]:
    loads: dict[str, float] = {}
    for value in values:
        region, _, share = value.partition("=")
        try:
            loads[region] = float(share)
        except ValueError:
            raise click.BadParameter(f"{value!r} is not REGION=SHARE, such as eu=0.95") from None
    return loads


@main.command()
@_CONFIG
@click.option("--ip", metavar="ADDRESS", help="The client's address; left out: a client nobody can place.")
@click.option("--model", help="The model asked for; left out: any.")
@click.option("--tenant", help="Decide with this tenant's rights.")
@click.option("--prompt-tokens", type=click.IntRange(0), default=0, show_default=True)
@click.option("--region-load", multiple=True, callback=_loads, metavar="R=0.95", help="Imagine a region loaded.")
@click.option("--live", is_flag=True, help="Ask the running edge (its admin listener) instead.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def explain(
    config_path: str, ip: str | None, model: str | None, tenant: str | None, prompt_tokens: int,
    region_load: dict[str, float], live: bool, as_json: bool,
) -> None:  # fmt: skip
    """Say where a client's request would go, and why. Offline it contacts nobody."""
    settings = _settings(config_path)
    try:
        if live:
            asked = {"ip": ip, "model": model, "tenant": tenant, "prompt_tokens": prompt_tokens}
            query = urlencode({name: value for name, value in asked.items() if value is not None})
            told = call_admin(f"http://{settings.config.admin.listen}", "GET", f"/api/v1/explain?{query}")
        else:
            from gslb.explain import explain_offline

            told = explain_offline(
                settings,
                ip=ip,
                model=model,
                tenant=tenant,
                prompt_tokens=prompt_tokens,
                load_by_region=region_load,
            )
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps(told, indent=2))
    else:
        _print_explanation(told)


def _print_explanation(told: dict[str, Any]) -> None:
    console = Console()
    place = told["place"]
    where = ", ".join(str(place[name]) for name in ("city", "country") if name in place) or "unknown"
    console.print(f"client: {where} (by {place.get('source', 'unknown')})")
    table = Table("region", "endpoint", "total ms", "network", "queue", "prefill", "tax", "")
    for ranked in told["ranked"]:
        is_chosen = told["choice"] is not None and ranked["endpoint"] == told["choice"]["endpoint"]
        numbers = [
            f"{ranked[name]:.1f}" for name in ("total_ms", "network_ms", "queue_ms", "prefill_ms", "tax_ms")
        ]
        mark = "chosen" if is_chosen else ("" if ranked["has_room"] else "full")
        table.add_row(ranked["region"], ranked["endpoint"], *numbers, mark, style="bold" if is_chosen else "")
    console.print(table)
    for dropped in told["dropped"]:
        console.print(f"dropped {dropped['endpoint']} by {dropped['rule']}: {dropped['why']}")
    console.print(told["line"], soft_wrap=True)


for _command in (check, schema, geo, mock_vllm, *ADMIN_COMMANDS):
    main.add_command(_command)
