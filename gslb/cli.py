"""The `gslb` command. A command's module is imported when it is called: `gslb geo` waits for no proxy."""

from __future__ import annotations

from importlib import import_module

import click

_COMMANDS = {
    "serve": "gslb.cli_serve:serve",
    "check": "gslb.cli_config:check",
    "schema": "gslb.cli_config:schema",
    "explain": "gslb.cli_explain:explain",
    "simulate": "gslb.cli_simulate:simulate",
    "replay": "gslb.cli_replay:replay",
    "demo": "gslb.cli_demo:demo",
    "mock-vllm": "gslb.cli_mock:mock_vllm",
    "status": "gslb.cli_admin:status",
    "drain": "gslb.cli_admin:drain",
    "undrain": "gslb.cli_admin:undrain",
    "cordon": "gslb.cli_admin:cordon",
    "uncordon": "gslb.cli_admin:uncordon",
    "geo": "gslb.cli_geo:geo",
}
"""Command -> where it lives, in the order of the help text."""


class _Commands(click.Group):
    """A group that finds its commands in the table."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        where = _COMMANDS.get(cmd_name)
        if where is None:
            return None
        module, _, name = where.partition(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=_Commands)
@click.version_option(package_name="gslb")
def main() -> None:
    """Geo-aware global load balancer for vLLM clusters in many regions and clouds."""


if __name__ == "__main__":
    main()
