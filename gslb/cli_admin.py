"""Commands that talk to a running edge through its admin API: `status`, `drain`, `cordon` and their undoing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

_TIMEOUT_S = 10.0
_DEFAULT_ADMIN = "http://127.0.0.1:9090"
_STATE_STYLE = {
    "admitting": "green",
    "probing": "yellow",
    "suspect": "yellow",
    "unknown": "dim",
    "ejected": "bold red",
}


def _shared_options(command: Callable[..., None]) -> Callable[..., None]:
    command = click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")(command)
    return click.option(
        "--admin", default=_DEFAULT_ADMIN, show_default=True, help="URL of the edge's admin listener."
    )(command)


@click.command()
@_shared_options
def status(admin: str, as_json: bool) -> None:
    """Show what a running edge knows of its regions and endpoints."""
    document = call_admin(admin, "GET", "/api/v1/status")
    if as_json:
        click.echo(json.dumps(document, indent=2))
    else:
        _print_status(document)


def _changing(name: str, text: str) -> click.Command:
    @click.command(name, help=text)
    @click.argument("target")
    @click.option(
        "--token-env",
        default="GSLB_ADMIN_TOKEN",
        show_default=True,
        help="Environment variable that holds the admin token.",
    )
    @_shared_options
    def command(target: str, token_env: str, admin: str, as_json: bool) -> None:
        token = os.environ.get(token_env, "").strip()
        if not token:
            raise click.ClickException(f"the environment variable {token_env} must hold the admin token")
        document = call_admin(admin, "POST", f"/api/v1/{name}", {"target": target}, token)
        if as_json:
            click.echo(json.dumps(document, indent=2))
        else:
            keys = document.get("endpoints") or []
            click.echo(f"{name}: {', '.join(keys) if keys else 'nothing to change'}")

    return command


drain = _changing("drain", "Send nothing new to TARGET (region or endpoint key); running answers end in peace.")
undrain = _changing("undrain", "Take back a drain of TARGET.")
cordon = _changing("cordon", "Keep TARGET (region or endpoint key) out of all decisions until uncordoned.")
uncordon = _changing("uncordon", "Take back a cordon of TARGET.")


# --- talking ------------------------------------------------------------------------------------------


def call_admin(
    admin: str, method: str, path: str, body: Mapping[str, Any] | None = None, token: str | None = None
) -> dict[str, Any]:
    """One call to the admin API. Goes straight there: no proxy of the environment, no redirect sees the token.

    Raises click.ClickException (exit code 1) in words for the operator.
    """
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    if body is not None:
        headers["Content-Type"] = "application/json"
    connection = _connection(admin)
    try:
        connection.request(
            method,
            urlsplit(admin).path.rstrip("/") + path,
            None if body is None else json.dumps(body).encode(),
            headers,
        )
        response = connection.getresponse()
        code, page = response.status, response.read()
    except (OSError, HTTPException) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        raise click.ClickException(
            f"no gslb answers at {admin} ({why}): is it running, and is that its admin address?"
        ) from error
    except ValueError as error:
        raise click.ClickException("the token holds a character that no HTTP header may carry") from error
    finally:
        connection.close()
    return _document(admin, code, page)


def _connection(admin: str) -> HTTPConnection:
    try:
        parts = urlsplit(admin)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or parts.scheme not in ("http", "https"):
        raise click.ClickException(f"{admin!r} is no URL of an admin listener: write http://HOST:PORT")
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    return kind(host, port, timeout=_TIMEOUT_S)


def _document(admin: str, code: int, page: bytes) -> dict[str, Any]:
    try:
        document = json.loads(page)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise click.ClickException(f"{admin} answered {code} without JSON: is it really gslb's admin listener?")
    if code != 200:
        error = document.get("error")
        message = error.get("message") if isinstance(error, dict) else None
        raise click.ClickException(f"{admin} refused ({code}): {message or 'without saying why'}")
    return document


# --- showing ------------------------------------------------------------------------------------------


def _print_status(document: Mapping[str, Any]) -> None:
    console = Console()
    edge = document.get("edge", {})
    held = f", {edge['queue_depth']} of them held" if edge.get("queue_depth") else ""
    ready = "ready" if document.get("ready") else "NOT ready"
    console.print(
        _text(f"edge {edge.get('name', '?')}: {ready}, configuration {document.get('generation', '?')}, "),
        _text(f"{edge.get('open_exchanges', 0)} requests under way{held}"),
        sep="",
    )
    for worker in edge.get("workers", ()):
        console.print(
            _text(f"worker {worker['pid']}: {'listening' if worker['is_listening'] else 'starting'}, "),
            _text(f"{worker['open_connections']} connections, {worker['open_exchanges']} requests under way"),
            sep="",
        )
    table = Table(show_edge=False, pad_edge=False, header_style="bold")
    for heading in ("region", "endpoint", "state", "models"):
        table.add_column(heading, overflow="fold")
    for heading in ("own", "others", "slots", "waiting", "kv", "rtt ms", "load age s"):
        table.add_column(heading, justify="right")
    notes: list[str] = []
    for region in document.get("regions", []):
        for endpoint in region["endpoints"]:
            table.add_row(*_row(region, endpoint))
            notes += _notes(endpoint)
    console.print(table)
    for note in notes:
        console.print(_text(note, style="yellow"))


def _row(region: Mapping[str, Any], endpoint: Mapping[str, Any]) -> list[Text]:
    load = endpoint["load"] or {}
    state = _text(endpoint["state"], style=_STATE_STYLE.get(endpoint["state"], ""))
    if endpoint["forced"] != "none":
        state.append(f" {endpoint['forced']}", style="magenta")
    models = endpoint["models"]
    measured_ms, prior_ms = endpoint["rtt_measured_ms"], region["rtt_prior_ms"]
    rtt = f"~{_number(prior_ms)}" if measured_ms is None and prior_ms is not None else _number(measured_ms)
    return [
        _text(region["name"]),
        _text(endpoint["key"]),
        state,
        _text("not learnt yet" if models is None else ", ".join(models) or "none"),
        _text(str(endpoint["in_flight"])),
        _text(_number(endpoint["others"] if endpoint["load"] else None)),
        _text(_number(endpoint["slots"])),
        _text(_number(load.get("waiting"))),
        _text("-" if load.get("kv_usage") is None else f"{load['kv_usage']:.0%}"),
        _text(rtt),
        _text(_number(load.get("age_s"))),
    ]


def _notes(endpoint: Mapping[str, Any]) -> list[str]:
    notes = [f"{endpoint['key']}: {note}" for note in endpoint["notes"]]
    if endpoint["state"] != "admitting":
        notes.insert(0, f"{endpoint['key']}: {endpoint['state']}: {endpoint['reason']}")
    return notes


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _text(words: str, style: str = "") -> Text:
    """Words from elsewhere for a terminal: what would steer the terminal is shown as a question mark."""
    return Text("".join(letter if letter.isprintable() else "?" for letter in words), style)
