"""Commands that start a node's process."""

from __future__ import annotations

import sys
from pathlib import Path

import ros2_rfm_serving
from ros2_rfm_serving.errors import ConfigurationError

SITE = Path(ros2_rfm_serving.__path__[0]).absolute().parent
"""Folder from which this package is imported."""


def command_of(executable: str) -> list[str]:
    """Return the installed executable, as ROS finds it; from a checkout, the checkout's own module.
    Either way a node runs the code that `rfm` runs. Raises: `ConfigurationError`."""
    if not is_installed():
        module = ["ros2_rfm_serving.cli"] if executable == "rfm" else ["ros2_rfm_serving.ros.executables", executable]
        return [sys.executable, "-m", *module]
    from ros2_rfm_serving.ros.node.runtime import share

    file = share().parents[1] / "lib" / "rfm_serving" / executable
    if not file.is_file():
        raise ConfigurationError(f"{file} is missing", fix="install rfm_serving anew")
    return [str(file)]


def is_installed(site: Path = SITE) -> bool:
    """Return whether the package is installed: only an installation has the interfaces beside it."""
    return (site / "rfm_serving" / "msg").is_dir()
