"""The proxies that are compared: where their programs are, and how each is started in front of the upstreams."""

from __future__ import annotations

import os
import resource
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.processes import free_port

KEY = "bench-key-of-one-tenant"
"""The API key the load sends; gslb knows it as a tenant's, the others pass it on."""

PYTHON = sys.executable
NATIVE = Path(__file__).resolve().parent.parent / "build" / "native"
"""Where `make native` puts the compiled rooms."""
_CONFIGS = Path(__file__).parent / "peers"
_SYSTEM_DIRS = "/usr/local/sbin:/usr/sbin:/sbin"
_SPARE_FILES = 64


@dataclass(frozen=True, slots=True)
class Start:
    """How to start one proxy: its port, its command, what it needs in the environment."""

    port: int
    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Proxy:
    """One contestant. `start(program, upstream ports, run directory)` writes its configuration there."""

    name: str
    start: Callable[[str, Sequence[int], Path], Start]
    program: str


def peers_dir() -> Path:
    """Where peers that are not on PATH are looked for: $PEERS, or ~/.cache/gslb-peers."""
    return Path(os.environ.get("PEERS", Path.home() / ".cache" / "gslb-peers"))


def find_program(name: str) -> str | None:
    """The path of a peer's program: on PATH, in the system's directories, or in a virtualenv of $PEERS."""
    path = os.pathsep.join((os.environ.get("PATH", ""), _SYSTEM_DIRS))
    if (found := shutil.which(name, path=path)) is not None:
        return found
    return next(
        (str(found) for found in sorted(peers_dir().glob(f"*/bin/{name}")) if os.access(found, os.X_OK)), None
    )


def find_proxies(names: Sequence[str] | None) -> tuple[list[Proxy], list[str]]:
    """(proxies to measure, gslb first; names that were not found). `names` None: every peer there is.

    gslb runs compiled where `make native` has been, and then a second time as plain Python.
    """
    is_compiled = (NATIVE / ".ready").exists()
    found = [Proxy("gslb", _gslb_native if is_compiled else gslb, PYTHON)]
    if is_compiled:
        found.append(Proxy("gslb-python", gslb, PYTHON))
    missing: list[str] = []
    for name in PEERS if names is None else names:
        program = find_program(name)
        if program is None:
            missing.append(name)
        else:
            found.append(Proxy(name, PEERS[name], program))
    return found, missing


def raise_file_limit() -> int:
    """Let this process and its children open as many files as the system allows; returns how many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def _write(name: str, run: Path, **values: object) -> Path:
    """Fill in a configuration and write it into the run directory."""
    text = (_CONFIGS / name).read_text()
    for key, value in {"RUN": run, **values}.items():
        text = text.replace(f"@{key}@", str(value))
    path = run / name
    path.write_text(text)
    return path


def _connections() -> int:
    """Client connections a peer may hold: each takes a second file for its upstream."""
    return (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _SPARE_FILES) // 2


def gslb(program: str, upstreams: Sequence[int], run: Path, workers: int = 1) -> Start:
    """How to start gslb with everything on."""
    port, admin_port = free_port(), free_port()
    endpoints = [f'{{url: "http://127.0.0.1:{upstream}"}}' for upstream in upstreams]
    size = (len(endpoints) + 2) // 3
    regions = {name: ", ".join(endpoints[i * size : (i + 1) * size]) for i, name in enumerate(("EU", "US", "AP"))}
    config = _write("gslb.yaml", run, PORT=port, ADMIN_PORT=admin_port, WORKERS=workers, **regions)
    launch = "from gslb.cli import main; main()"
    return Start(port, [program, "-c", launch, "serve", "-c", str(config)], {"GSLB_BENCH_KEY": KEY})


def _gslb_native(program: str, upstreams: Sequence[int], run: Path) -> Start:
    plain = gslb(program, upstreams, run)
    # -P: the checkout, where the proxy is started, must not come before the compiled rooms.
    return Start(plain.port, [program, "-P", *plain.command[1:]], {**plain.env, "PYTHONPATH": str(NATIVE)})


def _nginx(program: str, upstreams: Sequence[int], run: Path) -> Start:
    port = free_port()
    servers = "\n".join(f"    server 127.0.0.1:{upstream};" for upstream in upstreams)
    files = min(2 * _connections(), 65_536)
    config = _write("nginx.conf", run, PORT=port, UPSTREAMS=servers, FILES=files)
    return Start(port, [program, "-c", str(config), "-p", str(run), "-e", "stderr"])


def _haproxy(program: str, upstreams: Sequence[int], run: Path) -> Start:
    port = free_port()
    servers = "\n".join(
        f"  server e{i} 127.0.0.1:{upstream} check inter 2s" for i, upstream in enumerate(upstreams)
    )
    config = _write("haproxy.cfg", run, PORT=port, UPSTREAMS=servers, CONNECTIONS=_connections() - _SPARE_FILES)
    return Start(port, [program, "-f", str(config)])


def _envoy(program: str, upstreams: Sequence[int], run: Path) -> Start:
    port = free_port()
    servers = "\n".join(
        f"        - {{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {upstream}}}}}}}}}"
        for upstream in upstreams
    )
    config = _write("envoy.yaml", run, PORT=port, UPSTREAMS=servers, CONNECTIONS=_connections())
    options = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "error"]
    return Start(port, [program, "-c", str(config), *options])


def _vllm_router(program: str, upstreams: Sequence[int], _run: Path) -> Start:
    port, metrics_port = free_port(), free_port()
    urls = [f"http://127.0.0.1:{upstream}" for upstream in upstreams]
    options = ["--host", "127.0.0.1", "--port", str(port), "--policy", "power_of_two", "--log-level", "error"]
    metrics = ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)]
    return Start(port, [program, *options, *metrics, "--worker-urls", *urls])


PEERS: dict[str, Callable[[str, Sequence[int], Path], Start]] = {
    "nginx": _nginx,
    "haproxy": _haproxy,
    "envoy": _envoy,
    "vllm-router": _vllm_router,
}
"""The peers by program name, in the order of the table. nginx is what the targets are set against."""
