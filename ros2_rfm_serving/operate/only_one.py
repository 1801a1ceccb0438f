"""Lock that allows one `rfm up` of the same part of a factory on a machine.

Two would start every node twice; the second of each would end by its name, and be given up. The lock reports the other process
before anything is started.
"""

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
"""Network namespace: hosts that are emulated on one machine have one each."""


@contextmanager
def only_one(part: tuple[str, ...], logs: Path, folder: Path | None = None) -> Iterator[None]:
    """Hold the lock. part: ROS domain, namespace, DDS partition and host, whose nodes would meet. The kernel releases the lock
    when the process ends, however that happens; processes of another user are unknown here. Raises: `ConfigurationError`."""
    file = (folder or Path(tempfile.gettempdir())) / _name(part)
    try:
        held = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError:  # there is no place for the file; names on the graph still protect
        yield
        return
    try:
        _take(held, part)
        os.ftruncate(held, 0)
        os.pwrite(held, json.dumps({"process": os.getpid(), "logs": str(logs.absolute())}).encode(), 0)
        yield
    finally:
        os.close(held)  # never removed: a waiting process would hold a file that no other finds


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
