"""Machine of the measurements of a reproduction."""

from __future__ import annotations

import os
import platform

from ros2_rfm_serving.processor import processor


def this_machine() -> dict[str, str]:
    """Return the machine and its load."""
    load = f"{os.getloadavg()[0]:.0f}"
    return {"processor": processor(), "cores": str(os.cpu_count()), "python": platform.python_version(), "load": load}
