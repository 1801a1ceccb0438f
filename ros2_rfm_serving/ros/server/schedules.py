"""Subscription of a server to the schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rclpy.node import Node
from rfm_serving import msg

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.ros.following import describe, say
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.node.scheduled import ScheduleHearer
from ros2_rfm_serving.ros.server.standing import Standing
from ros2_rfm_serving.ros.wire import bounded, qos
from ros2_rfm_serving.ros.wire.schedules import ScheduleReader
from ros2_rfm_serving.server.sessions import SessionKey
from ros2_rfm_serving.types import Schedule, ScheduleVerdict


class Schedules:
    """Follower of schedules; `follow` is called with every one that differs from the previous one."""

    def __init__(self, node: Node, topic: str, server: str, standing: Standing, follow: Callable[[Schedule], None]) -> None:
        self._node, self._server, self._standing, self._follow = node, server, standing, follow
        self._read = ScheduleReader()
        self._rates_hz: tuple[Schedule | None, dict[SessionKey, float]] = None, {}
        """The schedule, and the rates from it."""
        self._hearer = hearer = ScheduleHearer.of_process()
        hear = self._on_schedule
        bounded.hear(node, msg.Schedule, topic, hear, qos.SCHEDULE_HEARD, self._refuse, repeated=True, prove=hearer.check)

    @property
    def robots(self) -> list[SessionKey]:
        """(robot, component) that may use this server, also as their standby."""
        return list(self.rates_hz)

    @property
    def rates_hz(self) -> dict[SessionKey, float]:
        """Maximum request rate of each (robot, component)."""
        schedule, (known, rates_hz) = self._standing.following.schedule, self._rates_hz
        if schedule is not known:
            routes = [route for route in schedule.routes if self._server in (route.server, route.standby)] if schedule else []
            rates_hz = {(route.robot, route.component): route.max_rate_hz for route in routes}
            self._rates_hz = schedule, rates_hz
        return rates_hz

    def _refuse(self, error: BadMessageError) -> None:
        self._standing.refused[error.kind] += 1

    def _is_of_now(self, message: Any) -> bool:
        """Return whether the scheduler is alive at the same time as this process; otherwise the schedule may be a recording."""
        standing = self._standing
        if is_new := standing.contemporaries.meet(message):
            standing.publish()  # a scheduler waits to learn that it is received
        if lives := standing.contemporaries.lives(message.scheduler):
            return lives
        standing.refused["untimely_schedule"] += not is_new  # the first one cannot be judged yet
        return False

    def _on_schedule(self, message: Any) -> None:
        standing = self._standing
        if self._hearer.demands and not self._is_of_now(message):
            return
        try:
            schedule = self._read(message)
        except BadMessageError as error:
            standing.refused[error.kind] += 1
            self._node.get_logger().warning(f"refused a schedule: {error}")
            return
        before = describe(standing.following.schedule)
        heard = standing.following.on_schedule(schedule, clock())
        say(self._node, self._server, heard, schedule, before)
        if heard.is_accepted:
            standing.origin.hear(message)
        if not heard.is_accepted:
            standing.refused[heard.value] += 1
        elif heard is not ScheduleVerdict.REPEATED:
            self._follow(schedule)
            standing.publish()  # the scheduler waits to learn that it is followed
