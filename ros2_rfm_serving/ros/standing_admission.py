"""A robot that wants to stay in the factory, whatever becomes of the scheduler and of the robot meanwhile."""

from __future__ import annotations

from typing import Any

from rclpy.node import Node
from rfm_serving import msg, srv

from ros2_rfm_serving.errors import UnprovenError
from ros2_rfm_serving.ros.node.doorkeeper import SCHEDULER, Signing, prover_of_process, verifier_of_process
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.node.scheduled import ScheduleHearer
from ros2_rfm_serving.ros.wire import bounded, qos
from ros2_rfm_serving.types.following import REPEAT_PERIOD_S

PATIENCE_S = 5.0
"""For a scheduler that was started again to hear of the robot from itself, as it does unless that was started again, too. Time in
which nobody publishes, as while a scheduler starts, is none that it had."""


class StandingAdmission:
    """Asks again while another scheduler than the one that served it last publishes schedules without it. Who was released by
    somebody's order has left: that is no other scheduler's to forget."""

    def __init__(self, node: Node, fleet_namespace: str, robot: str, task: str) -> None:
        self._node, self._request = node, srv.AdmitRobot.Request(robot=robot, task=task)
        self._prover, self._verifier = prover_of_process(), verifier_of_process()
        self._signing = self._new_signing()
        self._served_by = 0
        """0: nobody yet, or it was released."""
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
