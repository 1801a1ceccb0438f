"""Client of the process that communicates with Ray (`driver.py`), for `rfm up`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from ros2_rfm_serving.operate.on_ray.words import Answer, Join, Order
from ros2_rfm_serving.operate.supervisor import how
from ros2_rfm_serving.private_files import private, private_folder

DRIVER = f"{__package__}.driver"
LOG = "ray.log"
"""Log of Ray's own messages to its driver."""


class Link:
    """One driver process, for one cluster. All methods are called on one thread; none raises when the process has ended."""

    def __init__(self, process: subprocess.Popen[bytes], connection: Connection) -> None:
        self._process, self._connection = process, connection

    @staticmethod
    def started(join: Join, logs: Path) -> Link:
        ours, theirs = Pipe()
        private_folder(logs)
        with theirs, open(logs / LOG, "ab", opener=private) as log:
            process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-c", f"from {DRIVER} import main; main()", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                start_new_session=True,  # Ctrl-C is for `rfm up`, which ends all in order
            )
        link = Link(process, ours)
        link.send(join)
        return link

    @property
    def ended(self) -> str:
        """Description of its end; empty: it runs."""
        code = self._process.poll()
        return "" if code is None else how(code)

    def send(self, order: Join | Order) -> None:
        try:
            self._connection.send(order)
        except OSError:
            self._process.kill()  # it has ended, or closed its end, and is useless

    def heard(self) -> Iterator[Answer]:
        """Yield its messages since the last call."""
        while (answer := self.wait(0.0)) is not None:
            yield answer

    def wait(self, seconds: float) -> Answer | None:
        """Return its next message; None: none arrived in time, or it has ended."""
        try:
            return self._connection.recv() if self._connection.poll(max(0.0, seconds)) else None
        except (EOFError, OSError):
            self._connection.close()
            return None

    def end(self, patience_s: float = 0.0) -> None:
        """Wait for its end for `patience_s`, then kill it, and with it whatever Ray has started for it alone."""
        deadline_s = time.monotonic() + patience_s
        while self._process.poll() is None and time.monotonic() < deadline_s:
            time.sleep(0.05)
        self._process.kill()
        self._process.wait()
        self._connection.close()
