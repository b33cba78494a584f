"""The hot rooms as machine code: `python -m gslb.native DIRECTORY` writes a copy of the package with the modules
every request passes compiled by mypyc. It needs mypy, setuptools and a C compiler, and takes about three minutes.

The sources stay the only truth: what is compiled is the same typed Python, into a directory of its own, so that
a stale binary can never shadow an edited file. Run gslb from there by putting DIRECTORY first on PYTHONPATH.

What compiled code does not do as Python does (mypyc 2.4), so that the hot rooms must not contain it: a slice of
bytes whose start lies behind its end raises SystemError instead of being empty; a call in the bounds of a slice
may run twice; a generator expression is a list, so it must end; a compiled dataclass must not be handed to orjson,
and a frozen one is unpickled by its `__reduce__` only; an attribute `_real` is a keyword to GCC.
"""

from __future__ import annotations

import os
import shutil
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

HOT_ROOMS = (
    "types", "counters", "policy/quota", "policy/rate",
    "wire/body_budget", "wire/chunks", "wire/http1", "wire/known_answer", "wire/openai", "wire/orca", "wire/paths",
    "wire/prefix", "wire/rate_fields", "wire/request_reader", "wire/retry_after", "wire/sse", "wire/vllm_metrics",
    "wire/websocket",
    "routing/affinity", "routing/candidates", "routing/ejection", "routing/explanation", "routing/fences",
    "routing/health", "routing/hit_rate", "routing/hold", "routing/learn", "routing/load", "routing/policies",
    "routing/predict", "routing/prefix_index", "routing/priorities", "routing/progress", "routing/refusal",
    "routing/rendezvous", "routing/retry_budget", "routing/router", "routing/rules", "routing/sessions",
    "routing/slate", "routing/slots", "routing/snapshot", "routing/success_ratio", "routing/view",
    "routing/waiting",
    "state/fleet", "state/shared_memory",
    "proxy/access_log", "proxy/admission", "proxy/answer_head", "proxy/attempt", "proxy/client", "proxy/deadlines",
    "proxy/exchange", "proxy/failure", "proxy/first_endpoint", "proxy/generation", "proxy/hedge", "proxy/holding",
    "proxy/listener", "proxy/next_endpoint", "proxy/outgoing", "proxy/pool", "proxy/realtime", "proxy/record",
    "proxy/relay", "proxy/tunnel", "proxy/upstream",
    "observe/fetch", "observe/rhythm", "observe/watch",
)  # fmt: skip
"""What one request passes from its first byte to its record, and the probes and scrapes that go on meanwhile. They
call each other directly only when compiled together."""

SIMULATED_ROOMS = (
    "sim/agenda", "sim/arrivals", "sim/clients", "sim/desk", "sim/edge", "sim/engine", "sim/faults",
    "sim/first_come", "sim/forecast", "sim/journey", "sim/kv_memory", "sim/lengths", "sim/links", "sim/oracle",
    "sim/parts", "sim/score", "sim/sequence", "sim/site", "sim/skywalker", "sim/watch", "sim/world",
)  # fmt: skip
"""What a simulated request passes besides the router."""


def is_native() -> bool:
    """True when this process runs the compiled rooms."""
    spec = find_spec("gslb.proxy.exchange")
    return spec is not None and (spec.origin or "").endswith(tuple(EXTENSION_SUFFIXES))


def build(directory: Path) -> None:
    """Write the compiled package to `directory`/gslb, replacing what is there.

    Raises ImportError without mypy or setuptools, SystemExit when the C compiler fails.
    """
    from mypyc.build import mypycify
    from setuptools import setup

    source = Path(__file__).resolve().parent
    target = directory / "gslb"
    shutil.rmtree(target, ignore_errors=True)
    leave = shutil.ignore_patterns("__pycache__", f"*{EXTENSION_SUFFIXES[0]}")
    shutil.copytree(source, target, ignore=leave)
    os.chdir(directory)  # the directory holds no pyproject.toml, which setuptools would take for its own
    files = [f"gslb/{room}.py" for room in (*HOT_ROOMS, *SIMULATED_ROOMS)]
    modules = mypycify(files, opt_level="2", debug_level="0")
    setup(name="gslb-native", packages=[], ext_modules=modules, script_args=["--quiet", "build_ext", "--inplace"])
    shutil.rmtree("build", ignore_errors=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m gslb.native DIRECTORY")
    where = Path(sys.argv[1])
    where.mkdir(parents=True, exist_ok=True)
    try:
        build(where)
    except ImportError as error:
        raise SystemExit(f"gslb.native: {error.name} is needed to compile: install gslb[native]") from error
