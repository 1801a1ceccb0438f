"""Detection of pauses of a robot's process: after a time in which it did not run, no server has been silent."""

from __future__ import annotations

from ros2_rfm_serving.robot import RobotCore
from ros2_rfm_serving.ros.node.runtime import clock

STOPPED_S, STOPPED_PERIODS = 1.0, 6.0
"""Time, and number of control periods, without any callback after which the process was stopped, or too busy to receive."""


class Listening:
    """Pause detection of one robot; `now_s` is called first in every callback that may call the robot's decision core."""

    def __init__(self, brain: RobotCore) -> None:
        self._brain = brain
        self._called_s = clock()

    def begin(self) -> None:
        """Begin to receive now."""
        self._called_s = clock()

    def now_s(self) -> float:
        """Return the time.
        After a pause, servers' messages from meanwhile are still unread, so each server gets its time limit anew."""
        now_s = clock()
        if now_s - self._called_s > max(STOPPED_S, STOPPED_PERIODS / self._brain.config.control_rate_hz):
            for server in self._brain.ready_servers:
                self._brain.on_server_status(server, True, now_s)
        self._called_s = now_s
        return now_s
