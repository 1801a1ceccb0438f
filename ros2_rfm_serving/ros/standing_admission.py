"""Admission of a robot that has to stay in the factory, even when the scheduler or the robot restarts."""

from __future__ import annotations

from typing import Any

from rclpy.node import Node
from rfm_serving import msg, srv

from ros2_rfm_serving.errors import UnprovenError
from ros2_rfm_serving.ros.node.doorkeeper import SCHEDULER, Signing, prover_of_process, verifier_of_process
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.node.scheduled import ScheduleHearer
from ros2_rfm_serving.ros.wire import bounded, qos
from ros2_rfm_serving.types.schedule_follower import REPEAT_PERIOD_S

PATIENCE_S = 5.0
"""Time for a restarted scheduler to receive the robot's own status, which suffices unless the robot was restarted as well.
Time without published schedules, for example while a scheduler starts, does not count."""


class StandingAdmission:
    """Client that asks again while a scheduler other than the last one to serve the robot publishes schedules without it.
    A robot that was released by request has left, and is not admitted again."""

    def __init__(self, node: Node, fleet_namespace: str, robot: str, task: str) -> None:
        self._node, self._request = node, srv.AdmitRobot.Request(robot=robot, task=task)
        self._prover, self._verifier = prover_of_process(), verifier_of_process()
        self._signing = self._new_signing()
        self._served_by = 0
        """Identity of the scheduler that served the robot last; 0: none yet, or the robot was released."""
        self._waited_s, self._heard_s = 0.0, clock()
        names = qos.Names(fleet_namespace)
        self._client = node.create_client(srv.AdmitRobot, names.admit_robot, qos_profile=qos.CONTROL)
        refuse = lambda error: None  # noqa: E731 which is logged
        hear, prove = self._on_schedule, ScheduleHearer(self._verifier).check
        bounded.hear(node, msg.Schedule, names.schedule, hear, qos.SCHEDULE_HEARD, refuse, repeated=True, prove=prove)

    def _new_signing(self) -> Signing:
        return Signing(self._prover, SCHEDULER, self._verifier)

    def _on_schedule(self, schedule: Any) -> None:
        now_s = clock()
        self._waited_s, self._heard_s = self._waited_s + min(now_s - self._heard_s, REPEAT_PERIOD_S), now_s
        if any(route.robot == self._request.robot for route in schedule.routes):
            self._served_by, self._waited_s = schedule.scheduler, 0.0
        elif self._request.robot in schedule.released:
            self._served_by = 0
        elif self._served_by in (0, schedule.scheduler):
            self._waited_s = 0.0
        elif self._waited_s > PATIENCE_S and self._client.service_is_ready():
            self._waited_s, self._signing = 0.0, self._new_signing()
            self._ask()

    def _ask(self) -> None:
        self._signing.call(self._client, self._request).add_done_callback(self._on_answer)

    def _on_answer(self, future: Any) -> None:
        answer, log = future.result(), self._node.get_logger()
        try:
            if self._signing.is_anew(self._request, answer):
                self._ask()
                return
        except UnprovenError as error:
            log.warning(f"{self._request.robot} is not admitted again: {error}")
            return
        if answer is not None and not answer.success:
            log.warning(f"{self._request.robot} is not admitted again: {answer.error_msg}")
