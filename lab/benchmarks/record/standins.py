"""Stand-ins for robots and their server, in a process of their own: the same topics, sizes and rates, with constant contents."""

from __future__ import annotations

from array import array
from typing import Any

from rclpy.node import Node
from rclpy.serialization import serialize_message
from rfm_serving import msg
from sensor_msgs.msg import CompressedImage, JointState
from std_msgs.msg import Float32MultiArray, Float64MultiArray

from lab.benchmarks.path.pictures import photograph
from lab.benchmarks.path.sides import CAMERAS, CONTROL_RATE_HZ
from ros2_rfm_serving.ros.node.runtime import parameter, run_node
from ros2_rfm_serving.ros.node.timers import every
from ros2_rfm_serving.ros.wire import convert, qos

IMAGE_PX = (640, 480)
REQUESTS_HZ, STATUS_HZ = 5.0, 2.0
PAGE_BYTES = 10_000
"""Bytes of audit records per robot and page; four pages per second."""
PAGES_HZ = 4.0
CHUNK_VALUES = 50 * 7


class StandIns(Node):
    """Stand-ins that publish one after the other within the control period."""

    def __init__(self) -> None:
        super().__init__("bench_stand_ins", enable_rosout=False)
        names = qos.Names()
        robots = [f"robot_{number + 1}" for number in range(parameter(self, "robots", 16, "Robots"))]
        observations = self.create_publisher(msg.Observation, names.server("bench", "observation"), qos.OBSERVATION_SENT)
        self._robots = [_Robot(self, name, names, observations) for name in robots]
        self._turn = 0
        every(self, 1.0 / (CONTROL_RATE_HZ * len(robots)), self._next)

    def _next(self) -> None:
        period, index = divmod(self._turn, len(self._robots))
        self._turn += 1
        self._robots[index].say(period + index)


class _Robot:
    def __init__(self, node: Node, name: str, names: qos.Names, observations: Any) -> None:
        topics = [
            (Float32MultiArray(data=[0.0] * 14), "state", qos.SENSOR, CONTROL_RATE_HZ),
            (_joints(), "joint_states", qos.SENSOR, CONTROL_RATE_HZ),
            (Float64MultiArray(data=[0.0] * 7), "command", qos.COMMAND, CONTROL_RATE_HZ),
            (_chunk(), "rfm/action_chunk", qos.REPLY_SENT, REQUESTS_HZ),
            (_status(name), "rfm/status", qos.ROBOT_STATUS, STATUS_HZ),
            (_page(name), "rfm/audit", qos.AUDIT, PAGES_HZ),
        ]
        self._said = [(observations, bytes(serialize_message(_observation(name))), _every(REQUESTS_HZ))]
        for message, leaf, profile, rate_hz in topics:
            publisher = node.create_publisher(type(message), names.robot(name, leaf), profile)
            self._said.append((publisher, bytes(serialize_message(message)), _every(rate_hz)))

    def say(self, period: int) -> None:
        for publisher, data, periods in self._said:
            if period % periods == 0:
                publisher.publish(data)


def _every(rate_hz: float) -> int:
    """Return the control periods between two messages."""
    return max(1, round(CONTROL_RATE_HZ / rate_hz))


def _observation(name: str) -> Any:
    message = msg.Observation(instruction="reach the red goal", state=[0.0] * 14)
    message.header.frame_id = name
    for seed, camera in enumerate(CAMERAS):
        image = CompressedImage(format="jpeg")
        convert.put(image, "data", array("B", photograph(*IMAGE_PX, seed)))
        image.header.frame_id = camera
        message.images.append(image)
    return message


def _joints() -> Any:
    return JointState(name=[f"joint_{i}" for i in range(7)], position=[0.0] * 7, velocity=[0.0] * 7)


def _chunk() -> Any:
    rows = msg.Tensor(shape=[50, 7], data=[0.0] * CHUNK_VALUES)
    return msg.ActionChunk(action_names=[f"joint_{i}" for i in range(7)], chunk_model=rows, chunk_robot=rows)


def _status(name: str) -> Any:
    message = msg.RobotStatus(task="push", server="bench")
    message.header.frame_id = name
    return message


def _page(name: str) -> Any:
    sensors = '"sensors":{"state":[0.0,0.0,0.0,0.0,0.0,0.0,0.0]}'
    line = f'{{"n":0,"t":0.0,"kind":"tick","row":3,"chunk":[1,2,3],{sensors},"hash":"{"0" * 32}"}}'
    return msg.AuditPage(writer=f"robot/{name}", run=1, previous="0" * 32, records="\n".join([line] * (PAGE_BYTES // len(line))))


def main() -> None:
    run_node(StandIns)


if __name__ == "__main__":
    main()
