"""Usage of the file system that holds logs and recordings."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple


class Usage(NamedTuple):
    """Total and free space, in bytes."""

    total: int
    free: int


def disk_usage(folder: Path) -> Usage:
    """Return the usage of the file system of `folder`, or of where it would be made."""
    folder = folder.resolve()
    found = shutil.disk_usage(next(there for there in (folder, *folder.parents) if there.exists()))
    return Usage(found.total, found.free)
