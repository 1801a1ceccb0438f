"""Fast DDS's shared memory, and what killed processes left of it.

A killed process leaves its ports, and others go on writing to them until they notice. Fast DDS looks for that by the wall clock:
when it has been set back, nobody looks until it has caught up, and whoever took such a port meanwhile would hear nothing of those
who have it open. So a process of ours takes another one (`dead_ports_left_alone`).
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
"""RTPS 9.6.2.3: ports of a domain, of which the first are for everybody."""


@contextmanager
def dead_ports_left_alone(domain: int, shm: Path = SHM, processes: Path = PROCESSES) -> Iterator[None]:
    """Around the creation of a participant: it finds the ports of this domain taken whose owners were killed and which a living
    process has in its memory. Those that nobody has any more may be used again."""
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
    """Segments that a process has in its memory, of the processes that we may look at."""
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
    """Nobody holds it: its owner is dead. Held then, together with others of ours who start just now, until `holder` is closed."""
    try:
        file = os.open(lock, os.O_RDONLY | os.O_NONBLOCK)  # which waits for nobody if it is a pipe: anybody could put one there
        holder.callback(os.close, file)
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # alive, another user's, or gone
        return False
    return True
