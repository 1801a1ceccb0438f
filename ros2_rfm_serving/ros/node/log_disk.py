"""Is there room for what a process logs? It goes on without: what cannot be written is lost, and `/diagnostics` says so."""

from __future__ import annotations

import os
from pathlib import Path

LEAST_BYTES = 1 << 20
"""Free of the file system: below it is as good as full, and whoever reads of it has a moment left."""


class LogDisk:
    """Of one folder."""

    def __init__(self, folder: Path) -> None:
        self.is_full = False
        self.times_full = 0
        self._folder = folder

    @staticmethod
    def of_process() -> LogDisk | None:
        """Where ROS writes its logs; None: nobody has said where."""
        return LogDisk(Path(folder)) if (folder := os.environ.get("ROS_LOG_DIR")) else None

    def look(self) -> None:
        was_full, self.is_full = self.is_full, self._free_bytes() < LEAST_BYTES
        self.times_full += self.is_full and not was_full

    def figures(self) -> dict[str, object]:
        """None as long as there was always room."""
        return {"log disk full, times": self.times_full} if self.times_full else {}

    @property
    def problem(self) -> str:
        """Empty: there is room."""
        return f"no room for logs in {self._folder}: what is said there is lost" if self.is_full else ""

    def _free_bytes(self) -> int:
        try:
            room = os.statvfs(self._folder)
        except OSError:  # not made yet, or not there any more: ROS makes it where it can
            return LEAST_BYTES
        return room.f_bavail * room.f_frsize
