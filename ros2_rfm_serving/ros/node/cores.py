"""CPU affinity of a process, on Linux alone."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Set
from pathlib import Path

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.cores import cores_text

FIX = "name cores that this machine has and this process may use, such as"


def keep_to(cores: Set[int]) -> None:
    """Pin all threads of this process, and those that they start, to these cores. An empty set changes nothing.
    Raises: `ConfigurationError` when a core does not exist or is not available to this process (a container's `cpuset`)."""
    if not cores:
        return
    if not sys.platform.startswith("linux"):
        raise ConfigurationError("cores are chosen on Linux alone", key="cores", fix="leave it empty")
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cores)
        missing = cores - os.sched_getaffinity(0)  # the kernel silently ignores cores that it does not have
    except OSError:
        missing = set(cores)
    if missing:
        os.sched_setaffinity(0, before)
        raise ConfigurationError(f"there is no core {cores_text(missing)} for it", key="cores", fix=f"{FIX} {cores_text(before)}")
    for thread in Path("/proc/self/task").iterdir():  # the middleware has started some by now
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cores)
