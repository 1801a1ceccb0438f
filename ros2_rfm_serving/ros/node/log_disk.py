"""Is there room for what a process logs? It goes on without: what cannot be written is lost, and `/diagnostics` says so."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from ros2_rfm_serving.types.process_problems import LOG_DISK_FULL, LOG_DISK_SILENT

LEAST_BYTES = 1 << 20
"""Free of the file system: below it is as good as full, and whoever reads of it has a moment left."""
PATIENCE = 5
"""Looks without an answer."""


class LogDisk:
    """Of one folder, which may be another machine's: it is asked on a thread of its own, since a file server that hangs would hold
    up a robot's control period for as long."""

    def __init__(self, folder: Path) -> None:
        self.is_full = False
        self.times_full = 0
        self._folder = folder
        self._free_bytes = LEAST_BYTES
        self._unanswered = 0
        self._asking: threading.Thread | None = None

    @staticmethod
    def of_process() -> LogDisk | None:
        """Where ROS writes its logs; None: nobody has said where."""
        return LogDisk(Path(folder)) if (folder := os.environ.get("ROS_LOG_DIR")) else None

    def look(self) -> None:
        """At what was answered since the last look, and asks again. Never waits."""
        if self._asking and self._asking.is_alive():
            self._unanswered += 1
            return
        was_full, self.is_full = self.is_full, self._free_bytes < LEAST_BYTES
        self.times_full += self.is_full and not was_full
        self._unanswered = 0
        self._asking = threading.Thread(target=self._ask, name="log_disk", daemon=True)
        self._asking.start()

    def figures(self) -> dict[str, object]:
        """None as long as there was always room."""
        return {"log disk full, times": self.times_full} if self.times_full else {}

    @property
    def problems(self) -> dict[str, str]:
        """By kind; empty: there is room."""
        if self._unanswered >= PATIENCE:
            return {LOG_DISK_SILENT: f"no answer from the disk of {self._folder}: whoever logs may wait for it"}
        full = {LOG_DISK_FULL: f"no room for logs in {self._folder}: what is said there is lost"}
        return full if self.is_full else {}

    def _ask(self) -> None:
        try:
            room = os.statvfs(self._folder)
        except OSError:  # not made yet, or not there any more: ROS makes it where it can
            self._free_bytes = LEAST_BYTES
        else:
            self._free_bytes = room.f_bavail * room.f_frsize
