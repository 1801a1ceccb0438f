"""Lock on the folder of a recording, for one writer at a time. The operating system releases it with its process."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from ros2_rfm_serving.errors import RfmError


class FolderLock:
    """Lock from construction until `release`. It has no effect on file systems without locks, such as some network file systems."""

    def __init__(self, folder: Path) -> None:
        """Acquire the lock. Raises: `RfmError` when another process has it; `OSError` when the folder does not exist."""
        self._file: int | None = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise RfmError(f"{folder}: a recorder writes to it; end that one first, or name another folder") from None
        except OSError:
            self.release()

    def release(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)
