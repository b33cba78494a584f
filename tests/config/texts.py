"""Small configurations that tests vary."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gslb.config.load import check_text
from gslb.config.problems import ConfigErrors, Problem
from gslb.config.settings import Settings

REGIONS = """\
regions:
  eu: {location: "aws:eu-central-1", endpoints: [{url: "http://127.0.0.1:9001"}]}
  us: {location: "aws:us-east-1", endpoints: [{url: "http://127.0.0.1:9002"}]}
"""


def settings_of(text: str, environ: Mapping[str, str] | None = None, base_dir: Path = Path()) -> Settings:
    """The settings of a text that must load."""
    return check_text(text, "gslb.yaml", environ or {}, base_dir)


def refusal_of(text: str, environ: Mapping[str, str], base_dir: Path) -> list[Problem] | None:
    """What is wrong with a text, None when it loads."""
    try:
        check_text(text, "f", environ, base_dir)
    except ConfigErrors as errors:
        return errors.problems
    return None


def problems_of(text: str, environ: Mapping[str, str] | None = None, base_dir: Path = Path()) -> list[str]:
    """Each problem of a text as its line, empty when it loads."""
    return [str(problem) for problem in refusal_of(text, environ or {}, base_dir) or ()]


def only_problem_of(text: str, environ: Mapping[str, str] | None = None, base_dir: Path = Path()) -> str:
    """The one problem of a text that has exactly one."""
    found = problems_of(text, environ, base_dir)
    assert len(found) == 1, found
    return found[0]
