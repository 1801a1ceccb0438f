"""Versions of the software: only equal versions repeat arithmetic bit by bit."""

from __future__ import annotations

import functools
import importlib.metadata
import platform

import numpy as np


@functools.cache
def versions() -> dict[str, str]:
    try:
        package = importlib.metadata.version("ros2-rfm-serving")
    except importlib.metadata.PackageNotFoundError:  # the package is not installed, such as in a source checkout
        package = "unknown"
    return {
        "package": package,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": platform.machine(),
    }


def differences(recorded: dict[str, str]) -> list[str]:
    """Return the differences from this process's versions, for people."""
    here = versions()
    names = {**recorded, **here}
    return [
        f"{name} {recorded.get(name, '?')}, here {here.get(name, '?')}" for name in names if recorded.get(name) != here.get(name)
    ]
