"""Where kernels that `torch.compile` made are found again by the next start.

PyTorch's own place is in /tmp, which a container, a pod or a unit finds empty.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from ros2_rfm_serving.compiled import cache, is_own

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
"""PyTorch's and, below it, Triton's."""
_log = logging.getLogger(__name__)


def keep_kernels() -> None:
    """From now on, unless the user has said where. What lies there is executed: it stays in PyTorch's place where no folder can be
    made that is this user's alone."""
    if os.environ.get(VARIABLE):
        return
    if made := _made():
        os.environ[VARIABLE] = str(made)


def _made() -> Path | None:
    try:
        folder = cache() / "inductor"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: nobody knows the user's home
        _log.warning("compiled kernels are not kept: %s; say where in %s", error, VARIABLE)
        return None
    if not is_own(folder):
        _log.warning("compiled kernels are not kept: others can write to %s; say where in %s", folder, VARIABLE)
        return None
    return folder
