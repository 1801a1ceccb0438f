"""Who writes to the folder of a recording: one at a time. The lock goes with its process, however that ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from ros2_rfm_serving.errors import RfmError


class FolderLock:
    """Held from the start until `release`. A file system without locks (some of a network) has none, and nobody is kept out."""

    def __init__(self, folder: Path) -> None:
        """Raises: `RfmError`: somebody else has it. `OSError`: there is no such folder."""
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
