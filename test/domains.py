"""ROS domains in turns: nobody has one that somebody else's participant of a moment ago may linger in."""

from __future__ import annotations

import itertools
import os

WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
"""Of one run of pytest: each has domains of its own. `domain_coordinator` keeps those of other runs away while they have one."""

_TURNS = itertools.cycle(range(1 + WORKER % WORKERS, 101, WORKERS))


def next_domain() -> int:
    """For `domain_id`, as its selector."""
    return next(_TURNS)
