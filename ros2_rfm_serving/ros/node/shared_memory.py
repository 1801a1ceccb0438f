"""Shared memory of Fast DDS, and what killed processes have left of it.

A killed process leaves its ports, and others go on writing to them until they notice. Fast DDS checks for that by the wall clock:
when it has been set back, the check waits until it has caught up, and a process that took such a port meanwhile would receive
nothing from those that have it open. So a process of this package takes another port (`dead_ports_left_alone`).
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

SHM, PROCESSES = Path("/dev/shm"), Path("/proc")
SEGMENT = re.compile(r"(fast(?:dds|rtps)_(?:port\d+|[0-9a-f]{16}))(?:_el|_sl)?$")
_UNICAST = re.compile(r"(fastdds_port(\d+))_el$")
PORT_BASE, DOMAIN_GAIN, FIRST_UNICAST = 7400, 250, 10
"""Ports of a domain by RTPS 9.6.2.3, of which the first ones are shared."""


@contextmanager
def dead_ports_left_alone(domain: int, shm: Path = SHM, processes: Path = PROCESSES) -> Iterator[None]:
    """Keep a new participant from taking ports of killed processes; enclose its creation in this context.

    Ports of this domain whose owners were killed, and which a live process has mapped, appear taken. Ports that no process has
    mapped may be used again."""
    first = PORT_BASE + DOMAIN_GAIN * domain
    with ExitStack() as held:
        dead = {}
        for lock in _files(shm):
            if (match := _UNICAST.match(lock.name)) and first + FIRST_UNICAST <= int(match[2]) < first + DOMAIN_GAIN:
                owner = ExitStack()
                if _is_free(lock, owner):
                    dead[match[1]] = held.enter_context(owner)
        for name in set(dead) - (mapped(processes) if dead else set()):
            dead[name].close()
        yield


def mapped(processes: Path) -> set[str]:
    """Return the segments that processes have mapped, as far as this user may read their maps."""
    found: set[str] = set()
    for maps in processes.glob("[0-9]*/maps"):
        try:
            lines = maps.read_text(errors="replace").splitlines()
        except OSError:  # ended meanwhile, or another user's
            continue
        found |= {match[1] for line in lines if (match := SEGMENT.search(line.rpartition("/")[2]))}
    return found


def _files(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _is_free(lock: Path, holder: ExitStack) -> bool:
    """Return whether a lock's owner is dead.
    The lock is then held, shared with other processes of this package that start at this moment, until `holder` is closed."""
    try:
        file = os.open(lock, os.O_RDONLY | os.O_NONBLOCK)  # non-blocking, in case it is a pipe: any user could put one there
        holder.callback(os.close, file)
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # alive, another user's, or gone
        return False
    return True
