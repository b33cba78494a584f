"""`gslb explain`: where a client's request would go, and why."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

import click
from rich import box
from rich.console import Console
from rich.table import Table

from gslb.cli_admin import call_admin
from gslb.cli_serve import config_option, settings_of
from gslb.explain import explain_offline


def _loads(_context: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> dict[str, float]:
    loads: dict[str, float] = {}
    for value in values:
        region, _, share = value.partition("=")
        try:
            loads[region] = float(share)
        except ValueError:
            raise click.BadParameter(f"{value!r} is not REGION=SHARE, such as eu=0.95") from None
    return loads


@click.command()
@config_option
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
    settings = settings_of(config_path)
    try:
        if live:
            asked = {"ip": ip, "model": model, "tenant": tenant, "prompt_tokens": prompt_tokens}
            query = urlencode({name: value for name, value in asked.items() if value is not None})
            told = call_admin(f"http://{settings.config.admin.listen}", "GET", f"/api/v1/explain?{query}")
        else:
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
    source = place.get("source", "unknown")
    console.print(f"client: {where}" if source == "unknown" else f"client: {where} (by {source})")
    table = Table("region", box=box.SIMPLE, padding=(0, 1), pad_edge=False)
    table.add_column("endpoint", no_wrap=True)
    for title in ("ms", "network", "queue", "prefill", "tax"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
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
