"""Stand-in for a robot's hardware in `rfm bench network`: still images, a constant state, a reset without effect.

It sends its robot one task after the other and records what it receives, a JSON object per line: states, chunks, commands, results,
punctuality. It runs beside its robot, so that the robot's own view is measured. Times are of the monotonic clock.
"""

from __future__ import annotations

import array
import json
from pathlib import Path
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from rclpy.action import ActionClient
from rclpy.node import Node
from rfm_serving import msg
from rfm_serving.action import ExecuteTask
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import Float32MultiArray, Float64MultiArray
from std_srvs.srv import Trigger

from lab.benchmarks.path.sides import camera_image
from ros2_rfm_serving.ros.node.runtime import clock, parameter, run_node
from ros2_rfm_serving.ros.node.timers import every
from ros2_rfm_serving.ros.robot.status import Punctuality
from ros2_rfm_serving.ros.wire import qos
from ros2_rfm_serving.ros.wire.convert import packed, put
from ros2_rfm_serving.types import RobotState, empty

TASK_PERIOD_S = 0.5
"""Period of the check whether the robot needs a task."""
RECORD_PERIOD_S = 0.2
PUNCTUALITY = ("ticks", "missed_periods", "tick_late_p50_ms", "tick_late_p99_ms")
"""Values of the robot's diagnostics."""


class StandInNode(Node):
    def __init__(self) -> None:
        super().__init__("stand_in")
        robot = parameter(self, "robot", "robot", "Robot name")
        cameras = parameter(self, "cameras", ["side", "front"], "Camera names")
        state_size = parameter(self, "state_size", 39, "Length of the state")
        state_rate_hz = parameter(self, "state_rate_hz", 30.0, "States per second")
        camera_rate_hz = parameter(self, "camera_rate_hz", 10.0, "Frames per second")
        size_px = parameter(self, "image_size_px", 96, "Width and height of the images")
        record_file = parameter(self, "record_file", "", "Where what is heard is written; empty: nowhere")
        self._record = Path(record_file).open("w", encoding="utf-8") if record_file else None  # noqa: SIM115 - closed by stop
        self._budget_s = parameter(self, "time_budget_s", 3600.0, "Of each task")
        self._num_commands = 0
        self._state_message = Float32MultiArray(data=packed(empty(state_size)))
        self._images = [(self._camera(robot, name), _image(name, size_px, i)) for i, name in enumerate(cameras)]
        names = qos.Names()
        self._state = self.create_publisher(Float32MultiArray, names.robot(robot, "state"), qos.SENSOR)
        self._action = ActionClient(self, ExecuteTask, names.robot(robot, "execute_task"))
        self._asking = False
        self.create_service(Trigger, names.robot(robot, "reset"), self._on_reset)
        self.create_subscription(msg.RobotStatus, names.robot(robot, "rfm/status"), self._on_status, 10)
        self.create_subscription(msg.ActionChunk, names.robot(robot, "rfm/action_chunk"), self._on_chunk, qos.REPLY)
        self.create_subscription(Float64MultiArray, names.robot(robot, "command"), self._on_command, qos.COMMAND)
        self.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, 10)
        self._punctuality = Punctuality(1.0 / state_rate_hz, on_grid=True)
        every(self, 1.0 / state_rate_hz, self._publish_state)
        every(self, 1.0 / camera_rate_hz, self._publish_images)
        if parameter(self, "give_tasks", True, "One after the other; false: somebody else does"):
            every(self, TASK_PERIOD_S, self._give_task)
        every(self, RECORD_PERIOD_S, self._count_commands)

    def stop(self) -> None:
        if self._record:
            self._record.close()

    def _note(self, kind: str, **what: object) -> None:
        if self._record:
            self._record.write(json.dumps({"kind": kind, "s": clock(), **what}) + "\n")

    def _camera(self, robot: str, name: str) -> Any:
        return self.create_publisher(CompressedImage, qos.Names().robot(robot, f"camera/{name}/image/compressed"), qos.SENSOR)

    def _publish_state(self) -> None:
        self._punctuality.ticked(clock())
        self._state.publish(self._state_message)

    def _publish_images(self) -> None:
        for publisher, image in self._images:
            publisher.publish(image)

    def _on_reset(self, request: Any, response: Any) -> Any:
        response.success = True
        return response

    # --- tasks ---

    def _give_task(self) -> None:
        if self._asking or not self._action.server_is_ready():
            return
        self._asking = True
        goal = ExecuteTask.Goal(time_budget_s=self._budget_s, reset=True)
        self._action.send_goal_async(goal).add_done_callback(self._on_answer)

    def _on_answer(self, sending: Any) -> None:
        handle = sending.result()
        if handle is not None and handle.accepted:
            handle.get_result_async().add_done_callback(self._on_result)
        else:
            self._asking = False

    def _on_result(self, done: Any) -> None:
        self._asking = False
        result = done.result().result
        if result.error_code in (ExecuteTask.Result.INACTIVE, ExecuteTask.Result.BUSY):
            return  # it never began
        steps = {"executed_steps": result.executed_steps, "held_steps": result.held_steps}
        self._note("result", code=result.error_code, why=result.error_msg, **steps)

    # --- received messages ---

    def _on_status(self, status: Any) -> None:
        refused = {counter.name: counter.count for counter in status.refused}
        state = RobotState(status.state).name
        self._note("status", state=state, reason=status.reason, phase=status.phase, held=status.held_ticks, refused=refused)

    def _on_chunk(self, chunk: Any) -> None:
        self._note("chunk", round_trip_s=clock() - 1e-9 * chunk.stamp_ns, sequence=chunk.id.sequence)

    def _on_command(self, _: Any) -> None:
        self._num_commands += 1

    def _count_commands(self) -> None:
        self._note("commands", total=self._num_commands)
        if self._record:
            self._record.flush()

    def _on_diagnostics(self, message: Any) -> None:
        for status in message.status:
            values = {value.key: value.value for value in status.values}
            if "tick_late_p99_ms" in values:
                self._note("punctuality", **{name: float(values[name]) for name in PUNCTUALITY})
                p50_s, p99_s = self._punctuality.late_s(0.5, 0.99)
                bare = (self._punctuality.ticks, self._punctuality.missed, 1e3 * p50_s, 1e3 * p99_s)
                self._note("bare_timer", **dict(zip(PUNCTUALITY, bare, strict=True)))


def _image(camera: str, size_px: int, index: int) -> Any:
    image = CompressedImage(format="rgb8; jpeg compressed bgr8")
    put(image, "data", array.array("B", camera_image(size_px, index)))
    image.header.frame_id = camera
    return image


def main() -> None:
    run_node(StandInNode)


if __name__ == "__main__":
    main()
