"""Where kernels that `torch.compile` made are found again by the next start.

PyTorch's own place is in /tmp, which a container, a pod or a unit finds empty.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from ros2_rfm_serving.compiled import own_folder

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
"""PyTorch's and, below it, Triton's."""
_log = logging.getLogger(__name__)


def keep_kernels() -> None:
    """From now on, unless the user has said where. What lies there is executed: it stays in PyTorch's place where no folder can be
    made that is this user's alone."""
    said = os.environ.get(VARIABLE)
    if said and said != _of_pytorch():
        return
    try:
        os.environ[VARIABLE] = str(own_folder("inductor"))
    except (OSError, RuntimeError) as error:
        _log.warning("compiled kernels are not kept: %s; say where in %s", error, VARIABLE)


def _of_pytorch() -> str:
    """Which PyTorch writes into the variable itself as soon as its compiler is imported."""
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    return str(Path(default_cache_dir()).absolute())
