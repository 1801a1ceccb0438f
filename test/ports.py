"""TCP ports that others are told to listen at."""

from __future__ import annotations

import random
import socket
from pathlib import Path

LOWEST = 20_000
_HELD: dict[int, socket.socket] = {}
"""Port -> what keeps every other process that asks here away from it, until this one ends."""


def free_port(address: str = "127.0.0.1") -> int:
    """That nobody else is given before somebody listens there: no other test, and, below those that the kernel gives to
    connections, no connection either."""
    lowest_of_kernel = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in random.SystemRandom().sample(range(LOWEST, max(lowest_of_kernel, LOWEST + 1000)), 1000):
        if port not in _HELD and _is_free(address, port) and (held := _hold(port)):
            _HELD[port] = held
            return port
    raise AssertionError("no port is free")


def _is_free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def _hold(port: int) -> socket.socket | None:
    held = socket.socket(socket.AF_UNIX)
    try:
        held.bind(f"\0rfm_test_port_{port}")
    except OSError:
        held.close()
        return None
    return held
