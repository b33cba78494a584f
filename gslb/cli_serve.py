"""`gslb serve`, and how every command that needs a configuration loads one."""

from __future__ import annotations

import os
import signal
import sys

import click

from gslb.config.load import load_config
from gslb.config.problems import ConfigErrors
from gslb.config.settings import Settings

config_option = click.option("-c", "--config", "config_path", required=True, metavar="FILE", help="The YAML file.")


def settings_of(path: str) -> Settings:
    """Load a configuration, or print every problem to stderr and exit with 1."""
    try:
        return load_config(path, os.environ)
    except ConfigErrors as errors:
        for problem in errors.problems:
            click.echo(str(problem), err=True)
        sys.exit(1)


@click.command()
@config_option
@click.option(
    "--record",
    "record_path",
    metavar="FILE",
    help="Write down every decision and all it depended on, for `gslb replay` (one worker; about 1 KB a request).",
)
def serve(config_path: str, record_path: str | None) -> None:
    """Run the edge: proxy and admin listeners. SIGHUP reloads, SIGTERM drains."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a reload asked for during the start must not end it
    settings = settings_of(config_path)
    from gslb.serve import serve as run  # after the configuration: a wrong one is told at once

    sys.exit(run(settings, record_path))
