"""One `rfm up` of the same part of a factory on a machine. Two would start every node twice, of which the second ends by its name,
and be given up: this one says who is there, before anything is started."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ros2_rfm_serving.errors import ConfigurationError

PREFIX = "rfm_up_"
NETWORK = Path("/proc/self/ns/net")
"""Hosts that are emulated on one machine have a network each."""


@contextmanager
def only_one(part: tuple[str, ...], logs: Path, folder: Path | None = None) -> Iterator[None]:
    """part: ROS domain, namespace, DDS partition and host: whose nodes would meet. The kernel lets go of it when the process ends,
    however that happens; of processes of another user nothing is known here. Raises: `ConfigurationError`."""
    file = (folder or Path(tempfile.gettempdir())) / _name(part)
    try:
        held = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError:  # there is no place for it; names on the graph are left
        yield
        return
    try:
        _take(held, part)
        os.ftruncate(held, 0)
        os.pwrite(held, json.dumps({"process": os.getpid(), "logs": str(logs.absolute())}).encode(), 0)
        yield
    finally:
        os.close(held)  # and never removed: whoever waits for it would hold one that nobody finds


def _take(held: int, part: tuple[str, ...]) -> None:
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        domain, _, _, host = part
        what = f"rfm up --host {host}" if host else "rfm up"
        problem = f"{what} runs on this machine already, in ROS domain {domain}: {_told(held)}"
        fix = "end that one first (SIGINT ends it in order), or choose another --domain or --namespace"
        raise ConfigurationError(problem, key="--host" if host else "", fix=fix) from None


def _told(held: int) -> str:
    try:
        told = json.loads(os.pread(held, 1 << 16, 0))
        return f"process {told['process']}, logs in {told['logs']}"
    except (OSError, ValueError, TypeError, KeyError):  # it has just begun
        return "its process has not said yet who it is"


def _name(part: tuple[str, ...]) -> str:
    try:
        network = NETWORK.stat().st_ino
    except OSError:
        network = 0
    key = json.dumps([*part, network]).encode()
    return f"{PREFIX}{os.getuid()}_{hashlib.sha256(key).hexdigest()[:16]}"
