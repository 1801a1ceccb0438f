"""Location of config/: in the source tree beside the package, or below share/ of the installation that contains the package."""

from __future__ import annotations

from pathlib import Path

from ros2_rfm_serving.errors import ConfigurationError

PACKAGE = Path(__file__).resolve().parent


def shipped(*parts: str, package: Path = PACKAGE) -> Path:
    """Return a file or folder that is part of the project, without using ROS.

    Raises: `ConfigurationError` when it is not found.
    """
    roots = [package.parent, *(folder / "share" / "rfm_serving" for folder in package.parents)]
    for root in roots:
        found = root.joinpath(*parts)
        if (root / "config" / "profiles").is_dir() and found.exists():
            return found
    problem = f"{'/'.join(parts)} is not where rfm_serving is installed ({package.parent})"
    raise ConfigurationError(problem, fix="install it anew, or name the file yourself")
