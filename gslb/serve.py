"""`gslb serve`: an edge as a process, with its signals."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

import uvloop

from gslb.app import Edge
from gslb.config.settings import Settings
from gslb.state.cpus import usable_cpus
from gslb.state.shared_memory import TableFull
from gslb.supervisor import StartFailed, Supervisor

_log = logging.getLogger("gslb")


def serve(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT; returns the process's exit code.

    SIGHUP reads the configuration again. A second SIGTERM or SIGINT ends at once with code 1.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    return uvloop.run(_serve(settings))


def worker_count(settings: Settings) -> int:
    """How many processes are to serve clients."""
    workers = settings.config.workers
    return usable_cpus() if workers == "auto" else workers


async def _serve(settings: Settings) -> int:
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
        edge = Edge(settings, os.environ) if workers == 1 else Supervisor(settings, os.environ, workers)
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
