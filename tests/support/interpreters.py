"""What other interpreters say: hashes of strings differ from one to the next, and what edges share must not."""

from __future__ import annotations

import subprocess
import sys


def printed_elsewhere(code: str) -> set[str]:
    """What `code` prints in two fresh interpreters whose string hashes differ."""
    return {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, check=True, text=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
