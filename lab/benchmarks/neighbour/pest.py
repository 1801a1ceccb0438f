"""Misbehaving client of `rfm bench neighbour`, which does one thing as fast as possible. It has the lowest CPU priority, because on
a factory floor it is on a machine of its own."""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np
from PIL import Image
from rclpy.action import ActionClient
from rclpy.node import Node
from rfm_serving import action, msg, srv

from lab.benchmarks.neighbour.robots import IMAGE_PX, PEST, request, session
from lab.benchmarks.path.pictures import photograph
from lab.benchmarks.path.sides import CAMERAS
from ros2_rfm_serving.ros.node.runtime import parameter, run_node
from ros2_rfm_serving.ros.node.timers import every
from ros2_rfm_serving.ros.wire import cdr, convert, qos
from ros2_rfm_serving.ros.wire.session_messages import grant_from
from ros2_rfm_serving.types import Conditioning, Guidance

RATES_HZ = {"flood": 500.0, "huge": 20.0, "progressive": 20.0, "jacobian": 50.0, "sessions": 200.0, "infer": 50.0}
"""Attempts of each kind per second; sessions and goals only while fewer than `IN_FLIGHT` are open."""
IN_FLIGHT = 8
HUGE_PX = (2048, 1536)
NICENESS = 19


class Pest(Node):
    """Misbehaving client; `does` is one of `RATES_HZ`."""

    def __init__(self) -> None:
        super().__init__("bench_pest")
        os.nice(NICENESS)
        self._does = parameter(self, "does", "flood", "What it does")
        names, server = qos.Names(), parameter(self, "server", "bench", "Server")
        self._images = _images(self._does)
        self._out = self.create_publisher(msg.Observation, names.server(server, "observation"), qos.OBSERVATION_SENT)
        self._open = self.create_client(srv.OpenSession, names.server(server, "open_session"))
        self._infer = ActionClient(self, action.Infer, names.server(server, "infer"))
        self.create_subscription(msg.ActionChunk, names.robot(PEST, "rfm/action_chunk"), lambda data: None, qos.REPLY, raw=True)
        self._epoch = self._sequence = self._open_calls = 0
        every(self, 1.0 / RATES_HZ[self._does], self._pester)

    def _pester(self) -> None:
        if self._does == "infer":
            self._ask_for_one()
        elif self._does == "sessions" or not self._epoch:
            self._open_one()
        else:
            self._sequence += 1
            self._out.publish(cdr.observation_to(request(PEST, self._epoch, self._sequence, self._images)))

    def _open_one(self) -> None:
        if self._open_calls >= (IN_FLIGHT if self._does == "sessions" else 1) or not self._open.service_is_ready():
            return
        self._open_calls += 1
        hard: dict[str, Any] = {"conditioning": Conditioning.GUIDED, "guidance": Guidance(true_jacobian=True)}
        call = self._open.call_async(session(PEST, **(hard if self._does == "jacobian" else {})))
        call.add_done_callback(lambda done: self._on_open(done.result()))

    def _on_open(self, answer: Any) -> None:
        self._open_calls -= 1
        if answer.success:
            self._epoch = grant_from(answer).session_epoch

    def _ask_for_one(self) -> None:
        if self._open_calls >= IN_FLIGHT or not self._infer.server_is_ready():
            return
        self._open_calls += 1
        goal = action.Infer.Goal(observation=convert.observation_to(request(PEST, 0, 0, self._images)))
        self._infer.send_goal_async(goal).add_done_callback(lambda done: self._on_goal(done.result()))

    def _on_goal(self, handle: Any) -> None:
        if handle.accepted:
            handle.get_result_async().add_done_callback(lambda _: self._on_result())
        else:
            self._on_result()

    def _on_result(self) -> None:
        self._open_calls -= 1


def _images(does: str) -> tuple[bytes, ...]:
    width, height = HUGE_PX if does in ("huge", "progressive") else IMAGE_PX
    images = tuple(photograph(width, height, seed) for seed in range(len(CAMERAS)))
    return tuple(_progressive(image) for image in images) if does == "progressive" else images


def _progressive(image: bytes) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.asarray(Image.open(io.BytesIO(image)))).save(file, "JPEG", progressive=True, quality=90)
    return file.getvalue()


def main() -> None:
    run_node(Pest, __doc__)


if __name__ == "__main__":
    main()
