"""Names of the folders of incidents, and removal of old ones."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

from ros2_rfm_serving.audit.folder_lock import FolderLock
from ros2_rfm_serving.audit.recording.incidents import Cause
from ros2_rfm_serving.errors import RfmError

NAMED = re.compile(r"\d{8}-\d{6}_\w+")


def folder_name(cause: Cause, stamp_s: float) -> str:
    """Return the name of an incident's folder, such as `20261122-140312_server_lost_server_1`."""
    at = time.strftime("%Y%m%d-%H%M%S", time.localtime(stamp_s))
    return re.sub(r"[^\w-]", "_", "_".join(part for part in (at, cause.kind, cause.who) if part))


def prune(folder: Path, keep_bytes: int, keep_s: float, now_s: float) -> list[str]:
    """Remove the oldest incidents beyond the limits (0: none), never the newest, and return their names. now_s: since 1970.

    Age is that of their files: where clocks are set back, names of the second hour come before those of the first.
    """
    named = [one for one in folder.iterdir() if one.is_dir() and not one.is_symlink() and NAMED.fullmatch(one.name)]
    changed_s = {one: max(file.stat().st_mtime for file in [one, *one.iterdir()]) for one in named}
    there = sorted(named, key=lambda one: (changed_s[one], one.name))
    sizes = {one: sum(file.stat().st_size for file in one.iterdir()) for one in there}
    gone = []
    for one in there[:-1]:
        if _is_written(one):
            continue
        too_old = 0 < keep_s < now_s - changed_s[one]
        if not (too_old or 0 < keep_bytes < sum(sizes.values())):
            break
        shutil.rmtree(one)
        del sizes[one]
        gone.append(one.name)
    return gone


def _is_written(folder: Path) -> bool:
    """Return whether another flight recorder writes to the folder, because its incident goes on."""
    try:
        FolderLock(folder).release()
    except RfmError:
        return True
    return False
