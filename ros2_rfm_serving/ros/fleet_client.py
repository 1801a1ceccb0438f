"""Client of the scheduler's services, for programs that run no executor of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rclpy.node import Node
from rclpy.task import Future
from rfm_serving import srv

from ros2_rfm_serving.errors import ScheduleError, UnprovenError
from ros2_rfm_serving.ros.node.doorkeeper import SCHEDULER, Signing, prover_of_process, verifier_of_process
from ros2_rfm_serving.ros.node.runtime import clock, executor
from ros2_rfm_serving.ros.wire import qos

TIMEOUT_S = 120.0
"""Time limit of one call; for a robot that does not fit, the scheduler plans the whole factory anew."""
AGAIN_S = 20.0
"""Time to wait for a reply before the request is sent again: the scheduler may have ended, and another one may have started."""


class FleetClient(Node):
    """Client of the scheduler's services whose calls block until the reply arrives.
    Each call raises `ScheduleError` with the scheduler's reason, or when it does not answer."""

    def __init__(self, fleet_namespace: str = "") -> None:
        super().__init__("rfm_fleet_client", enable_rosout=False, start_parameter_services=False)
        names = qos.Names(fleet_namespace)
        self._admit = self.create_client(srv.AdmitRobot, names.admit_robot, qos_profile=qos.CONTROL)
        self._release = self.create_client(srv.ReleaseRobot, names.release_robot, qos_profile=qos.CONTROL)
        self._prover, self._verifier, self._executor = prover_of_process(), verifier_of_process(), executor()
        self._executor.add_node(self)

    def admit(self, robot: str, task: str) -> int:
        """Admit a robot for a task and return the epoch of the schedule that contains it."""
        return self._call(self._admit, srv.AdmitRobot.Request(robot=robot, task=task))

    def release(self, robot: str, *, given_up: Callable[[], bool]) -> int:
        """Release a robot and return the epoch of the schedule without it. given_up: returns whether to stop waiting."""
        return self._call(self._release, srv.ReleaseRobot.Request(robot=robot), given_up)

    def _answered(self, asked: list[Future], request: Any, signing: Signing) -> Any:
        """Return the first reply, or None when there is none yet or when the scheduler demands a signature first.
        In the latter case the request is removed from `asked`, so that it is sent again at once. Raises: `ScheduleError`."""
        for future in [future for future in asked if future.done()]:
            try:
                if not signing.is_anew(request, future.result()):
                    return future.result()
            except UnprovenError as error:
                raise ScheduleError(str(error)) from error
            asked.remove(future)
        return None

    def _call(self, client: Any, request: Any, given_up: Callable[[], bool] = lambda: False) -> int:
        asked: list[Future] = []
        begin_s = ask_s = clock()
        signing = Signing(self._prover, SCHEDULER, self._verifier)
        while (answer := self._answered(asked, request, signing)) is None:
            now_s = clock()
            if now_s - begin_s > TIMEOUT_S or given_up():
                raise ScheduleError(f"the scheduler does not answer on {client.srv_name} within {now_s - begin_s:.0f} s")
            if (now_s >= ask_s or not asked) and client.service_is_ready():
                asked.append(signing.call(client, request))
                ask_s = now_s + AGAIN_S
            self._executor.spin_once(timeout_sec=0.1)
        if not answer.success:
            raise ScheduleError(answer.error_msg)
        return int(answer.schedule_epoch)
