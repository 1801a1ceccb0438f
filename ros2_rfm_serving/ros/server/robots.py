"""Robots of a model server: their reply topics, requests for newer observations, and the end of sessions of robots that left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rclpy.node import Node

from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.node.timers import every
from ros2_rfm_serving.ros.server.openings import Openings
from ros2_rfm_serving.ros.server.reply_topics import ReplyTopics
from ros2_rfm_serving.ros.server.schedules import Schedules
from ros2_rfm_serving.server import ModelServer

REFETCH_LOOKS = 4
"""Number of polls of waiting requests within the age at which an observation is stale."""


class Robots:
    """Registry of a server's robots. It runs on the executor's thread."""

    def __init__(
        self,
        node: Node,
        topics: ReplyTopics,
        schedules: Schedules,
        openings: Openings | None,
        server: Callable[[], ModelServer | None],
    ) -> None:
        """Create the registry.
        openings: their sessions end with the certificate that opened them. server: returns the model, or None."""
        self._node, self._topics, self._schedules, self._openings, self._server = node, topics, schedules, openings, server
        self._refetch_timer: Any = None

    def expect(self, server: ModelServer) -> None:
        """Create publishers for the robots of the schedule, so that they are matched before the first reply is due."""
        for robot, component in self._schedules.robots:
            self._topics.expect(robot, server.reply_kind(component))

    def collect(self, server: ModelServer, grace_s: float) -> None:
        """Close sessions of robots that left, and, `grace_s` later, their topics."""
        self._end_unproven(server)
        sessions, now_s = server.session_keys(), clock()
        unheard = self._topics.unheard(robot for robot, _ in sessions)
        absent = [key for key in sessions if key[0] in unheard]
        for (robot, component), why in server.collect_sessions(absent, now_s):
            self._node.get_logger().info(f"session of {robot}/{component} closed: {why}")
        expected = [(robot, server.reply_kind(component)) for robot, component in (*server.session_keys(), *self._schedules.robots)]
        self._topics.keep(expected, now_s, grace_s)

    def _end_unproven(self, server: ModelServer) -> None:
        """Close sessions whose certificate was revoked or has expired."""
        for (robot, component), epoch in self._openings.keep(server.session_keys()) if self._openings else ():
            server.close_session(robot, component, epoch)
            server.count("certificate_ended")
            self._node.get_logger().warning(f"session of {robot}/{component} closed: its certificate is revoked, or has ended")

    def refetch_after(self, stale_s: float) -> None:
        """Poll for stale observations a few times within this age; 0: never."""
        if self._refetch_timer is not None:
            self._node.destroy_timer(self._refetch_timer)
            self._refetch_timer = None
        if stale_s:
            self._refetch_timer = every(self._node, max(stale_s / REFETCH_LOOKS, 0.005), self._refetch)

    def _refetch(self) -> None:
        """Ask robots for newer observations in place of those that will be stale when they are used."""
        server = self._server()
        for request in server.refetches(clock()) if server else ():
            self._topics.ask_again(request)
