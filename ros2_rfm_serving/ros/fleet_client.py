"""A client of the scheduler's services, for programs that run no executor of their own."""

from __future__ import annotations

from typing import Any

from rclpy.node import Node
from rfm_serving import srv

from ros2_rfm_serving.errors import ScheduleError
from ros2_rfm_serving.ros.node.runtime import clock, executor
from ros2_rfm_serving.ros.wire import qos

TIMEOUT_S = 60.0
"""Of one call: a robot that does not fit has the whole factory planned anew."""


class FleetClient(Node):
    """Every call waits for its answer. Raises: `ScheduleError` with the scheduler's reason, or when it does not answer."""

    def __init__(self, fleet_namespace: str = "") -> None:
        super().__init__("rfm_fleet_client", enable_rosout=False, start_parameter_services=False)
        names = qos.Names(fleet_namespace)
        self._admit = self.create_client(srv.AdmitRobot, names.admit_robot, qos_profile=qos.CONTROL)
        self._release = self.create_client(srv.ReleaseRobot, names.release_robot, qos_profile=qos.CONTROL)
        self._executor = executor()
        self._executor.add_node(self)

    def admit(self, robot: str, task: str) -> int:
        """The epoch of the schedule that contains the robot."""
        return self._call(self._admit, srv.AdmitRobot.Request(robot=robot, task=task))

    def release(self, robot: str) -> int:
        return self._call(self._release, srv.ReleaseRobot.Request(robot=robot))

    def _call(self, client: Any, request: Any) -> int:
        end_s = clock() + TIMEOUT_S
        future = client.call_async(request) if client.wait_for_service(timeout_sec=TIMEOUT_S) else None
        while future is not None and not future.done() and clock() < end_s:
            self._executor.spin_once(timeout_sec=0.1)
        if future is None or not future.done():
            raise ScheduleError(f"the scheduler does not answer on {client.srv_name} within {TIMEOUT_S:g} s")
        answer = future.result()
        if not answer.success:
            raise ScheduleError(answer.error_msg)
        return int(answer.schedule_epoch)
