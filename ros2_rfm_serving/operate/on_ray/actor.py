"""What a Ray actor is here: the owner of one node's process. It knows nothing of Ray."""

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
"""Between the end of the node's process and this one's, after which Ray starts another: no loop, and time to say how it ended."""
LOOK_S = 0.2
"""Between looks at whether the process, and whoever started this one, are there."""
MOST_BYTES = 1 << 18
"""Of the log, at a time."""


class Look(NamedTuple):
    """How the process does."""

    life: str
    """Of this owner: another one after each restart."""
    machine: str
    pid: int
    age_s: float
    code: int | None
    """It has ended; None: it runs."""
    log: str
    """What it has written since the last look."""
    read: int
    """Bytes, in all."""


class NodeActor:
    """Starts the node's process when it is made. They end together: the process is told by the kernel when its owner is gone, and
    with it the machine's part of Ray or all of it; and the owner ends when the process does, so that Ray starts both again, here or
    elsewhere. Only who cannot run as it is configured, or is ended in order, leaves its owner there to say so.

    All methods are called on the main thread, which starts the process: the kernel's word follows the thread.
    """

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
        """life, read: of the last look; what was written until then is not said again."""
        with self._process.log.open("rb") as log:
            log.seek(read if life == self._life else 0)
            written = log.read(MOST_BYTES)
            read = log.tell()
        text = written.decode(errors="replace")
        print(text, end="", flush=True)  # Ray keeps what an actor prints
        age_s = time.monotonic() - self._process.started_s
        return Look(self._life, socket.gethostname(), self._child.pid, age_s, self._child.poll(), text, read)

    def end(self, life: str = "", read: int = 0) -> tuple[bool, Look]:
        """In order, and whether it had to be killed."""
        self._is_ending.set()
        killed = bool(self._keeper.stop())
        last = self.look(life, read)
        self._folder.cleanup()
        return killed, last

    def _end_with_process(self) -> None:
        while (code := self._child.poll()) is None:
            if os.getppid() != self._parent:  # Ray's own processes may live on when their node's part of Ray does not
                os._exit(1)
            time.sleep(LOOK_S)
        if code != EXIT_CONFIGURATION and not self._is_ending.wait(RESTART_S):
            os._exit(1)
