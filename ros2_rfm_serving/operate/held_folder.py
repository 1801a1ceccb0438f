"""Temporary folder that is removed with its process, however that ends: the next process removes the folder of a killed one."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from pathlib import Path


class HeldFolder:
    """Temporary folder with a lock on the folder itself, which the kernel releases when the process ends.
    A process id would mean nothing in another container. `cleanup()` removes the folder, as does the end of this object."""

    def __init__(self, prefix: str) -> None:
        """Create the folder, and remove this user's folders with the same prefix that no process holds."""
        for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
            lock = _locked(left)
            if lock >= 0:
                _remove(left, lock)
        self.path, lock = _new(prefix)
        self.cleanup = weakref.finalize(self, _remove, self.path, lock)


def _new(prefix: str) -> tuple[Path, int]:
    """Create and lock a folder. Another process may find it before it is locked, and remove it: then a new one is created."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        lock = _locked(folder)
        if lock >= 0 and folder.exists():
            return folder, lock
        if lock >= 0:
            os.close(lock)


def _locked(folder: Path) -> int:
    """Return the lock's file descriptor; -1: another process holds it, or the folder is another user's."""
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
