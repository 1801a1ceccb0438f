"""Whether a robot has listened: after a time in which its process did not run, no server was silent."""

from __future__ import annotations

from ros2_rfm_serving.robot import RobotBrain
from ros2_rfm_serving.ros.node.runtime import clock

STOPPED_S, STOPPED_PERIODS = 1.0, 6.0
"""Without any callback for so long, and for so many control periods: the process was stopped, or too busy to hear anybody."""


class Listening:
    """Of one robot; `now_s` at the beginning of whatever may call its brain."""

    def __init__(self, brain: RobotBrain) -> None:
        self._brain = brain
        self._called_s = clock()

    def begin(self) -> None:
        """It begins to listen now."""
        self._called_s = clock()

    def now_s(self) -> float:
        """Return the time. After a pause what servers reported meanwhile is not read yet, and each has its time once more."""
        now_s = clock()
        if now_s - self._called_s > max(STOPPED_S, STOPPED_PERIODS / self._brain.config.control_rate_hz):
            for server in self._brain.ready_servers:
                self._brain.server_seen(server, True, now_s)
        self._called_s = now_s
        return now_s
