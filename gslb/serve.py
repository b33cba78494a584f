"""`gslb serve`: an edge as a process, with its signals."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import version
from random import SystemRandom

import uvloop

from gslb.app import Edge
from gslb.config.settings import Settings
from gslb.native import is_native
from gslb.sim.recording import Recording
from gslb.state.cpus import usable_cpus
from gslb.state.shared_memory import TableFull
from gslb.supervisor import StartFailed, Supervisor

_log = logging.getLogger("gslb")

_RECORDED_AT_ONCE_BYTES = 65_536


def serve(settings: Settings, record_path: str | None = None) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code. `record_path` is a file to record decisions in.

    SIGHUP reads the configuration again. A second SIGTERM or SIGINT ends at once with code 1.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if record_path is None:
        return uvloop.run(_serve(settings, None))
    problem = why_not_recorded(worker_count(settings), is_native())
    if problem is not None:
        print(f"gslb: --record: {problem}", file=sys.stderr)
        return 1
    try:
        with open_recording(record_path, settings) as recording:
            return uvloop.run(_serve(settings, recording))
    except OSError as error:
        print(f"gslb: --record: {error.strerror or error} ({record_path})", file=sys.stderr)
        return 1


def why_not_recorded(workers: int, native: bool) -> str | None:
    """Why this edge's decisions cannot be recorded, and what to do; None when they can."""
    if workers != 1:
        return "decisions of several workers depend on each other in ways that none of them sees: set workers: 1"
    if native:
        return "the compiled rooms cannot be listened to: leave them off PYTHONPATH"
    return None


@contextmanager
def open_recording(path: str, settings: Settings) -> Iterator[Recording]:
    """A recording into a new file at `path` (what was there is replaced). Raises OSError."""
    about = {
        "gslb": version("gslb"),
        "config_sha256": sha256(settings.source_text.encode()).hexdigest(),
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
    }

    def tell(fault: Exception) -> None:
        _log.error("the recording ends here, the edge serves on: %s", fault)

    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640)
    with open(descriptor, "w", encoding="utf-8", buffering=_RECORDED_AT_ONCE_BYTES) as file:
        yield Recording(file.write, tell, SystemRandom().getrandbits(64), about)


def worker_count(settings: Settings) -> int:
    """How many processes are to serve clients."""
    workers = settings.config.workers
    return usable_cpus() if workers == "auto" else workers


async def _serve(settings: Settings, recording: Recording | None) -> int:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    workers = worker_count(settings)
    edge: Edge | Supervisor | None = None

    def on_stop() -> None:
        if stopping.is_set():
            if isinstance(edge, Supervisor):
                edge.kill()
            os._exit(1)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_stop)
    config = settings.config
    try:
        if workers == 1:
            edge = Edge(settings, os.environ, making=recording)
        else:
            edge = Supervisor(settings, os.environ, workers)
        loop.add_signal_handler(signal.SIGHUP, edge.reload)
        await edge.start()
    except OSError as error:
        print(f"gslb: cannot start: {error.strerror or error} ({error.filename or 'an address'})", file=sys.stderr)
        return 1
    except (StartFailed, TableFull) as error:
        print(f"gslb: cannot start: {error}", file=sys.stderr)
        return 1
    _log.info("listening on %s, admin on %s, %d endpoints, workers: %d", config.listen, config.admin.listen,
              len(settings.endpoints), workers)  # fmt: skip
    await stopping.wait()
    _log.info("stopping: running answers have %g s", edge.settings().config.timeouts.grace)
    await edge.stop()
    return 0
