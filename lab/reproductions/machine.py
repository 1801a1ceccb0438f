"""The machine that a reproduction measured on."""

from __future__ import annotations

import os
import platform

from ros2_rfm_serving.processor import processor


def this_machine() -> dict[str, str]:
    """And how much else ran on it."""
    load = f"{os.getloadavg()[0]:.0f}"
    return {"processor": processor(), "cores": str(os.cpu_count()), "python": platform.python_version(), "load": load}
