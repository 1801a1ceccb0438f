"""The processor that this runs on."""

from __future__ import annotations

import platform
from pathlib import Path


def processor() -> str:
    """Its name as Linux has it, elsewhere the instruction set's."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
