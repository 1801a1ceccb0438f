"""Ray actor: the owner of one node's process. The module itself does not use Ray."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from typing import NamedTuple

from ros2_rfm_serving.operate.held_folder import HeldFolder
from ros2_rfm_serving.operate.on_ray.errand import Errand
from ros2_rfm_serving.operate.supervisor import Supervisor
from ros2_rfm_serving.ros.node.process import EXIT_CONFIGURATION

PREFIX = "rfm_ray_"
RESTART_S = 2.0
"""Time from the node's end to this process', after which Ray starts another: it prevents a loop, and leaves time to report."""
LOOK_S = 0.2
"""Period of polling whether the process, and the parent of this one, are alive."""
MOST_BYTES = 1 << 18
"""Maximum number of bytes of the log that are read at a time."""


class Look(NamedTuple):
    """State of the process."""

    life: str
    """Random name of this owner: another one after each restart."""
    machine: str
    pid: int
    age_s: float
    code: int | None
    """Exit code; None: it runs."""
    log: str
    """Text written since the last poll."""
    read: int
    """Number of bytes read in total."""


class NodeActor:
    """Owner that starts the node's process when it is created, and shares its fate.

    The kernel signals the process when its owner is gone, and with it the machine's part of Ray or all of it; and the owner ends
    when the process does, so that Ray starts both again, here or elsewhere. Only a process with an invalid configuration, or one
    that is ended in order, leaves its owner there to report that. All methods are called on the main thread, which starts the
    process: the kernel's signal depends on that thread."""

    def __init__(self, errand: Errand) -> None:
        self._parent, self._folder = os.getppid(), HeldFolder(PREFIX)
        node = errand.put(self._folder.path)
        self._keeper = Supervisor([node], self._folder.path, fleet_namespace=errand.fleet_namespace, log_level=errand.log_level)
        self._keeper.start()
        (self._process,) = self._keeper.processes
        assert self._process.running is not None
        self._child, self._life, self._is_ending = self._process.running, secrets.token_hex(4), threading.Event()
        threading.Thread(target=self._end_with_process, name="end_with_process", daemon=True).start()

    def look(self, life: str = "", read: int = 0) -> Look:
        """Return the state. life, read: of the last poll; text until then is not returned again."""
        with self._process.log.open("rb") as log:
            log.seek(read if life == self._life else 0)
            written = log.read(MOST_BYTES)
            read = log.tell()
        text = written.decode(errors="replace")
        print(text, end="", flush=True)  # Ray keeps what an actor prints
        age_s = time.monotonic() - self._process.started_s
        return Look(self._life, socket.gethostname(), self._child.pid, age_s, self._child.poll(), text, read)

    def end(self, life: str = "", read: int = 0) -> tuple[bool, Look]:
        """End the process in order; return whether it had to be killed, and its last state."""
        self._is_ending.set()
        killed = bool(self._keeper.stop())
        last = self.look(life, read)
        self._folder.cleanup()
        return killed, last

    def _end_with_process(self) -> None:
        while (code := self._child.poll()) is None:
            if os.getppid() != self._parent:  # Ray's own processes may survive their node's part of Ray
                os._exit(1)
            time.sleep(LOOK_S)
        if code != EXIT_CONFIGURATION and not self._is_ending.wait(RESTART_S):
            os._exit(1)
