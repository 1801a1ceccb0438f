"""Name of the processor of this machine."""

from __future__ import annotations

import platform
from pathlib import Path


def processor() -> str:
    """Return the processor's name as Linux reports it; on other systems, the name of the instruction set."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
