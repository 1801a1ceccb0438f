"""Disk space for the logs of a process.

The process continues without: what cannot be written is lost, and `/diagnostics` shows it.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from ros2_rfm_serving.types.process_problems import LOG_DISK_FULL, LOG_DISK_SILENT

LEAST_BYTES = 1 << 20
"""Free space below which the file system counts as full, so that a reader of the warning has a moment left."""
PATIENCE = 5
"""Number of polls without an answer."""


class LogDisk:
    """Free space of one folder. A thread of its own asks for it: the folder may be on another machine, whose file server may
    hang, which would block a robot's control period."""

    def __init__(self, folder: Path) -> None:
        self.is_full = False
        self.times_full = 0
        self._folder = folder
        self._free_bytes = LEAST_BYTES
        self._unanswered = 0
        self._asking: threading.Thread | None = None

    @staticmethod
    def of_process() -> LogDisk | None:
        """Return the monitor of the folder of ROS' logs; None: the environment names none."""
        return LogDisk(Path(folder)) if (folder := os.environ.get("ROS_LOG_DIR")) else None

    def look(self) -> None:
        """Evaluate the last answer and ask again; never blocks."""
        if self._asking and self._asking.is_alive():
            self._unanswered += 1
            return
        was_full, self.is_full = self.is_full, self._free_bytes < LEAST_BYTES
        self.times_full += self.is_full and not was_full
        self._unanswered = 0
        self._asking = threading.Thread(target=self._ask, name="log_disk", daemon=True)
        self._asking.start()

    def figures(self) -> dict[str, object]:
        """Return the diagnostics values; empty while there has always been space."""
        return {"log disk full, times": self.times_full} if self.times_full else {}

    @property
    def problems(self) -> dict[str, str]:
        """Problems by kind; empty: there is space."""
        if self._unanswered >= PATIENCE:
            return {LOG_DISK_SILENT: f"no answer from the disk of {self._folder}: whoever logs may wait for it"}
        full = {LOG_DISK_FULL: f"no room for logs in {self._folder}: what is said there is lost"}
        return full if self.is_full else {}

    def _ask(self) -> None:
        try:
            room = os.statvfs(self._folder)
        except OSError:  # not created yet, or removed: ROS creates it where it can
            self._free_bytes = LEAST_BYTES
        else:
            self._free_bytes = room.f_bavail * room.f_frsize
