"""Processes under measurement: started on one core, watched in /proc, stopped by their own pids."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

_PROC = Path("/proc")
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STOP_S = 5.0


class BenchmarkError(Exception):
    """The measurement cannot go on; the message says what to do."""


@contextmanager
def run_directory() -> Iterator[Path]:
    """A directory for the files of a command's run. A BenchmarkError that ends the run ends the command."""
    try:
        with tempfile.TemporaryDirectory(prefix="gslb-bench-") as directory:
            yield Path(directory)
    except BenchmarkError as error:
        raise click.ClickException(str(error)) from None


def cores() -> tuple[set[int], set[int]]:
    """(cores of the proxy, cores of load and upstream): one and the others, or the same where there is one."""
    available = sorted(os.sched_getaffinity(0))
    return {available[0]}, set(available[1:]) or {available[0]}


def free_port() -> int:
    """A port of the loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(
    command: Sequence[str],
    *,
    on_cores: set[int],
    log: Path,
    directory: Path,
    env: Mapping[str, str] | None = None,
    talks: bool = False,
) -> Iterator[subprocess.Popen[bytes]]:
    """A process pinned to cores, its output in `log`; stopped (and its children with it) on leaving.

    `talks`: its standard input and output are pipes. Raises BenchmarkError when it cannot be started.
    """
    own_cores = os.sched_getaffinity(0)
    pipe = subprocess.PIPE if talks else None
    with log.open("ab") as log_file:
        os.sched_setaffinity(0, on_cores)  # inherited by the child, from its first instruction on
        try:
            process = subprocess.Popen(
                command, stdin=pipe or subprocess.DEVNULL, stdout=pipe or log_file, stderr=log_file,
                start_new_session=True, cwd=directory, env={**os.environ, **(env or {})},
            )  # fmt: skip
        except OSError as error:
            raise BenchmarkError(f"{command[0]} cannot be started: {error}") from None
        finally:
            os.sched_setaffinity(0, own_cores)
    try:
        yield process
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads its own session: politely, then with everything it started."""
    if process.stdin is not None:
        process.stdin.close()
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        pass
    finally:  # also when Ctrl-C comes again meanwhile
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.stdout is not None:
        process.stdout.close()


class Talker:
    """Commands to a helper process and its answers: one JSON text a line each way."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    def hear(self, limit_s: float = 150.0) -> Any:
        """The next line it says. Raises BenchmarkError when it ends or stays silent."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], limit_s)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            raise BenchmarkError(f"a helper process has ended or hangs: see {self._log}")
        return json.loads(line)

    def ask(self, **command: Any) -> Any:
        """Send one command and wait for its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()
        return self.hear()


# --- what a process tree has used ------------------------------------------------------------------------


def stat_fields(text: str) -> list[str]:
    """The fields of a /proc/PID/stat line from the third (state) on; the second may hold blanks and brackets."""
    return text[text.rindex(")") + 2 :].split()


def tree(root: int) -> list[int]:
    """Pids of a process and its descendants, those alive now."""
    parents: dict[int, int] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            parents[int(entry.name)] = int(fields[1])
    members = [root]
    for pid in members:
        members += [child for child, parent in parents.items() if parent == pid]
    return members


def _stat(pid: int) -> list[str]:
    try:
        return stat_fields((_PROC / str(pid) / "stat").read_text())
    except OSError:
        return []  # it has ended meanwhile


def cpu_ns(root: int) -> int:
    """User and system time of a process tree, its ended children included.

    /proc/PID/stat counts in ticks of 10 ms, rounded down. Where the kernel has schedstat the time of the live
    threads is known to the nanosecond; both are lower bounds, so the larger one is taken.
    """
    total_ns = 0
    for pid in tree(root):
        if not (fields := _stat(pid)):
            continue
        own_ns = (int(fields[11]) + int(fields[12])) * _TICK_NS
        children_ns = (int(fields[13]) + int(fields[14])) * _TICK_NS
        total_ns += max(own_ns, _threads_ns(pid)) + children_ns
    return total_ns


def _threads_ns(pid: int) -> int:
    total_ns = 0
    for path in (_PROC / str(pid) / "task").glob("*/schedstat"):
        try:
            total_ns += int(path.read_text().split()[0])
        except (OSError, IndexError):
            continue  # a thread that has ended, or a kernel without it
    return total_ns


def rss_bytes(root: int) -> int:
    """Resident memory of a process tree; pages that its processes share count in each."""
    total = 0
    for pid in tree(root):
        try:
            total += int((_PROC / str(pid) / "statm").read_text().split()[1]) * _PAGE_BYTES
        except OSError:
            continue
    return total


class Neighbours:
    """What everybody else used of this machine since this was made: disturbed figures should say so."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self._used_s = self._others_s()

    @staticmethod
    def _others_s() -> float:
        """CPU seconds of the machine so far, steal included, less those of this process and its ended children."""
        fields = [int(field) for field in (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]]
        busy_s = (sum(fields) - fields[3] - fields[4]) * _TICK_NS / 1e9  # all but idle and waiting for disks
        own = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return busy_s - sum(usage.ru_utime + usage.ru_stime for usage in own)

    def share(self) -> float:
        """Their share of all cores (0..1). Ask when the children of the time in between have ended."""
        elapsed_s = time.monotonic() - self._started_s
        used_s = self._others_s() - self._used_s
        return max(0.0, used_s / max(elapsed_s, 1e-3) / (os.cpu_count() or 1))


def wait_until_served(
    port: int, request: bytes, process: subprocess.Popen[bytes], log: Path, limit_s: float
) -> None:
    """Send `request` until it is answered with 200. Raises BenchmarkError when that takes too long."""
    until_s = time.monotonic() + limit_s
    answer = b""
    while time.monotonic() < until_s:
        if process.poll() is not None:
            raise BenchmarkError(f"{process.args!r} ended with {process.returncode}: {log.read_text()[-800:]}")
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=2.0) as connection:
                connection.sendall(request)
                answer = connection.recv(4096)
        except OSError as error:
            answer = str(error).encode()
        if answer.startswith((b"HTTP/1.1 200", b"HTTP/1.0 200")):
            return
        time.sleep(0.05)
    raise BenchmarkError(f"no 200 from port {port} within {limit_s:g} s (last: {answer[:300]!r}); see {log}")
