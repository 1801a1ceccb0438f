"""The machine that a reproduction measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def this_machine() -> dict[str, str]:
    """And how much else ran on it."""
    load = f"{os.getloadavg()[0]:.0f}"
    return {"processor": processor(), "cores": str(os.cpu_count()), "python": platform.python_version(), "load": load}


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
