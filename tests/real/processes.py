"""The processes of a run: real vLLM servers and gslb, each started, watched and ended by its own pid."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

MODEL = "tiny-llama"
MODEL_LEN = 8192
SLOTS = 4
"""Few, so that a small load already queues."""
STEP_TOKENS = 256
"""Prompts are prefilled so many tokens a step: the engine looks at its gauges and at aborts between steps."""
STARTUP_S = 600.0
"""Importing torch twice on two busy cores takes minutes."""


def free_port() -> int:
    """A loopback port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def fetch(url: str, timeout_s: float = 5.0) -> str:
    """The body of a GET. Raises OSError when there is no good answer."""
    with urllib.request.urlopen(url, timeout=timeout_s) as answer:
        body: bytes = answer.read()
        return body.decode()


class Process:
    """A child with a process group of its own; all it says goes to `log`."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._child: subprocess.Popen[bytes] | None = None

    def spawn(self, command: list[str], environ: dict[str, str], cwd: Path) -> None:
        """Start the command."""
        with self.log.open("ab") as out:
            self._child = subprocess.Popen(
                command, env={**os.environ, **environ}, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip

    @property
    def is_alive(self) -> bool:
        """True while the started process itself runs."""
        return self._child is not None and self._child.poll() is None

    def check(self) -> None:
        """Raises RuntimeError with the end of the log when the process has ended."""
        if not self.is_alive:
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
            raise RuntimeError(f"{self.log.name}: the process has ended:\n{tail}")

    def terminate(self) -> None:
        """SIGTERM to the started process."""
        assert self._child is not None
        self._child.terminate()

    def wait(self, timeout_s: float) -> int:
        """Its exit code. Raises TimeoutExpired."""
        assert self._child is not None
        return self._child.wait(timeout_s)

    def kill(self) -> None:
        """SIGKILL to its whole group (an engine is several processes), as a lost machine would end it."""
        if self._child is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        self._child = None


class VllmServer(Process):
    """One real vLLM API server at the lowest priority; default flags but for few slots and small prefill steps."""

    def __init__(self, region: str, root: Path, logs: Path) -> None:
        super().__init__(logs / f"vllm-{region}.log")
        self.region = region
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._root = root

    def start(self) -> None:
        """Begin to start; `is_healthy` tells when it is there."""
        environ = {
            "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
            "VLLM_HOST_IP": "127.0.0.1", "VLLM_LOOPBACK_IP": "127.0.0.1",
        }  # fmt: skip
        command = [
            "nice", "-n", "19", str(self._root / "venv" / "bin" / "vllm"), "serve", MODEL, "--host", "127.0.0.1",
            "--port", str(self.port), "--dtype", "bfloat16", "--max-model-len", str(MODEL_LEN), "--enforce-eager",
            "--served-model-name", MODEL, "--max-num-seqs", str(SLOTS),
            "--max-num-batched-tokens", str(STEP_TOKENS),
        ]  # fmt: skip
        self.spawn(command, environ, self._root / "model")

    def terminate_engine(self) -> None:
        """SIGTERM to the engine process alone, so that it surely comes to abort what it runs before it ends.

        When the API server gets the signal, it kills its engine within milliseconds: sometimes before, sometimes
        after the engine has done so.
        """
        assert self._child is not None
        pid = self._child.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        engines = [child for child in children if "Engine" in Path(f"/proc/{child}/comm").read_text()]
        assert engines, f"no engine among the children of {pid}"
        for engine in engines:
            os.kill(int(engine), signal.SIGTERM)

    def is_healthy(self) -> bool:
        """True when /health is 200."""
        with contextlib.suppress(OSError):
            fetch(f"{self.url}/health", 2.0)
            return True
        return False

    def gauge(self, name: str) -> int:
        """A gauge of /metrics, such as num_requests_running, over all engines."""
        values = re.findall(rf"^vllm:{name}\{{[^}}]*\}} ([0-9.e+]+)$", fetch(f"{self.url}/metrics"), re.MULTILINE)
        assert values, f"no vllm:{name} in /metrics"
        return int(sum(map(float, values)))


class Gslb(Process):
    """`gslb serve` with one endpoint in each of two regions, and clients told apart by X-Forwarded-For."""

    FIRST_BYTE_S, ANSWER_S, BETWEEN_BYTES_S = 15, 30, 5

    def __init__(self, command: str, endpoints: dict[str, str], locations: dict[str, str], logs: Path) -> None:
        super().__init__(logs / "gslb.log")
        self._command = command
        self._directory = logs
        self._access_log = logs / "access.log"
        self.port, self.admin_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        # Two more than the engine has slots: they shall wait in its queue and not here. And a server that was
        # started anew is used at once.
        regions = {
            name: {"location": locations[name], "endpoints": [{"url": url, "capacity": SLOTS + 2}]}
            for name, url in endpoints.items()
        }
        config = {
            "listen": f"127.0.0.1:{self.port}",
            "admin": f"127.0.0.1:{self.admin_port}",
            "workers": 1,
            "geo": {
                "trusted_proxies": ["127.0.0.0/8"],
                "overrides": {"192.0.2.0/24": "Frankfurt, DE", "198.51.100.0/24": "New York, US"},
            },
            "regions": regions,
            "health": {"slow_start": "0s"},
            # Short enough that a silent engine does not hold up the run, and the head is held until its limit.
            "timeouts": {
                "first_byte": f"{self.FIRST_BYTE_S}s", "commit_after": f"{self.FIRST_BYTE_S + 5}s",
                "answer": f"{self.ANSWER_S}s", "between_bytes": f"{self.BETWEEN_BYTES_S}s", "grace": "5s",
            },
            "observability": {"access_log": str(self._access_log)},
        }  # fmt: skip
        (logs / "gslb.yaml").write_text(json.dumps(config, indent=2))  # JSON is YAML

    def start(self) -> None:
        """Begin to serve."""
        self.spawn([self._command, "serve", "-c", str(self._directory / "gslb.yaml")], {}, self._directory)

    def endpoints(self) -> dict[str, dict[str, Any]]:
        """Region -> what the status API says of its endpoint; empty while the admin listener is not there."""
        try:
            status = json.loads(fetch(f"http://127.0.0.1:{self.admin_port}/api/v1/status"))
        except OSError:
            return {}
        return {region["name"]: region["endpoints"][0] for region in status["regions"]}

    def states(self) -> dict[str, str]:
        """Region -> health state of its endpoint, or that its models are not known yet."""
        return {
            name: endpoint["state"] if endpoint["models"] else "no models"
            for name, endpoint in self.endpoints().items()
        }

    def in_flight(self, region: str) -> int:
        """Requests outstanding at the region's endpoint."""
        running: int = self.endpoints()[region]["in_flight"]
        return running

    def records(self) -> list[dict[str, Any]]:
        """The access log so far."""
        if not self._access_log.exists():
            return []
        return [json.loads(line) for line in self._access_log.read_text().splitlines()]

    def record(self, request_id: str) -> dict[str, Any]:
        """The access-log line of one exchange; waits for it. Raises TimeoutError."""
        ends_s = time.monotonic() + 10
        while time.monotonic() < ends_s:
            for record in self.records():
                if record["request_id"] == request_id:
                    return record
            time.sleep(0.05)
        raise TimeoutError(f"no access-log line for {request_id}")
