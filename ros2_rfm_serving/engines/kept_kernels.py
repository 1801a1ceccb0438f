"""Where kernels that `torch.compile` made are found again by the next start.

PyTorch's own place is in /tmp, which a container, a pod or a unit finds empty.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from ros2_rfm_serving.compiled import own_folder

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
"""PyTorch's and, below it, Triton's."""
LEAST_FREE_BYTES = 256 << 20
"""Some times what a model's kernels take: a disk that is full ends the compilation."""
_log = logging.getLogger(__name__)


def keep_kernels() -> None:
    """From now on, unless the user has said where. What lies there is executed: it stays in PyTorch's place where no folder can be
    made that is this user's alone, nor written to."""
    said = os.environ.get(VARIABLE)
    if said and said != _of_pytorch():
        return
    try:
        folder = own_folder("inductor")
        _require_room(folder)
        _forget_torn(folder)
        os.environ[VARIABLE] = str(folder)
    except (OSError, RuntimeError) as error:
        _log.warning("compiled kernels are not kept: %s; say where in %s", error, VARIABLE)


def _require_room(folder: Path) -> None:
    """PyTorch compiles nothing where it cannot write what comes of it. Raises: `OSError`."""
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "cannot be written to", str(folder))
    if (free := shutil.disk_usage(folder).free) < LEAST_FREE_BYTES:
        raise OSError(errno.ENOSPC, f"{free >> 20} MiB are free, {LEAST_FREE_BYTES >> 20} the least", str(folder))


def _forget_torn(folder: Path) -> None:
    """A machine that lost its power leaves empty files of what was written last, and with one of them each start fails alike. With
    it goes what lies beside it and is as old: parts of one kernel. What others write meanwhile is younger. Raises: `OSError`."""
    booted_s = time.clock_gettime(time.CLOCK_REALTIME) - time.clock_gettime(time.CLOCK_BOOTTIME)
    for place, _, names in os.walk(folder):
        sizes: dict[Path, int] = {}
        for file in (Path(place, name) for name in names if not name.endswith(".lock")):
            with suppress(FileNotFoundError):  # others' scratch
                about = file.stat()
                if about.st_mtime < booted_s:
                    sizes[file] = about.st_size
        if 0 in sizes.values():
            for file in sizes:
                file.unlink(missing_ok=True)


def _of_pytorch() -> str:
    """Which PyTorch writes into the variable itself as soon as its compiler is imported."""
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    return str(Path(default_cache_dir()).absolute())
