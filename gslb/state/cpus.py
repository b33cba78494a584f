"""How many CPUs this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def usable_cpus() -> int:
    """CPUs this process may run on, and no more than its control group's share of time amounts to (cgroup v2's
    cpu.max, rounded up): a container limited to two CPUs of a large machine has two. At least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([allowed, *_quotas()]))


def _quotas() -> list[int]:
    found = []
    for directory in {_own_group(), _CGROUPS}:
        try:
            quota, period = (directory / "cpu.max").read_text().split()
            found.append(math.ceil(int(quota) / int(period)))
        except (OSError, ValueError, ZeroDivisionError):
            continue  # no such control group, or `max`: no limit
    return found


def _own_group() -> Path:
    try:
        (line,) = (line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    except (OSError, ValueError):
        return _CGROUPS
    return _CGROUPS / line[3:].lstrip("/")
