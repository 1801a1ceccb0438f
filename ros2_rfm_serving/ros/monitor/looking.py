"""Node that records every status, diagnostic and schedule of a factory during an observation window."""

from __future__ import annotations

import copy
from collections.abc import Container
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.monitoring.board import SCHEDULE, Board
from ros2_rfm_serving.monitoring.findings.look import RECORDER, SCHEDULER, Diagnosis, HeardSchedule, Look
from ros2_rfm_serving.ros.monitor.discovery import DiscoveringNode, usable
from ros2_rfm_serving.ros.node.diagnostics import TOPIC
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.wire import convert
from ros2_rfm_serving.types.process_problems import CONFIGURATION, NAMESPACE

DIAGNOSTICS_DEPTH = 1000
"""Queue depth: a large factory publishes a thousand statuses a second, in pieces."""
OWNERS = (SCHEDULER, RECORDER)
"""Owners of diagnostics beside robots and servers; any other status in the domain is not of this package."""
SIMULATED_TIME = "/clock"


class LookingNode(DiscoveringNode):
    """Node whose `heard` is written on the executor's thread; `finish` may be called on another one."""

    def __init__(self, board: Board, fleet_namespace: str = "") -> None:
        self.heard = Look(begun_s=clock(), ended_s=clock())
        super().__init__(board, fleet_namespace)
        self.create_subscription(DiagnosticArray, TOPIC, self._on_diagnostics, DIAGNOSTICS_DEPTH)

    def finish(self) -> Look:
        """Return what was received, including the expected robots and servers that were silent."""
        heard, board, now_s = self.heard, self._board, clock()
        self.heard, heard.ended_s = Look(begun_s=now_s, ended_s=now_s), now_s
        heard.robots = {robot: heard.robots.get(robot, []) for robot in board.robots}
        heard.servers = {server: heard.servers.get(server, []) for server in (*board.servers, *usable(heard.lost_servers))}
        heard.doubts = board.doubts
        if self.count_publishers(SIMULATED_TIME):
            heard.clocks_s.clear()
        known = {*heard.robots, *heard.servers, *OWNERS}
        heard.diagnoses = {name: said for name, said in heard.diagnoses.items() if _is_own(name, known)}
        return heard

    @property
    def has_unconfigured(self) -> bool:
        """True if there is a node that could not be configured, which nothing else shows."""
        return any(_is_own(name, ()) for name in tuple(self.heard.diagnoses))

    @property
    def newest_s(self) -> float:
        """Time at which the node began to watch the most recently found robot or server, on its clock, s."""
        return max(tuple(self.heard.expected_s.values()), default=self.heard.begun_s)

    def watch_robot(self, robot: str) -> Any:
        self.heard.expected_s[robot] = clock()
        return super().watch_robot(robot)

    def watch_server(self, server: str) -> Any:
        self.heard.expected_s[server] = clock()
        return super().watch_server(server)

    def _on_schedule(self, message: Any) -> None:
        super()._on_schedule(message)
        try:
            schedule = convert.schedule_from(message)
        except BadMessageError as error:
            self._refuse(error, SCHEDULE)
            return
        self.heard.schedules.append(HeardSchedule(schedule=schedule, factory=message.factory, heard_s=clock()))

    def _on_server(self, message: Any) -> None:
        super()._on_server(message)
        self._note(message, self._board.servers, self.heard.servers)

    def _on_robot(self, message: Any) -> None:
        super()._on_robot(message)
        self._note(message, self._board.robots, self.heard.robots)

    def _note(self, message: Any, rows: dict[str, Any], heard: dict[str, list[Any]]) -> None:
        name, stamp = message.header.frame_id, message.header.stamp
        if name not in rows:
            return
        heard.setdefault(name, []).append(copy.copy(rows[name]))
        if stamp.sec:  # otherwise its clock is a simulation's that has not begun
            here = self.get_clock().now().to_msg()
            apart_s = stamp.sec - here.sec + 1e-9 * (stamp.nanosec - here.nanosec)
            self.heard.clocks_s.setdefault(name, []).append(apart_s)

    def _on_diagnostics(self, message: Any) -> None:
        now_s = clock()
        for status in message.status:
            values = {value.key: value.value for value in status.values}
            if values.get(NAMESPACE, "") != self._names.root:  # another factory's, which may have the same names
                continue
            said = Diagnosis.of(status.name, ord(status.level), status.message, values, now_s)
            self.heard.diagnoses.setdefault(status.name, []).append(said)


def _is_own(name: str, known: Container[str]) -> bool:
    """Return whether a status of `/diagnostics` is of this package. known: robots, servers, and other owners in the factory."""
    owner, _, part = name.rpartition(": ")
    return owner in known or part == CONFIGURATION
