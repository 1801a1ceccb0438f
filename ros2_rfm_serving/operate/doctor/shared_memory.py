"""Shared memory of Fast DDS left by killed processes: it occupies memory, and an incomplete port separates later processes."""

from __future__ import annotations

import fcntl
import re
from pathlib import Path

from ros2_rfm_serving.operate.doctor.finding import Finding, Verdict
from ros2_rfm_serving.ros.node.shared_memory import PROCESSES, SEGMENT, SHM, mapped

_MUTEX = re.compile(r"sem\.(fast(?:dds|rtps)_port\d+)_mutex$")
"""Semaphore of a port."""


def leftovers(folder: Path = SHM, processes: Path = PROCESSES) -> Finding:
    part = "Fast DDS shared memory"
    dead, half_made = left_behind(folder, processes)
    if not dead and not half_made:
        return Finding(part=part, verdict=Verdict.OK, found="nothing left behind by killed processes")
    names = sorted(half_made)
    found = f"{len(dead)} segments of processes that have ended" + (f", half-made: {', '.join(names)}" if names else "")
    remove = " ".join(f"{name} {name}_?l sem.{name}_mutex" for name in names)
    cures = [*(["fastdds shm clean"] if dead else []), *([f"cd {folder} && rm -f {remove}"] if names else [])]
    return Finding(part=part, verdict=Verdict.NOTE, found=found, fix="; ".join(cures))


def left_behind(folder: Path, processes: Path) -> tuple[set[str], set[str]]:
    """Return (segments that no process has open any more, incomplete segments)."""
    try:
        names = {file.name for file in folder.iterdir()}
    except OSError:
        return set(), set()
    segments = {match[1] for name in names if (match := SEGMENT.match(name))} | {
        m[1] for name in names if (m := _MUTEX.match(name))
    }
    dead = segments - mapped(processes) - {name for name in segments if _locked(folder, name)}
    half_made = {name for name in dead if not _size(folder / name)}
    return dead - half_made, half_made


def _locked(folder: Path, name: str) -> bool:
    """Return whether a segment's owner lives: it holds a lock on a file beside the segment."""
    for lock in (folder / f"{name}_el", folder / f"{name}_sl"):
        try:
            with lock.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            continue
        except OSError:  # locked, or another user's, which is not to be cleaned
            return True
    return False


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
