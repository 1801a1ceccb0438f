"""A temporary folder that goes with its process, however that ends: what a killed one left behind the next one removes."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from pathlib import Path


class HeldFolder:
    """Held by a lock on the folder itself, which the kernel lets go of when the process ends; a process id would say nothing to one
    in another container. `cleanup()` removes it, as does the end of this object."""

    def __init__(self, prefix: str) -> None:
        """Removes those of the same prefix, and of this user, that nobody holds."""
        for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
            lock = _locked(left)
            if lock >= 0:
                _remove(left, lock)
        self.path, lock = _new(prefix)
        self.cleanup = weakref.finalize(self, _remove, self.path, lock)


def _new(prefix: str) -> tuple[Path, int]:
    """Another process may find it before it is locked, and remove it: then there is another."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        lock = _locked(folder)
        if lock >= 0 and folder.exists():
            return folder, lock
        if lock >= 0:
            os.close(lock)


def _locked(folder: Path) -> int:
    """The lock's file descriptor; -1: somebody holds it, or it is none of ours."""
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return -1
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(opened)
        return -1
    return opened


def _remove(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)
