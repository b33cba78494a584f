"""The commands that talk to a running edge."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator

import click
import pytest
from aiohttp import web
from click.testing import CliRunner, Result

from gslb import cli_admin
from tests.admin.edge import TOKEN, Edge, serving

COMMANDS = (cli_admin.status, cli_admin.drain, cli_admin.undrain, cli_admin.cordon, cli_admin.uncordon)
group = click.Group(commands={command.name or "": command for command in COMMANDS})


@pytest.fixture
async def url(edge: Edge) -> AsyncIterator[str]:
    async with serving(edge) as url:
        yield url


async def run(*arguments: str, token: str | None = TOKEN) -> Result:
    """Run a command beside the event loop that serves it."""
    environment = {"GSLB_ADMIN_TOKEN": token, "COLUMNS": "200", "http_proxy": "http://127.0.0.1:1"}
    return await asyncio.to_thread(CliRunner().invoke, group, arguments, env=environment)


async def test_status_as_a_table(edge: Edge, url: str) -> None:
    edge.observer.wrongs["eu/b"] = {"scrape": "an [bold]odd[/bold] \x1b[31mtext"}
    result = await run("status", "--admin", url)
    assert result.exit_code == 0
    for word in ("fra-1", "eu/a", "admitting", "m1", "12.5", "50%", "not learnt yet", "[bold]odd[/bold]"):
        assert word in result.output
    assert "\x1b" not in result.output


async def test_status_tells_what_is_held(edge: Edge, url: str) -> None:
    edge.counters.open_exchanges, edge.counters.queue_depth = 5, 3
    assert "5 requests under way, 3 of them held" in (await run("status", "--admin", url)).output


async def test_status_lists_workers(edge: Edge, url: str) -> None:
    edge.workers = [{"pid": 4711, "is_listening": True, "open_connections": 5, "open_exchanges": 2}]
    result = await run("status", "--admin", url)
    assert "worker 4711: listening, 5 connections, 2 requests under way" in result.output
    assert edge.syncs == 1, "asked of all workers now"


async def test_status_as_json(url: str) -> None:
    result = await run("status", "--admin", url, "--json")
    assert json.loads(result.output)["edge"]["name"] == "fra-1"


async def test_drain_and_back(edge: Edge, url: str) -> None:
    result = await run("drain", "eu", "--admin", url)
    assert (result.exit_code, result.output) == (0, "drain: eu/a, eu/b\n")
    result = await run("undrain", "eu/a", "--admin", url, "--json")
    assert json.loads(result.output)["endpoints"] == ["eu/a"]
    result = await run("uncordon", "eu/a", "--admin", url)
    assert result.output == "uncordon: nothing to change\n"
    assert [view.forced.value for view in edge.fleet.snapshot.endpoints] == ["none", "draining", "none"]


async def test_refusals_are_told(url: str) -> None:
    result = await run("drain", "moon", "--admin", url)
    assert result.exit_code == 1
    assert "404" in result.output
    assert "moon" in result.output
    result = await run("drain", "eu", "--admin", url, token="wrong")
    assert result.exit_code == 1
    assert "401" in result.output
    result = await run("drain", "eu", "--admin", url, token=None)
    assert result.exit_code == 1
    assert "GSLB_ADMIN_TOKEN" in result.output
    result = await run("cordon", "eu", "--admin", url, token="“odd”")
    assert result.exit_code == 1
    assert "odd" not in result.output


async def test_nobody_answers() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        result = await run("status", "--admin", url)
    assert result.exit_code == 1
    assert f"no gslb answers at {url}" in result.output


@pytest.mark.parametrize("url", ["nonsense", "ftp://host", "http://", "http://[::1", "http://host:port"])
async def test_not_a_url(url: str) -> None:
    result = await run("status", "--admin", url)
    assert result.exit_code == 1
    assert "no URL" in result.output


async def test_something_else_answers() -> None:
    async def page(_request: web.Request) -> web.Response:
        return web.Response(text="<html>")

    app = web.Application()
    app.router.add_get("/{path:.*}", page)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        result = await run("status", "--admin", f"http://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        await runner.cleanup()
    assert result.exit_code == 1
    assert "is it really gslb" in result.output
