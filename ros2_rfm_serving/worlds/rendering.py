"""Libraries that a machine needs for simulated cameras, which draw off screen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ros2_rfm_serving.errors import ConfigurationError

RENDERER_PACKAGES = "libegl1 libgl1 libgles2 libgl1-mesa-dri libegl-mesa0 libglx-mesa0"
"""Packages of Debian and Ubuntu that draw off screen without a GPU."""
RENDERER_FIX = f"sudo apt-get install {RENDERER_PACKAGES} (or set MUJOCO_GL=osmesa, with libosmesa6); `rfm doctor` tries it"


@contextmanager
def drawing_off_screen() -> Iterator[None]:
    """Name the fix where a library that draws is missing or broken. Raises: `ConfigurationError`."""
    try:
        yield
    except ModuleNotFoundError:  # a missing package of Python has a fix of its own
        raise
    except Exception as error:  # any exception of a system library, including mujoco's own
        raise ConfigurationError(f"nothing can be drawn off screen: {error}", key="MUJOCO_GL", fix=RENDERER_FIX) from error
