"""Liveness of robots that the descriptor does not declare: feeds the statuses that they publish to the scheduler's roster."""

from __future__ import annotations

import functools
import math
import time
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.node import Node
from rfm_serving import msg

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.ros.followers import HARDWARE
from ros2_rfm_serving.ros.node.diagnostics import key_values
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.node.said import STALE, UNPROVEN, Hearer
from ros2_rfm_serving.ros.node.timers import every
from ros2_rfm_serving.ros.wire import bounded, qos
from ros2_rfm_serving.scheduler import LOOK_PERIOD_S, RobotClaim, RobotRegistry, ScheduleManager
from ros2_rfm_serving.scheduler.name_lists import shortened
from ros2_rfm_serving.scheduler.unregistered_robots import UnregisteredRobots
from ros2_rfm_serving.types import AdmissionRecord

LEAF, TYPE = "rfm/status", "rfm_serving/msg/RobotStatus"
MAX_SHARE = 0.02
"""Share of the executor's computing time for discovery: a topic costs some 30 us, and a large factory has tens of thousands."""
SAID_FOR_S = 60.0
"""Time for which diagnostics show that a lease has ended."""
NAMED = 20
"""Maximum number of robots that one line of the log names."""


class Attendance:
    """Liveness monitor of dynamic robots. It polls twice a second and makes the schedule follow what it finds."""

    def __init__(self, node: Node, names: qos.Names, roster: RobotRegistry, fleet: ScheduleManager, identity: int) -> None:
        """Start polling. identity: number of this scheduler.
        Raises: `ConfigurationError` when the certificate of this process cannot be used."""
        self._node, self._names, self._roster, self._fleet, self._identity = node, names, roster, fleet, identity
        self._hearer = Hearer.of_process()
        self._present: set[str] = set()
        self._heard: dict[str, Any] = {}
        """Robot -> the subscription to its status."""
        self._strangers, self._said_strangers = UnregisteredRobots(), False
        self._looked_s, self._look_around_s = clock(), -math.inf
        """Time at which the graph is searched again."""
        self._ended, self._ended_s = "", 0.0
        self._again: dict[str, None] = {}
        """Robots that were admitted again since the last poll, because their status says that they are admitted."""
        self._misnamed = self._unreadable = self._unsaid = self._untimely = 0
        self.unproven = 0
        """Requests without a valid signature or permission, including those that were first sent a challenge."""
        every(node, LOOK_PERIOD_S, self._look)

    def count_unproven(self) -> None:
        self.unproven += 1

    def diagnosis(self) -> DiagnosticStatus:
        """Return the diagnostics of `scheduler: robots`."""
        level, message = DiagnosticStatus.OK, f"{len(self._roster.tasks)} admitted while the factory runs"
        if self._fleet.no_room:
            level, message = DiagnosticStatus.WARN, f"no room for {', '.join(self._fleet.no_room)}; see the log"
        elif self._ended and clock() - self._ended_s < SAID_FOR_S:
            level, message = DiagnosticStatus.WARN, self._ended
        values = {
            "declared": len(self._fleet.declared),
            "admitted": ", ".join(self._roster.tasks),
            "servers whose loss no standby covers": ", ".join(self._fleet.fleet.uncovered),
            "longest silence, s": max(self._roster.silences_s.values(), default=0.0),
            "lease, s": self._roster.lease_s,
            "robots that nobody knows, heard now": self._strangers.num_heard,
            "robots that nobody knows, waiting for their turn": self._strangers.num_waiting,
            "messages refused": self._unreadable,
            "statuses unproven": self._unsaid,
            "statuses of who follows another scheduler": self._untimely,
            "orders unproven": self.unproven,
            "leases ended": self._roster.ended,
            "taken over from other schedulers": self._roster.inherited,
            "statuses of another name than their topic's": self._misnamed,
        }
        return DiagnosticStatus(
            level=level, name="scheduler: robots", message=message, hardware_id=HARDWARE, values=key_values(values)
        )

    def _look(self) -> None:
        if clock() >= self._look_around_s:
            begin_s = time.thread_time()  # CPU time: on a busy machine a search takes longer, but costs no more
            self._look_around()
            self._look_around_s = clock() + (time.thread_time() - begin_s) / MAX_SHARE
        self._listen()
        self._tell_again()
        now_s = clock()
        if ended := self._roster.elapse(now_s - self._looked_s):
            self._ended = f"released, not heard for {self._roster.lease_s:g} s: {', '.join(ended)}"
            self._ended_s = now_s
            self._node.get_logger().warning(self._ended)
        self._looked_s = now_s
        self._fleet.settle()

    def _look_around(self) -> None:
        """Update the set of robots that publish a status."""
        topics = [topic for topic, types in self._node.get_topic_names_and_types() if TYPE in types]
        self._present = {robot for topic in topics if (robot := self._names.robot_of(topic, LEAF)) and self._publishes(robot)}

    def _listen(self) -> None:
        """Subscribe to the robots that are present or expected, and unsubscribe from those that have left.
        Only a few of the unregistered robots are subscribed to at a time."""
        declared, tasks = self._fleet.declared.keys(), self._roster.tasks.keys()
        present = self._present - declared
        strangers = {robot for robot in present if not self._roster.knows(robot)}
        robots = (tasks - declared) | (present - strangers) | self._strangers.look(strangers, len(declared | tasks))
        self._tell_strangers()
        for robot in self._heard.keys() - robots:
            self._node.destroy_subscription(self._heard.pop(robot))
        for robot in robots - self._heard.keys():
            topic, hear = self._names.robot(robot, LEAF), functools.partial(self._on_status, robot)
            prove = functools.partial(self._prove, robot)
            self._heard[robot] = bounded.hear(self._node, msg.RobotStatus, topic, hear, qos.ROBOT_STATUS, self._refuse, prove=prove)

    def _tell_strangers(self) -> None:
        """Log once that there are unregistered robots; any number of them may appear at any time."""
        if self._strangers.num_waiting and not self._said_strangers:
            self._said_strangers = True
            those = self._strangers.num_heard + self._strangers.num_waiting
            heard = f"{self._strangers.num_heard} of them are heard at a time, by turns"
            self._node.get_logger().warning(f"{those} robots have a status that nobody declared or admitted: {heard}")

    def _prove(self, robot: str, status: Any, data: memoryview) -> None:
        """Verify a status. Raises: `BadMessageError`.
        The status of a robot that has not been admitted has no effect, so it is not verified: there may be thousands of them."""
        if status.admitted_task or self._roster.knows(robot):
            self._hearer.check_status(robot, self._identity, status, data)

    def _refuse(self, error: BadMessageError) -> None:
        if error.kind in (UNPROVEN, STALE):
            self._unsaid += 1
        else:
            self._unreadable += 1

    def _publishes(self, robot: str) -> bool:
        return bool(self._node.count_publishers(self._names.robot(robot, LEAF)))

    def _on_status(self, robot: str, status: Any) -> None:
        log, tasks = self._node.get_logger(), self._fleet.factory.tasks
        if (named := status.header.frame_id) != robot:
            self._misnamed += 1
            log.warning(f"a status of {robot!r} names {named[:64]!r}: it does not count", throttle_duration_sec=SAID_FOR_S)
            return
        admission = AdmissionRecord(scheduler=status.admitted_by, task=status.admitted_task)
        if not self._hearer.is_of_now(status, self._identity):
            self._untimely += 1
            self._roster.hear_elsewhere(RobotClaim(robot=robot, follows=status.scheduler, admission=admission))
            return
        task, known = status.admitted_task, robot in self._roster.tasks
        if task and task not in tasks:
            log.warning(
                f"{robot!r} was admitted for {task[:64]!r}; the tasks of this factory are: {', '.join(tasks)}",
                throttle_duration_sec=SAID_FOR_S,
            )
            task = ""
        self._roster.hear(
            RobotClaim(robot=robot, follows=status.scheduler, admission=AdmissionRecord(scheduler=status.admitted_by, task=task))
        )
        if not known and robot in self._roster.tasks:
            self._again[robot] = None

    def _tell_again(self) -> None:
        """Log in one line which robots were admitted again. After a restart of the scheduler there may be thousands, and a robot
        whose statuses contradict each other is taken over each time."""
        if again := list(self._again):
            self._node.get_logger().info(f"admitted again, for they are there and were admitted before: {shortened(again, NAMED)}")
        self._again = {}
