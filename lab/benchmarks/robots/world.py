"""Environment of the robots of `rfm bench robots`: sensors, schedule, tasks, and reports of the robots."""

from __future__ import annotations

import array
import math
from dataclasses import replace
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from rclpy.action import ActionClient
from rclpy.node import Node
from rfm_serving import action, msg
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import Float32MultiArray

from lab.benchmarks.path.sides import CAMERAS, CONTROL_RATE_HZ, STATE_SIZE, camera_image
from lab.benchmarks.robots.told import Told
from ros2_rfm_serving.ros.node import diagnostics
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.node.timers import every
from ros2_rfm_serving.ros.wire import convert, qos
from ros2_rfm_serving.types import SYSTEM1, Placement, Route, Schedule

CAMERA_PERIODS = 4
"""Control periods between two frames."""
SCHEDULE_PERIOD_S = 2.0
TASK_PERIOD_S = 0.5
ANSWER_S = 20.0
"""Time after which a task is sent again: an answer that is sent before its reader is discovered is lost."""


class Surroundings(Node):
    """Node that sends every robot states and images at its rates, spread over the period, and one endless task."""

    def __init__(self, robots: list[str], server: str, image_size_px: int, slo_s: float = 0.0, **placed: Any) -> None:
        """server: of all routes; empty: a scheduler's. slo_s: request to chunk; 0: none. placed: other values of its placement."""
        super().__init__("bench_surroundings", enable_rosout=False, start_parameter_services=False)
        self.figures = Told(diagnostics.PERIOD_S)
        self.at_work: set[str] = set()
        names = qos.Names()
        self._images = [_image_message(camera, image_size_px, i) for i, camera in enumerate(CAMERAS)]
        self._state = Float32MultiArray(data=array.array("f", bytes(4 * STATE_SIZE)))
        self._robots = [_Robot(self, robot, names) for robot in robots]
        self._turn = 0
        self._schedule = convert.schedule_to(_schedule(robots, server, slo_s, placed), "bench")
        self._schedules = self.create_publisher(msg.Schedule, names.schedule, qos.SCHEDULE)
        self.create_subscription(DiagnosticArray, diagnostics.TOPIC, self._on_diagnostics, 10)
        if server:
            every(self, SCHEDULE_PERIOD_S, lambda: self._schedules.publish(self._schedule))
        every(self, TASK_PERIOD_S, self._give_tasks)
        every(self, 1.0 / (CONTROL_RATE_HZ * len(robots)), self._sense_next)

    def _sense_next(self) -> None:
        period, index = divmod(self._turn, len(self._robots))
        self._turn += 1
        robot = self._robots[index]
        robot.state.publish(self._state)
        if (period + index) % CAMERA_PERIODS == 0:
            for publisher, image in zip(robot.images, self._images, strict=True):
                publisher.publish(image)

    def _give_tasks(self) -> None:
        for robot in self._robots:
            if robot.asked_s + ANSWER_S < clock() and robot.name not in self.at_work and robot.task.server_is_ready():
                robot.asked_s = clock()
                sending = robot.task.send_goal_async(action.ExecuteTask.Goal(time_budget_s=1e6))
                sending.add_done_callback(lambda done, r=robot: self._on_answer(r, done.result()))

    def _on_answer(self, robot: _Robot, goal: Any) -> None:
        if goal and goal.accepted:
            self.at_work.add(robot.name)
            goal.get_result_async().add_done_callback(lambda _: self._on_end(robot))

    def _on_end(self, robot: _Robot) -> None:
        """Allow another request after an end: the robot was not active yet."""
        self.at_work.discard(robot.name)

    def _on_diagnostics(self, message: Any) -> None:
        for robot, values in diagnostics.statuses_named(message, "robot"):
            self.figures.take(robot, values, clock())


class _Robot:
    """Hardware of one robot, as its node sees it."""

    def __init__(self, node: Node, name: str, names: qos.Names) -> None:
        self.name, self.asked_s = name, -math.inf
        self.state = node.create_publisher(Float32MultiArray, names.robot(name, "state"), qos.SENSOR)
        topics = [names.robot(name, f"camera/{camera}/image/compressed") for camera in CAMERAS]
        self.images = [node.create_publisher(CompressedImage, topic, qos.SENSOR) for topic in topics]
        self.task = ActionClient(node, action.ExecuteTask, names.robot(name, "execute_task"))


def _image_message(camera: str, size_px: int, seed: int) -> Any:
    message = CompressedImage(format="jpeg")
    convert.put(message, "data", array.array("B", camera_image(size_px, seed)))
    message.header.frame_id = camera
    return message


def _schedule(robots: list[str], server: str, slo_s: float, placed: dict[str, Any]) -> Schedule:
    placement = Placement(
        server=server,
        model="",
        components=(SYSTEM1,),
        gpu_type="",
        batching="fixed",
        batch_size=8,
        max_sessions=len(robots),
        predicted_p99_s=0.0,
    )
    placement = replace(placement, **placed)
    routes = tuple(Route(robot=robot, component=SYSTEM1, server=server, max_rate_hz=100.0, slo_s=slo_s) for robot in robots)
    return Schedule(epoch=1, placements=(placement,), routes=routes, predicted_actions_hz=0.0, policy="bench")
