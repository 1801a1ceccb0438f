"""Publishes the schedule; admits, releases and replans on request. Never on the path of a request."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rclpy.node import Node
from rfm_serving import msg, srv

from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.factory import Factory, Robot, load_factory
from ros2_rfm_serving.profiles import load_profiles
from ros2_rfm_serving.ros import convert, qos
from ros2_rfm_serving.ros.runtime import fleet_names, parameter, run_node, share
from ros2_rfm_serving.scheduler import plan

EPOCH_ORIGIN_S = 1_700_000_000
REPEAT_PERIOD_S = 2.0
"""Of the schedule in force. It is latched too, but a node that was just starting has been seen to miss the latched sample."""


class SchedulerNode(Node):
    def __init__(self) -> None:
        super().__init__("scheduler")
        self._file = Path(parameter(self, "factory_file", "", "Factory descriptor (YAML)"))
        folder = parameter(self, "profiles_folder", "", "Folder of latency profiles (CSV); empty: the shipped ones")
        self._profile = load_profiles(Path(folder) if folder else share() / "config" / "profiles")
        self._factory = load_factory(self._file)
        self._robots = self._factory.robots
        names = fleet_names(self)
        self._publisher = self.create_publisher(msg.Schedule, names.schedule, qos.SCHEDULE)
        self.create_service(srv.AdmitRobot, names.admit_robot, self._admit)
        self.create_service(srv.ReleaseRobot, names.release_robot, self._release)
        self.create_service(srv.Replan, names.replan, self._replan)
        # Epochs rise across restarts as well: those who follow an older schedule would refuse a smaller one. Only compared, never
        # read as a time.
        self._epoch = int(time.time()) - EPOCH_ORIGIN_S
        self._publish(self._factory, self._robots)
        self.create_timer(REPEAT_PERIOD_S, lambda: self._publisher.publish(self._message))

    def _publish(self, factory: Factory, robots: list[Robot]) -> None:
        """Raises: `RfmError`; then the schedule in force stays in force."""
        schedule = plan(factory, self._profile, epoch=self._epoch + 1, robots=robots)
        self._factory, self._robots, self._epoch = factory, robots, schedule.epoch
        self._message = convert.schedule_to(schedule, factory.name)
        self._publisher.publish(self._message)
        for placement in schedule.placements:
            self.get_logger().info(
                f"epoch {schedule.epoch}: {placement.server} hosts {placement.model}, batch {placement.batch_size}, "
                f"predicted p99 {placement.predicted_p99_s * 1e3:.0f} ms"
            )
        self.get_logger().info(f"epoch {schedule.epoch}: {schedule.predicted_actions_hz:.1f} action predictions/s predicted")

    def _try(self, response: Any, factory: Factory, robots: list[Robot]) -> Any:
        try:
            self._publish(factory, robots)
        except RfmError as error:
            return self._refuse(response, error.code, str(error))
        response.success, response.schedule_epoch = True, self._epoch
        return response

    def _refuse(self, response: Any, code: int, problem: str) -> Any:
        self.get_logger().warning(problem)
        response.success, response.error_code, response.error_msg = False, code, problem
        response.schedule_epoch = self._epoch
        return response

    def _admit(self, request: Any, response: Any) -> Any:
        try:
            convert.check_name("robot", request.robot)
        except RfmError as error:
            return self._refuse(response, error.code, str(error))
        if request.task not in self._factory.tasks:
            return self._refuse(response, 100, f"no task {request.task!r}; there are: {', '.join(self._factory.tasks)}")
        if any(robot.name == request.robot for robot in self._robots):
            return self._refuse(response, 100, f"robot {request.robot!r} is admitted already")
        index = sum(robot.task == request.task for robot in self._robots)
        return self._try(response, self._factory, [*self._robots, Robot(name=request.robot, task=request.task, index=index)])

    def _release(self, request: Any, response: Any) -> Any:
        kept = [robot for robot in self._robots if robot.name != request.robot]
        if len(kept) == len(self._robots):
            return self._refuse(response, 100, f"robot {request.robot!r} is not in the factory")
        return self._try(response, self._factory, kept)

    def _replan(self, request: Any, response: Any) -> Any:
        try:
            factory = load_factory(Path(request.factory_file) if request.factory_file else self._file)
        except RfmError as error:
            return self._refuse(response, error.code, str(error))
        return self._try(response, factory, factory.robots)


def main() -> None:
    run_node(SchedulerNode)


if __name__ == "__main__":
    main()
