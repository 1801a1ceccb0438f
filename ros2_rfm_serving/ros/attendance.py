"""Which robots beyond those of the descriptor are there: what they say in their status, for the scheduler's roster."""

from __future__ import annotations

import functools
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.node import Node
from rfm_serving import msg

from ros2_rfm_serving.ros.fleet_in_force import FleetInForce
from ros2_rfm_serving.ros.node.diagnostics import key_values
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.node.timers import every
from ros2_rfm_serving.ros.wire import qos
from ros2_rfm_serving.scheduler import Roster, Word
from ros2_rfm_serving.types import Admission

LOOK_PERIOD_S = 0.5
LEAF, TYPE = "rfm/status", "rfm_serving/msg/RobotStatus"
EAGER_LOOKS, LAZY_LOOKS = 40, 4
"""A scheduler that has just started looks each time who is on the graph, later now and then: on a large one it takes a while."""
SAID_FOR_S = 60.0
"""That a lease has ended."""


class Attendance:
    """Looks twice a second, and has the schedule follow what it sees."""

    def __init__(self, node: Node, names: qos.Names, roster: Roster, fleet: FleetInForce) -> None:
        self._node, self._names, self._roster, self._fleet = node, names, roster, fleet
        self._heard: dict[str, Any] = {}
        """Robot -> the subscription to its status."""
        self._num_looks, self._looked_s = 0, clock()
        self._ended, self._ended_s = "", 0.0
        every(node, LOOK_PERIOD_S, self._look)

    def diagnosis(self) -> DiagnosticStatus:
        """`scheduler: robots`."""
        level, message = DiagnosticStatus.OK, f"{len(self._roster.tasks)} admitted while the factory runs"
        if self._fleet.no_room:
            level, message = DiagnosticStatus.WARN, f"no room for {', '.join(self._fleet.no_room)}; see the log"
        elif self._ended and clock() - self._ended_s < SAID_FOR_S:
            level, message = DiagnosticStatus.WARN, self._ended
        values = {
            "declared": len(self._fleet.declared),
            "admitted": ", ".join(self._roster.tasks),
            "longest silence, s": max(self._roster.silences_s.values(), default=0.0),
            "lease, s": self._roster.lease_s,
            "leases ended": self._roster.ended,
            "taken over from other schedulers": self._roster.inherited,
        }
        return DiagnosticStatus(level=level, name="scheduler: robots", message=message, values=key_values(values))

    def _look(self) -> None:
        if self._num_looks < EAGER_LOOKS or self._num_looks % LAZY_LOOKS == 0:
            self._look_around()
        self._num_looks += 1
        now_s = clock()
        if ended := self._roster.elapse(now_s - self._looked_s):
            self._ended = f"released, not heard for {self._roster.lease_s:g} s: {', '.join(ended)}"
            self._ended_s = now_s
            self._node.get_logger().warning(self._ended)
        self._looked_s = now_s
        self._fleet.settle()

    def _look_around(self) -> None:
        """Hears whoever has come to the graph, and no longer who has left it."""
        topics = [topic for topic, types in self._node.get_topic_names_and_types() if TYPE in types]
        there = {robot for topic in topics if (robot := self._names.robot_of(topic, LEAF)) and self._publishes(robot)}
        there -= self._fleet.declared.keys()
        for robot in self._heard.keys() - there:
            self._node.destroy_subscription(self._heard.pop(robot))
        for robot in there - self._heard.keys():
            topic, hear = self._names.robot(robot, LEAF), functools.partial(self._on_status, robot)
            self._heard[robot] = self._node.create_subscription(msg.RobotStatus, topic, hear, qos.ROBOT_STATUS)

    def _publishes(self, robot: str) -> bool:
        return bool(self._node.count_publishers(self._names.robot(robot, LEAF)))

    def _on_status(self, robot: str, status: Any) -> None:
        log, tasks = self._node.get_logger(), self._fleet.factory.tasks
        task, known = status.admitted_task, robot in self._roster.tasks
        if task and task not in tasks:
            log.warning(
                f"{robot!r} was admitted for {task[:64]!r}; the tasks of this factory are: {', '.join(tasks)}",
                throttle_duration_sec=SAID_FOR_S,
            )
            task = ""
        self._roster.hear(Word(robot=robot, follows=status.scheduler, admission=Admission(scheduler=status.admitted_by, task=task)))
        if not known and robot in self._roster.tasks:
            log.info(f"{robot!r} is there and was admitted before: it is admitted again")
