"""Folders and files for their owner alone, whatever the umask: recordings have camera images, and logs have people's prompts."""

from __future__ import annotations

import os
from pathlib import Path

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700


def private_folder(folder: Path) -> None:
    """Create a folder and its missing parents for their owner alone. A folder that exists keeps its mode.

    Raises: `OSError`.
    """
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    folder.mkdir(exist_ok=True)


def private(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file that only its owner can read if it is created: an `opener` of `open`."""
    return os.open(path, flags, PRIVATE_FILE)
