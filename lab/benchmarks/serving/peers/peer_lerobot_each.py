"""`peer_lerobot_jpeg` with a server per robot, on consecutive ports: each server of LeRobot keeps one observation.

The servers are forks of one process, which start sooner and share memory that servers started one by one would not.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

import peer_lerobot_jpeg

ROBOTS = "LEROBOT_ROBOTS"
"""Environment variable with the largest number of clients."""
_next = itertools.count()


def serve(infer: Callable[..., Any], port: int, ready: Callable[[], None]) -> None:
    ports = range(port, port + int(os.environ[ROBOTS]))
    for own in ports:
        if os.fork() == 0:
            peer_lerobot_jpeg.serve(infer, own, lambda: None)
            os._exit(0)
    for own in ports:
        while not _listens(own):
            time.sleep(0.05)
    ready()
    signal.pause()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def connect(port: int, images: dict[str, bytes]) -> Callable[[Any], Any]:
    return peer_lerobot_jpeg.connect(port + next(_next), images)
