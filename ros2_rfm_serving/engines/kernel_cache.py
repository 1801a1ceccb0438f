"""Cache folder of the kernels that `torch.compile` makes, so that the next start finds them.

PyTorch's own folder is in /tmp, which is empty at the start of a container, a pod or a unit.
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
"""Environment variable of PyTorch and, below its folder, of Triton."""
LEAST_FREE_BYTES = 256 << 20
"""Least free disk space in bytes, several times the size of a model's kernels: a full disk ends the compilation."""
_log = logging.getLogger(__name__)


def use_kernel_cache() -> None:
    """Keep kernels in a folder of this user from now on, unless the user has set one. The content of the folder is executed.
    So kernels stay in PyTorch's own folder if no folder can be made that belongs to this user alone and can be written to."""
    said = os.environ.get(VARIABLE)
    if said and said != _of_pytorch():
        return
    try:
        folder = own_folder("inductor")
        _require_disk_space(folder)
        _remove_incomplete(folder)
        os.environ[VARIABLE] = str(folder)
    except (OSError, RuntimeError) as error:
        _log.warning("compiled kernels are not kept: %s; say where in %s", error, VARIABLE)


def _require_disk_space(folder: Path) -> None:
    """Check that kernels can be written, as PyTorch compiles nothing otherwise.
    Raises: `OSError` if the disk is full or read-only."""
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "cannot be written to", str(folder))
    if (free := shutil.disk_usage(folder).free) < LEAST_FREE_BYTES:
        raise OSError(errno.ENOSPC, f"{free >> 20} MiB are free, {LEAST_FREE_BYTES >> 20} the least", str(folder))


def _remove_incomplete(folder: Path) -> None:
    """Remove kernels that a power failure left incomplete.

    Files that were written last are empty then, and with one of them each start fails alike. Files beside it that are as old are
    parts of the same kernel, and are removed too. Files that other processes write meanwhile are younger. Raises: `OSError`.
    """
    booted_s = time.clock_gettime(time.CLOCK_REALTIME) - time.clock_gettime(time.CLOCK_BOOTTIME)
    for place, _, names in os.walk(folder):
        sizes: dict[Path, int] = {}
        for file in (Path(place, name) for name in names if not name.endswith(".lock")):
            with suppress(FileNotFoundError):  # temporary files of other processes
                about = file.stat()
                if about.st_mtime < booted_s:
                    sizes[file] = about.st_size
        if 0 in sizes.values():
            for file in sizes:
                file.unlink(missing_ok=True)


def _of_pytorch() -> str:
    """Return PyTorch's own folder, which it writes into the variable itself as soon as its compiler is imported."""
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    return str(Path(default_cache_dir()).absolute())
